// The sparse optimizers' update of all tables of a worker, in place.
//
// It gives the same bits as the TensorFlow operations in training/optimizers/: the gradients of a row are summed in float32, from zero, in the
// order of the features that share its table, then of the ids of a sample, then of the samples; each is first divided by the loss scale and,
// if the feature's vector is a mean, by the sample's number of ids or the sum of their weights, then multiplied by the id's weight, if it has one.
// Each row is updated once, and every operation is rounded separately (-ffp-contract=off). So the result does not depend on the number of threads.
#ifndef DLRM_OPS_ROW_UPDATE_H_
#define DLRM_OPS_ROW_UPDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "elements.h"
#include "grouping.h"
#include "optimizer.h"
#include "parallel.h"

namespace dlrm {

// The part in the gradients of a feature or, where ids have weights, of a place in its lists.
struct Use {
  int64_t column;                    // first column in a sample's gradient
  const float* counts;               // number of ids of each sample or sum of their weights, for a mean; nullptr for a sum
  const int32_t* weights = nullptr;  // bits of the weight of each sample's id; nullptr for none
};

// A table, or some columns of one: [rows, width] values, slots of the same shape or [rows, 1].
struct Shard {
  float* table;
  float* slots[kMaxSlots];
  int64_t rows;
  int width;
  int grouped;            // index of its groups
  std::vector<Use> uses;  // in the order of the `TableIds::features` that were grouped
};

// Returns the facts of a rule; nullptr if there is no rule of that name.
const RuleFacts* FactsOf(const std::string& rule);

// Updates the rows that the groups name, see GroupIds. `samples` points to the first gradient element of every sample.
template <class G>
void UpdateRows(const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups, const std::vector<const G*>& samples,
                const Optimizer& optimizer, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_UPDATE_H_
