// Batch normalisation followed by a ReLU (Ioffe and Szegedy, arXiv:1502.03167), in two passes forward and two backward.
//
// The statistics of a batch are sums over its real samples, each times its weight: rows whose weight is 0 are padding, or left out like it. Each sum is computed over a slice of the batch, in an
// order that depends only on the shape; the caller adds the slices.
#ifndef DLRM_OPS_BATCH_NORM_H_
#define DLRM_OPS_BATCH_NORM_H_

#include <cstdint>

#include "dense.h"
#include "parallel.h"

namespace dlrm {

// sums[0, columns) = the weighted sum of each column of x over the rows, sums[columns, 2 * columns) = that of the squares. x is [rows, columns].
template <class T>
void ColumnMoments(int64_t rows, int64_t columns, const T* x, const float* weights, double* sums, const Threads& threads);

// y = relu((x - mean) * scale + shift), with dropout unless it is null; row 0 of x is the dropout's row `first_row`. `y` may be `x`. `factors` are
// mean, scale and shift, [columns] each.
template <class T>
void NormaliseRelu(int64_t rows, int64_t columns, const T* x, const float* factors, const Dropout* dropout, int64_t first_row, T* y, const Threads& threads);

// The arrays that the backward passes read, all of shape [rows, columns] but the weights, [rows].
template <class T>
struct NormalisedRows {
  const T *upstream, *y, *x;  // the gradient with respect to y, the output, and the input of the normalisation
  const float* weights;
  float dropout_scale;  // 1 without dropout
};

// With g the gradient before the ReLU, which has the weight in it and is 0 for padding, and z = (x - mean) * inverse the normalised input: sums[0, columns) = the sum of g of each
// column over the rows, sums[columns, 2 * columns) = that of g * z.
template <class T>
void NormaliseGradientSums(int64_t rows, int64_t columns, const NormalisedRows<T>& of, const double* mean, const double* inverse, float* sums,
                           const Threads& threads);

// gradient = g * by_gradient + weight * ((x - mean) * by_input + constant), 0 for padding. `factors` are mean, by_gradient, by_input and constant,
// [columns] each.
template <class T>
void NormaliseGradient(int64_t rows, int64_t columns, const NormalisedRows<T>& of, const float* factors, T* gradient, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_BATCH_NORM_H_
