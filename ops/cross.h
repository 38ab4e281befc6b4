// The elementwise part of the cross layers of DCN V2 (Wang et al., arXiv:2008.13535), around their products.
#ifndef DLRM_OPS_CROSS_H_
#define DLRM_OPS_CROSS_H_

#include <cstdint>

#include "parallel.h"

namespace dlrm {

// out = first * (products + bias) + last for arrays [rows, columns] and a bias [columns]; computed in float32 and rounded once. `out` may be `products`.
template <class T>
void Cross(int64_t rows, int64_t columns, const T* first, const T* products, const float* bias, const T* last, T* out, const Threads& threads);

// The inputs and outputs of CrossGradient, [rows, columns] but for the biases.
template <class T>
struct CrossGradients {
  const T *upstream, *more;  // the gradient with respect to the layer's output is their sum; `more` may be null
  const T *first, *products;
  const float* bias;    // [columns]
  const T* known;       // a sum that by_first is added to; null for none
  bool last_is_first;   // by_last is added to by_first, too
  T *by_last, *by_products, *by_first;  // by_last is not written where `more` is null: it is `upstream`
  float* by_bias;                       // [columns]
};

// The gradients of Cross. Each output may be the input of its own type that it replaces: by_last `more`, by_products `products`, by_first `known`.
template <class T>
void CrossGradient(int64_t rows, int64_t columns, const CrossGradients<T>& of, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_CROSS_H_
