// Passes over activations and gradients of the dense layers that TensorFlow makes one after another, each in one.
//
// Sums are float32 in an order that depends on the shape alone, not on the number of threads.
#ifndef DLRM_OPS_DENSE_H_
#define DLRM_OPS_DENSE_H_

#include <cstdint>
#include <vector>

#include "elements.h"
#include "parallel.h"

namespace dlrm {

// y = relu(x + bias), x and y of shape [rows, columns], bias [columns]; the sum is rounded once. `y` may be `x`.
template <class T>
void BiasRelu(int64_t rows, int64_t columns, const T* x, const float* bias, T* y, const Threads& threads);

// Which units a step leaves out: those whose random bits are below the threshold. A row takes ceil(columns / 4) counts of the generator (philox.h).
struct Dropout {
  uint32_t key, threshold;
  uint64_t stream, first_row;  // the step's, and the number of the first row
  float scale;                 // of the units that are kept
};

// y = relu(x + bias), rounded, times the scale rounded to T, and -0 where the unit is left out: a relu gives no -0. `y` may be `x`.
template <class T>
void BiasReluDropout(int64_t rows, int64_t columns, const T* x, const float* bias, const Dropout& dropout, T* y, const Threads& threads);

// With y = relu(x + bias) of shape [rows, columns] and upstream, its gradient: gradient = upstream where y > 0, else 0; bias_gradient [columns] is
// its sum over the rows. `gradient` may be `upstream`. With a scale other than 1 the same of `BiasReluDropout`.
template <class T>
void ReluGradient(int64_t rows, int64_t columns, const T* upstream, const T* y, float scale, T* gradient, float* bias_gradient, const Threads& threads);

// out[i] = the sum of parts[.][i], by the balanced tree ((0 + 1) + (2 + 3)) + ...
template <class T>
void SumInPairs(int64_t size, const std::vector<const T*>& parts, float* out, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_DENSE_H_
