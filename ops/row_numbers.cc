#include "row_numbers.h"

#include <algorithm>
#include <cstring>

#include "philox.h"

namespace dlrm {
namespace {

constexpr int kRounds = 10;  // of Philox 4x64 (Salmon et al., see philox.h)
constexpr int kWords = 4;    // of a count
constexpr int kVectors = 4, kTogether = kVectors * kPhiloxLanes;  // counts that are computed at once: a product takes several cycles
constexpr int64_t kCountsOfTask = int64_t{1} << 12;               // 128 KiB of numbers

struct Key {
  uint64_t words[kRounds][2];  // of each round
};

// The high and the low halves of products of 64 bits.
struct Halves {
  PhiloxLanes high, low;
};

inline Halves Multiplied(PhiloxLanes x, uint64_t number) {
  const uint32_t above = static_cast<uint32_t>(number >> 32), below = static_cast<uint32_t>(number);
  const PhiloxLanes upper = x >> 32, mask = PhiloxLanes{} + uint64_t{0xffffffff};
  const PhiloxLanes low = Product(x, below), crossed = Product(upper, below) + (low >> 32);
  const PhiloxLanes other = Product(x, above) + (crossed & mask);
  return {Product(upper, above) + (crossed >> 32) + (other >> 32), other << 32 | (low & mask)};
}

// words[w][i] = word w of count low[i] + 2^64 high[i].
inline void Philox(const Key& key, const uint64_t (&low)[kTogether], const uint64_t (&high)[kTogether], uint64_t (&words)[kWords][kTogether]) {
  PhiloxLanes a[kVectors], b[kVectors], c[kVectors] = {}, d[kVectors] = {};
  std::memcpy(a, low, sizeof(a));
  std::memcpy(b, high, sizeof(b));
  for (int round = 0; round < kRounds; ++round) {
    for (int v = 0; v < kVectors; ++v) {
      const Halves left = Multiplied(a[v], 0xD2E7470EE14C6C93), right = Multiplied(c[v], 0xCA5A826395121157);
      a[v] = right.high ^ b[v] ^ key.words[round][0], b[v] = right.low;
      c[v] = left.high ^ d[v] ^ key.words[round][1], d[v] = left.low;
    }
  }
  const PhiloxLanes* const all[kWords] = {a, b, c, d};
  for (int w = 0; w < kWords; ++w) std::memcpy(words[w], all[w], sizeof(a));
}

void SomeRows(const Key& key, int64_t counts, const int64_t* rows, int64_t n, float* out) {
  int64_t row = 0, of_row = 0;
  for (int64_t left = n * counts; left > 0; left -= kTogether) {
    uint64_t low[kTogether] = {}, high[kTogether] = {}, words[kWords][kTogether];
    const int64_t some = std::min<int64_t>(left, kTogether);
    for (int64_t i = 0; i < some; ++i) {
      // NumPy counts before it draws.
      const unsigned __int128 count = static_cast<unsigned __int128>(rows[row]) * static_cast<uint64_t>(counts) + static_cast<uint64_t>(of_row + 1);
      low[i] = static_cast<uint64_t>(count), high[i] = static_cast<uint64_t>(count >> 64);
      if (++of_row == counts) of_row = 0, ++row;
    }
    Philox(key, low, high, words);
    for (int w = 0; w < kWords; ++w) {
      uint32_t halves[2 * kTogether];  // a word's lower half comes first
      float numbers[2 * kTogether];
      std::memcpy(halves, words[w], sizeof(halves));
      for (int i = 0; i < 2 * kTogether; ++i) numbers[i] = static_cast<float>(static_cast<int32_t>(halves[i] >> 8)) * 0x1p-24f;
      for (int64_t i = 0; i < some; ++i) std::memcpy(out + kNumbersOfCount * i + 2 * w, numbers + 2 * i, 2 * sizeof(float));
    }
    out += some * kNumbersOfCount;
  }
}

}  // namespace

void RowNumbers(const uint64_t key[2], int64_t counts, const int64_t* rows, int64_t n, float* out, const Threads& threads) {
  Key keys = {{{key[0], key[1]}}};
  for (int round = 1; round < kRounds; ++round) {
    keys.words[round][0] = keys.words[round - 1][0] + 0x9E3779B97F4A7C15, keys.words[round][1] = keys.words[round - 1][1] + 0xBB67AE8584CAA73B;
  }
  const int64_t rows_of_task = std::max<int64_t>(kCountsOfTask / counts, 1);
  threads.run((n + rows_of_task - 1) / rows_of_task, [&](int64_t task) {
    const int64_t first = task * rows_of_task;
    SomeRows(keys, counts, rows + first, std::min(rows_of_task, n - first), out + first * counts * kNumbersOfCount);
  });
}

}  // namespace dlrm
