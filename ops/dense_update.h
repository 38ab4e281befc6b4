// The update of the dense weights by gradient descent, all in one pass.
#ifndef DLRM_OPS_DENSE_UPDATE_H_
#define DLRM_OPS_DENSE_UPDATE_H_

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace dlrm {

// An array of weights: after = before - rate gradient, rounded after each operation. `after` may be `before`.
struct DenseWeights {
  int64_t count;
  const float *before, *gradient;
  float* after;
};

void Descend(const std::vector<DenseWeights>& all, float rate, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_DENSE_UPDATE_H_
