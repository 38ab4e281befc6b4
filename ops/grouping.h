// The ids of a batch, grouped table by table: which of its samples name the same row.
#ifndef DLRM_OPS_GROUPING_H_
#define DLRM_OPS_GROUPING_H_

#include <cstdint>
#include <vector>

#include "groups.h"
#include "ids.h"
#include "parallel.h"

namespace dlrm {

// The ids of all the features that share a table of so many rows.
struct TableIds {
  std::vector<FeatureIds> features;
  int64_t rows;
};

// A position names a sample and the place of a feature among those of its table, in 31 bits: the sample is in the lower ones, this many.
int SampleBits(int64_t batch);

// Whether the positions of a table's ids can be told apart.
bool Countable(const std::vector<FeatureIds>& features, int64_t batch);

// Groups the ids of each table, into one or several `Groups` that have no row in common. A row's positions are in the order of the features,
// then of the ids of a sample, then of the samples. Returns an id that is out of range, if any is.
BadId GroupIds(const std::vector<TableIds>& tables, int64_t batch, const Threads& threads, std::vector<std::vector<Groups>>* groups);

// How many ids each sample of a batch has.
std::vector<float> CountIds(FeatureIds ids, int64_t batch, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_GROUPING_H_
