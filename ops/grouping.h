// Grouping of a batch's ids, table by table: the positions in the batch of each distinct id.
#ifndef DLRM_OPS_GROUPING_H_
#define DLRM_OPS_GROUPING_H_

#include <cstdint>
#include <vector>

#include "groups.h"
#include "ids.h"
#include "parallel.h"

namespace dlrm {

// The ids of all features that share a table of `rows` rows.
struct TableIds {
  std::vector<FeatureIds> features;
  int64_t rows;
};

// Returns the number of bits for a sample. A position has 31 bits: the sample in these lower bits, the index of the feature among those of its table
// in the upper ones.
int SampleBits(int64_t batch);

// Returns true if the ids of a table are few enough to have distinct positions.
bool Countable(const std::vector<FeatureIds>& features, int64_t batch);

// Groups the ids of each table into one or several `Groups` that have no row in common. A row's positions are in the order of the features,
// then of the ids of a sample, then of the samples. Returns an id that is out of range, if there is one.
BadId GroupIds(const std::vector<TableIds>& tables, int64_t batch, const Threads& threads, std::vector<std::vector<Groups>>* groups);

// Returns the number of ids of each sample of a batch; if the ids have weights, the sum of these, or 1 where it is 0.
std::vector<float> CountIds(FeatureIds ids, int64_t batch, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_GROUPING_H_
