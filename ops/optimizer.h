// An optimizer's rule and its numbers for one step.
#ifndef DLRM_OPS_OPTIMIZER_H_
#define DLRM_OPS_OPTIMIZER_H_

#include <string>
#include <vector>

namespace dlrm {

constexpr int kMaxSlots = 2;

// The inputs that a rule needs; the rules are in row_rules.h.
struct RuleFacts {
  const char* name;
  int slots, constants, scalars;
  bool row_slot[kMaxSlots];  // true for a slot of one number a row, [rows, 1]
};

struct Optimizer {
  std::string rule;
  std::vector<float> scalars;    // of this step: first the learning rate, for Adam after the bias correction
  std::vector<float> constants;  // see row_rules.h, for dense weights dense_update.h
  float loss_scale = 1;          // divisor of the gradients
};

}  // namespace dlrm

#endif  // DLRM_OPS_OPTIMIZER_H_
