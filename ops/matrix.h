// Products of activations with a layer's weights, which are packed once: for scoring one sample up to thousands.
//
// In bfloat16 weights and activations are rounded to it, and their products are summed in float32. An output is summed over the inputs in an order that depends only on the layer's shape: not on the number of rows, nor on the slices of a batch.
#ifndef DLRM_OPS_MATRIX_H_
#define DLRM_OPS_MATRIX_H_

#include <cstdint>

#include "elements.h"
#include "memory.h"
#include "parallel.h"

namespace dlrm {

// A layer: y = x W + b, with or without a ReLU, which keeps NaN.
class PackedLayer {
 public:
  // kernel [inputs, outputs], bias [outputs] or null; both are copied.
  PackedLayer(const float* kernel, const float* bias, int64_t inputs, int64_t outputs, bool relu, bool bfloat16 = false);

  static constexpr int64_t kDivided = 128 << 10;  // the fewest bytes of weights that several threads divide

  int64_t bytes() const;  // of the weights
  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }

  // Elements that `Apply` needs in bfloat16 to round so many rows.
  static int64_t RoundedSize(int64_t rows, int64_t inputs);

  // The strides are the distances between rows, in elements; between its rows y is not written. y must not overlap x. In bfloat16 `rounded` has
  // RoundedSize(rows, inputs()) elements, which are overwritten. Several threads divide the outputs where the weights are large: for threads that begin
  // at once.
  void Apply(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride, BFloat16* rounded = nullptr,
             const Threads& threads = kCallingThread) const;

 private:
  int64_t inputs_, outputs_, depth_;  // depth: inputs or, in bfloat16, pairs of them
  bool relu_, bfloat16_, tiles_;  // tiles: bfloat16 is multiplied by the processor's matrix tiles
  Memory<float> panels_;  // [ceil(outputs / kPanel), depth, kPanel], filled with zeros; in bfloat16 an element has the weights of two inputs
  Memory<float> bias_;    // [ceil(outputs / kPanel), kPanel]
};

}  // namespace dlrm

#endif  // DLRM_OPS_MATRIX_H_
