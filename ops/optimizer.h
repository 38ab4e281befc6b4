// An optimizer, as the update of rows takes it.
#ifndef DLRM_OPS_OPTIMIZER_H_
#define DLRM_OPS_OPTIMIZER_H_

#include <string>
#include <vector>

namespace dlrm {

constexpr int kMaxSlots = 2;

// What the operation must know of a rule; the rules are in row_rules.h.
struct RuleFacts {
  const char* name;
  int slots, constants, scalars;
  bool row_slot[kMaxSlots];  // one number a row, [rows, 1]
};

struct Optimizer {
  std::string rule;
  std::vector<float> scalars;    // of this step: the learning rate first; with Adam after the bias correction
  std::vector<float> constants;  // see row_rules.h
  float loss_scale;              // what gradients are divided by
};

}  // namespace dlrm

#endif  // DLRM_OPS_OPTIMIZER_H_
