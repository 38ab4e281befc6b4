// Lookup of the rows of all the tables of a worker, side by side: what one gather a table, casts and a concatenation give, in one pass.
#ifndef DLRM_OPS_ROW_LOOKUP_H_
#define DLRM_OPS_ROW_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "elements.h"
#include "parallel.h"

namespace dlrm {

// A table, or some columns of one: [rows, width] values.
struct Source {
  const float* table;
  int64_t rows;
  int width;
  int64_t column;      // its first in a sample's output
  const int32_t* ids;  // of the samples
};

// Where an id is out of range.
struct BadId {
  int source = -1;
  int64_t position = 0;
};

// Writes `batch` samples of `length` elements each. Returns an id that is out of range (then the output is not complete), or source -1.
template <class V>
BadId LookUpRows(const std::vector<Source>& sources, int64_t batch, int64_t length, V* out, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_LOOKUP_H_
