// The gate of a stream of FinalMLP: each column is weighed by twice the sigmoid of its logit.
#ifndef DLRM_OPS_GATE_H_
#define DLRM_OPS_GATE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "elements.h"
#include "parallel.h"

namespace dlrm {

// 2 / (1 + exp(-x)); a NaN stays one. Loops over it are vectorised, and a value's bits do not depend on its place.
inline float TwiceSigmoid(float x) {
  // exp(y) = 2^k exp(r), where k is the integer next to y / ln 2, and |r| <= ln 2 / 2, whose series ends below 1e-8
  const float y = std::min(std::max(-x, -87.0f), 87.0f);
  const float rounded = y * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: k is in the last bits
  const float k = rounded - 12582912.0f, r = (y - k * 0.693359375f) + k * 2.12194440e-4f;
  const float series = 1 + r * (1 + r * (1 / 2.0f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f))))));
  return 2 / (1 + series * FloatOf(BitsOf(1.0f) + (BitsOf(rounded) << 23)));
}

// out[s][i] = inputs[i] * TwiceSigmoid(logits[s][i]) for the `size` elements of each stream s, rounded to T.
template <class T>
void Gate(int64_t size, const float* inputs, const std::vector<const float*>& logits, const std::vector<T*>& out, const Threads& threads);

// The gradients of Gate with respect to the inputs, summed over the streams in their order, and to each stream's logits.
template <class T>
void GateGradient(int64_t size, const float* inputs, const std::vector<const float*>& logits, const std::vector<const T*>& upstream, float* by_inputs,
                  const std::vector<float*>& by_logits, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_GATE_H_
