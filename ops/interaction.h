// The dot-product interaction (Naumov et al., arXiv:1906.00091, section 2.1) and its gradient, a sample at a time in the first-level cache.
//
// With Z = [bottom, embeddings], N vectors of D elements: out = [bottom, Z_i . Z_j for j < i]; and with S the symmetric matrix of the dots'
// gradients, zero on the diagonal, dZ = S Z. Sums are float32 in an order that depends only on D: not on the number of threads, nor on the slices of
// a batch. TensorFlow sums in another order, so the last bits differ.
#ifndef DLRM_OPS_INTERACTION_H_
#define DLRM_OPS_INTERACTION_H_

#include "elements.h"
#include "interaction_shape.h"
#include "parallel.h"

namespace dlrm {

// bottom [samples, D], embeddings [samples, N - 1, D] -> out [samples, D + pairs]. For bfloat16 the processor's matrix tiles are used if `tiles` is
// set and the processor has them.
template <class T>
void Interact(const InteractionShape& shape, const T* bottom, const T* embeddings, T* out, bool tiles, const Threads& threads);

// Computes the gradients of bottom and embeddings from upstream, the gradient of out.
template <class T>
void InteractGradient(const InteractionShape& shape, const T* bottom, const T* embeddings, const T* upstream, T* bottom_gradient,
                      T* embeddings_gradient, bool tiles, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_INTERACTION_H_
