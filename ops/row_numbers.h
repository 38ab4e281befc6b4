// The uniform numbers of single rows, as NumPy's Generator(Philox(key)) draws them.
#ifndef DLRM_OPS_ROW_NUMBERS_H_
#define DLRM_OPS_ROW_NUMBERS_H_

#include <cstdint>

#include "parallel.h"

namespace dlrm {

constexpr int kNumbersOfCount = 8;  // float32 numbers that a count of Philox 4x64 gives

// out [n, 8 counts]: the numbers in [0, 1) of n rows, each row by its number, row[i] >= 0. Row r's are those that NumPy's generator with this key
// draws as float32 after advance(r * counts).
void RowNumbers(const uint64_t key[2], int64_t counts, const int64_t* rows, int64_t n, float* out, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_NUMBERS_H_
