// The update of the dense weights by their optimizer, all in one pass.
#ifndef DLRM_OPS_DENSE_UPDATE_H_
#define DLRM_OPS_DENSE_UPDATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer.h"
#include "parallel.h"

namespace dlrm {

// An array before and after the step; both may be the same memory.
struct Changed {
  const float* before;
  float* after;
};

// An array of weights, its gradient and its optimizer's slots.
struct DenseWeights {
  int64_t count;
  const float* gradient;
  Changed weights, slots[kMaxSlots];
};

// The inputs that a rule for dense weights needs.
struct DenseRuleFacts {
  int slots, constants;
};

// Returns null for any other rule than these. They are the rules of Keras's optimizers, rounded after each operation as TensorFlow rounds:
//
//   sgd       weights -= g rate
//   momentum  m = m momentum - g rate; weights += m                                                       constants: momentum
//   adagrad   a += g^2; weights -= rate g / sqrt(a + epsilon)                                             constants: epsilon
//   adam      m += (g - m) rest1; v += (g^2 - v) rest2; weights -= m rate / (sqrt(v) + epsilon)           constants: beta1, rest1, beta2, rest2, epsilon
//   rmsprop   v = rho v + rest g^2; weights -= rate g / (sqrt(v + inside) + outside)                      constants: rho, rest, inside, outside
const DenseRuleFacts* DenseFactsOf(const std::string& rule);

// Updates all arrays by a rule that `DenseFactsOf` knows, with one scalar: the learning rate, for Adam after the bias correction.
void UpdateDense(const std::vector<DenseWeights>& all, const Optimizer& optimizer, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_DENSE_UPDATE_H_
