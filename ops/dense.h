// Elementwise work on activations and gradients of the dense layers, in one pass over memory where TensorFlow makes several.
//
// Sums are float32 in an order that depends only on the shape, not on the number of threads.
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

// The dropout of a step: units whose random bits are below the threshold are dropped. A row takes ceil(columns / 4) counts of the generator, see
// philox.h.
struct Dropout {
  uint32_t key, threshold;
  uint64_t stream, first_row;  // the step's stream of the generator, and the number of the first row
  float scale;                 // factor of the units that are kept
};

// y = relu(x + bias), rounded, times the scale rounded to T, and -0 for dropped units: a relu never gives -0, so it marks them. `y` may be `x`.
template <class T>
void BiasReluDropout(int64_t rows, int64_t columns, const T* x, const float* bias, const Dropout& dropout, T* y, const Threads& threads);

// Applies dropout to row number `row` of y.
template <class T>
void DropRow(int64_t columns, const Dropout& dropout, int64_t row, T* y);

// Computes the gradients of y = relu(x + bias), given y and upstream, the gradient of y, of shape [rows, columns]: gradient = upstream where y > 0,
// else 0; bias_gradient [columns] is its sum over the rows: of each of the equal slices of the rows, then of the slices by the balanced tree. `gradient`
// may be `upstream`. With a scale other than 1, computes the gradients of `BiasReluDropout`.
template <class T>
void ReluGradient(int64_t slices, int64_t rows, int64_t columns, const T* upstream, const T* y, float scale, T* gradient, float* bias_gradient,
                  const Threads& threads);

// out[i] = x[i], rounded to T.
template <class T>
void NarrowAll(int64_t size, const float* x, T* out, const Threads& threads);

// out[i] = the sum over all parts of part[i], by the balanced tree ((0 + 1) + (2 + 3)) + ...
template <class T>
void SumInPairs(int64_t size, const std::vector<const T*>& parts, float* out, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_DENSE_H_
