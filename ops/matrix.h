// Products of float32 activations with a layer's weights, which are packed once: for scoring one sample up to thousands.
//
// An output is summed over the inputs in an order that depends only on the layer's shape: not on the number of rows, nor on the slices of a batch.
#ifndef DLRM_OPS_MATRIX_H_
#define DLRM_OPS_MATRIX_H_

#include <cstdint>
#include <memory>

namespace dlrm {

// A layer: y = x W + b, with or without a ReLU, which keeps NaN.
class PackedLayer {
 public:
  // kernel [inputs, outputs], bias [outputs] or null; both are copied.
  PackedLayer(const float* kernel, const float* bias, int64_t inputs, int64_t outputs, bool relu);

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }

  // The strides are the distances between rows, in elements; between its rows y is not written. y must not overlap x.
  void Apply(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) const;

 private:
  struct Free {
    void operator()(float* memory) const;
  };
  using Memory = std::unique_ptr<float[], Free>;
  static Memory Allocate(int64_t size);

  int64_t inputs_, outputs_;
  bool relu_;
  Memory panels_;  // [ceil(outputs / kPanel), inputs, kPanel], filled with zeros
  Memory bias_;    // [ceil(outputs / kPanel), kPanel]
};

}  // namespace dlrm

#endif  // DLRM_OPS_MATRIX_H_
