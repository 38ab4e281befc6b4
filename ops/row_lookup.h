// Lookup of the rows of all features of a worker, side by side. One pass replaces a gather for each feature, sums, casts and a concatenation.
//
// If a feature has several ids a sample, their rows are summed in float32 from zero, in the order of the ids, and for a mean divided by their number;
// no id gives zeros. If the ids have weights, each row is first multiplied by its weight, and a mean is divided by their sum, unless it is 0. Every
// operation is rounded separately (-ffp-contract=off). So the result does not depend on the number of threads.
#ifndef DLRM_OPS_ROW_LOOKUP_H_
#define DLRM_OPS_ROW_LOOKUP_H_

#include <cstdint>
#include <vector>

#include "elements.h"
#include "ids.h"
#include "parallel.h"

namespace dlrm {

// A feature's lookup in a table, or in some columns of one: [rows, width] values.
struct Source {
  const float* table;
  int64_t rows;
  int width;
  int64_t column;  // first column in a sample's output
  FeatureIds ids;
  bool mean;
};

// Writes `batch` samples of `length` elements each. Returns an id that is out of range, if there is one; then the output is incomplete.
template <class V>
BadId LookUpRows(const std::vector<Source>& sources, int64_t batch, int64_t length, V* out, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_LOOKUP_H_
