// What `benchmarks.copied_rows` times: touching memory as an embedding has to, and computing nothing. Rows lie `width` floats apart.
#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kAhead = 6;  // rows; fewer and more were slower where this was written
constexpr int kLine = 16;      // floats

template <bool kWrite>
inline void Prefetch(const float* row, int64_t width) {
  for (int64_t i = 0; i < width; i += kLine) __builtin_prefetch(row + i, kWrite);
}

}  // namespace

// Copies each row that is named to `buffer`, which stays in the first-level cache.
extern "C" void dlrm_read_rows(const float* table, const int32_t* ids, int64_t count, int64_t width, float* buffer) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) Prefetch<false>(table + ids[i + kAhead] * width, width);
    std::memcpy(buffer, table + ids[i] * width, sizeof(float) * width);
    asm volatile("" ::"r"(buffer) : "memory");  // it is read, for all the compiler knows
  }
}

// Reads each row that is named and writes it back, changed.
extern "C" void dlrm_change_rows(float* table, const int32_t* ids, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i) {
    if (i + kAhead < count) Prefetch<true>(table + ids[i + kAhead] * width, width);
    float* row = table + ids[i] * width;
    for (int64_t j = 0; j < width; ++j) row[j] += 1.0f;
  }
}

// Reads so many floats one after another.
extern "C" void dlrm_read(const float* values, int64_t count, float* sums) {
  constexpr int kSums = 64;
  float sum[kSums] = {};
  for (int64_t i = 0; i + kSums <= count; i += kSums) {
    for (int j = 0; j < kSums; ++j) sum[j] += values[i + j];
  }
  std::memcpy(sums, sum, sizeof sum);
}
