// Tests of the rows' numbers against Philox 4x64 in plain code, which the known answers of its authors check.
#include "row_numbers.h"

#include <array>

#include "check.h"

namespace {

using Words = std::array<uint64_t, 4>;
typedef unsigned __int128 Wide;

Words Philox(Words x, uint64_t key0, uint64_t key1) {
  for (int round = 0; round < 10; ++round) {
    const Wide left = Wide{x[0]} * 0xD2E7470EE14C6C93, right = Wide{x[2]} * 0xCA5A826395121157;
    x = {static_cast<uint64_t>(right >> 64) ^ x[1] ^ key0, static_cast<uint64_t>(right), static_cast<uint64_t>(left >> 64) ^ x[3] ^ key1,
         static_cast<uint64_t>(left)};
    key0 += 0x9E3779B97F4A7C15, key1 += 0xBB67AE8584CAA73B;
  }
  return x;
}

void TestRows(const uint64_t (&key)[2], int64_t counts, int64_t n, const dlrm::Threads& threads) {
  std::mt19937_64 bits(static_cast<uint64_t>(counts + n));
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(static_cast<int64_t>(bits() >> (1 + bits() % 62)));
  if (n) rows[n / 2] = INT64_MAX;
  std::vector<float> out(n * counts * 8);
  dlrm::RowNumbers(key, counts, rows.data(), n, out.data(), threads);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < counts; ++j) {
      const Wide count = static_cast<Wide>(rows[i]) * counts + j + 1;
      const Words words = Philox({static_cast<uint64_t>(count), static_cast<uint64_t>(count >> 64), 0, 0}, key[0], key[1]);
      for (int k = 0; k < 8; ++k) {
        const uint32_t half = static_cast<uint32_t>(words[k / 2] >> (k % 2 * 32));
        CHECK(out[(i * counts + j) * 8 + k] == static_cast<float>(half >> 8) * 0x1p-24f);
      }
    }
  }
}

}  // namespace

void TestRowNumbers() {
  constexpr uint64_t kOnes = ~uint64_t{0};
  CHECK(Philox({}, 0, 0) == (Words{0x16554d9eca36314c, 0xdb20fe9d672d0fdc, 0xd7e772cee186176b, 0x7e68b68aec7ba23b}));
  const Words ones = Philox({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes);
  CHECK(ones == (Words{0x87b092c3013fe90b, 0x438c3c67be8d0224, 0x9cc7d7c69cd777b6, 0xa09caebf594f0ba0}));
  for (const int64_t counts : {1, 2, 3, 16, 17, 5000}) {
    for (const int64_t n : {0, 1, 2, 31, 33}) TestRows({0x243f6a8885a308d3, kOnes}, counts, n, dlrm::kCallingThread);
  }
  TestRows({1, 0}, 16, 1000, kThreeThreads);
}
