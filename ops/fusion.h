// The fusion of FinalMLP's two streams (Mao et al., arXiv:2304.00902, equation 9): bias + w [x, z] + the sum over the heads h of x_h W_h z_h.
#ifndef DLRM_OPS_FUSION_H_
#define DLRM_OPS_FUSION_H_

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace dlrm {

// x [samples, heads * left] and z [samples, heads * right] are cut into a piece for each head; W_h [left, right], w [heads * left + heads * right].
template <class T>
struct Fusion {
  int64_t samples, heads, left, right;
  const T *x, *z;
  std::vector<const T*> kernels;  // W_h
  const float* linear;            // w
};

// Sums in float32. A sample's bits do not depend on the other samples.
template <class T>
void Fuse(const Fusion<T>& fusion, float bias, float* logits, const Threads& threads);

template <class T>
struct FusionGradients {
  T *by_x, *by_z;                  // as x and z
  std::vector<float*> by_kernels;  // as W_h
  float *by_linear, *by_bias;      // as w; one number
};

// The gradients of Fuse, given that with respect to the logits. Those of the weights are summed over the samples of each of `slices` equal slices, in an
// order that depends on the slice's size only; the slices' sums are added by the balanced tree ((0 + 1) + (2 + 3)) + ...
template <class T>
void FuseGradient(const Fusion<T>& fusion, const float* upstream, int64_t slices, const FusionGradients<T>& gradients, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_FUSION_H_
