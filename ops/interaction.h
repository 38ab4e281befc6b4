// The dot-product interaction (Naumov et al., arXiv:1906.00091, section 2.1) and its gradient, a sample at a time in the first-level cache.
//
// With Z = [bottom, embeddings], N vectors of D elements: out = [bottom, Z_i . Z_j for j < i]; and with S the symmetric matrix of the dots'
// gradients, zero on the diagonal, dZ = S Z. Sums are float32 in an order that depends on D alone: not on the number of threads, nor on how a
// batch is cut. It is another order than TensorFlow's, so last bits differ from its.
#ifndef DLRM_OPS_INTERACTION_H_
#define DLRM_OPS_INTERACTION_H_

#include "elements.h"
#include "interaction_shape.h"
#include "parallel.h"

namespace dlrm {

// bottom [samples, D], embeddings [samples, N - 1, D] -> out [samples, D + pairs]. bfloat16 goes through the processor's matrix tiles if `tiles` and
// where it has them.
template <class T>
void Interact(const InteractionShape& shape, const T* bottom, const T* embeddings, T* out, bool tiles, const Threads& threads);

// And with upstream, the gradient of out -> those of bottom and embeddings.
template <class T>
void InteractGradient(const InteractionShape& shape, const T* bottom, const T* embeddings, const T* upstream, T* bottom_gradient,
                      T* embeddings_gradient, bool tiles, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_INTERACTION_H_
