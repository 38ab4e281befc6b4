#include "row_numbers.h"

#include <algorithm>
#include <cstring>

namespace dlrm {
namespace {

constexpr int kTogether = 4;                    // counts that are computed at once: a multiplication takes several cycles
constexpr int kRounds = 10;                     // of Philox 4x64 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011)
constexpr int64_t kCountsOfTask = int64_t{1} << 12;  // 128 KiB of numbers

typedef unsigned __int128 Wide;

// words[i] = the words of count counts[i].
void Philox(const uint64_t (&keys)[kRounds][2], const Wide (&counts)[kTogether], uint64_t (&words)[kTogether][4]) {
  uint64_t a[kTogether], b[kTogether], c[kTogether] = {}, d[kTogether] = {};
  for (int i = 0; i < kTogether; ++i) a[i] = static_cast<uint64_t>(counts[i]), b[i] = static_cast<uint64_t>(counts[i] >> 64);
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kTogether; ++i) {
      const Wide left = Wide{a[i]} * 0xD2E7470EE14C6C93, right = Wide{c[i]} * 0xCA5A826395121157;
      a[i] = static_cast<uint64_t>(right >> 64) ^ b[i] ^ keys[round][0], b[i] = static_cast<uint64_t>(right);
      c[i] = static_cast<uint64_t>(left >> 64) ^ d[i] ^ keys[round][1], d[i] = static_cast<uint64_t>(left);
    }
  }
  for (int i = 0; i < kTogether; ++i) words[i][0] = a[i], words[i][1] = b[i], words[i][2] = c[i], words[i][3] = d[i];
}

void SomeRows(const uint64_t (&keys)[kRounds][2], int64_t counts, const int64_t* rows, int64_t n, float* out) {
  int64_t row = 0, of_row = 0;
  for (int64_t left = n * counts; left > 0; left -= kTogether) {
    Wide at[kTogether] = {};
    const int64_t some = std::min<int64_t>(left, kTogether);
    for (int64_t i = 0; i < some; ++i) {
      at[i] = static_cast<Wide>(rows[row]) * static_cast<uint64_t>(counts) + static_cast<uint64_t>(of_row + 1);  // NumPy counts before it draws
      if (++of_row == counts) of_row = 0, ++row;
    }
    uint64_t words[kTogether][4];
    Philox(keys, at, words);
    uint32_t halves[kTogether * kNumbersOfCount];  // a word's lower half comes first
    std::memcpy(halves, words, sizeof(halves));
    float numbers[kTogether * kNumbersOfCount];
    for (int i = 0; i < kTogether * kNumbersOfCount; ++i) numbers[i] = static_cast<float>(static_cast<int32_t>(halves[i] >> 8)) * 0x1p-24f;
    std::memcpy(out, numbers, some * kNumbersOfCount * sizeof(float));
    out += some * kNumbersOfCount;
  }
}

}  // namespace

void RowNumbers(const uint64_t key[2], int64_t counts, const int64_t* rows, int64_t n, float* out, const Threads& threads) {
  uint64_t keys[kRounds][2] = {{key[0], key[1]}};
  for (int round = 1; round < kRounds; ++round) {
    keys[round][0] = keys[round - 1][0] + 0x9E3779B97F4A7C15, keys[round][1] = keys[round - 1][1] + 0xBB67AE8584CAA73B;
  }
  const int64_t rows_of_task = std::max<int64_t>(kCountsOfTask / counts, 1);
  threads.run((n + rows_of_task - 1) / rows_of_task, [&](int64_t task) {
    const int64_t first = task * rows_of_task;
    SomeRows(keys, counts, rows + first, std::min(rows_of_task, n - first), out + first * counts * kNumbersOfCount);
  });
}

}  // namespace dlrm
