// The sparse optimizers' update of all the tables of a worker, in place.
//
// It gives the same bits as the TensorFlow operations in training/optimizers/sparse.py: the gradients of a repeated id are summed in float32,
// from zero, in the order of their occurrence, and each row is updated once, every operation rounded by itself (-ffp-contract=off).
// So nothing depends on the number of threads.
#ifndef DLRM_OPS_ROW_UPDATE_H_
#define DLRM_OPS_ROW_UPDATE_H_

#include <cstdint>
#include <vector>

#include "elements.h"
#include "groups.h"
#include "parallel.h"

namespace dlrm {

constexpr int kMaxSlots = 2;

enum class Rule { kSgd, kAdagrad, kAdam };
int SlotsOf(Rule rule);
int ConstantsOf(Rule rule);

struct Optimizer {
  Rule rule;
  float rate;                    // the learning rate; with Adam, after the bias correction
  std::vector<float> constants;  // adagrad: epsilon; adam: beta1, 1 - beta1, beta2, 1 - beta2, epsilon
  float loss_scale;              // what gradients are divided by
};

// A table, or some columns of one: [rows, width] values, slots of the same shape.
struct Piece {
  float* table;
  float* slots[kMaxSlots];
  int64_t rows;
  int width;
  int id_row;      // which groups are its ids
  int64_t column;  // its first in a sample's gradient
};

// Updates the rows that the groups name. `samples` holds the first gradient element of every sample.
template <class G>
void UpdateRows(const std::vector<Piece>& pieces, const std::vector<Groups>& groups, const std::vector<const G*>& samples, const Optimizer& optimizer,
                const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_UPDATE_H_
