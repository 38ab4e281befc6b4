// TensorFlow operations for the elementwise passes of the dense layers: signatures and checks.
#include <vector>

#include "dense.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_dropout.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ShapeOfProducts(InferenceContext* context) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

REGISTER_OP("DlrmBiasRelu")
    .Input("products: T")
    .Input("bias: float")
    .Output("outputs: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(ShapeOfProducts)
    .Doc(R"doc(
relu(products + bias), the sum in float32.

products: [b, out].
bias: [out].
)doc");

template <class T>
class BiasReluOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &products = context->input(0), &bias = context->input(1);
    OP_REQUIRES(context, products.dims() == 2 && bias.dims() == 1 && products.dim_size(1) == bias.dim_size(0),
                InvalidArgumentError(
                    StrCat("expected [b, out] and [out], received ", products.shape().DebugString(), " and ", bias.shape().DebugString())));
    Tensor* outputs;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, products.shape(), &outputs));
    Guarded(context, [&](const Threads& threads) {
      BiasRelu(products.dim_size(0), products.dim_size(1), Elements<T>(products), bias.flat<float>().data(), Elements<T>(outputs), threads);
    });
  }
};

DLRM_REGISTER_KERNELS("DlrmBiasRelu", BiasReluOp);

REGISTER_OP("DlrmBiasReluDropout")
    .Input("products: T")
    .Input("bias: float")
    .Input("place: int64")
    .Output("outputs: T")
    .Attr("key: int >= 0")
    .Attr("threshold: int >= 0")
    .Attr("scale: float")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(ShapeOfProducts)
    .Doc(R"doc(
relu(products + bias) times the scale where the random bits are at or above the threshold, else -0.

products: [b, out].
bias: [out].
place: [2], the step and the number of the first sample.
key: the generator's key; it and the threshold are numbers of 32 bits.
)doc");

template <class T>
class BiasReluDropoutOp : public OpKernel {
 public:
  explicit BiasReluDropoutOp(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, ReadDropout(context, &dropout_)); }

  void Compute(OpKernelContext* context) override {
    const Tensor &products = context->input(0), &bias = context->input(1), &place = context->input(2);
    OP_REQUIRES(context, products.dims() == 2 && bias.dims() == 1 && products.dim_size(1) == bias.dim_size(0) && place.NumElements() == 2,
                InvalidArgumentError(StrCat("expected [b, out], [out] and [2], received ", products.shape().DebugString(), ", ",
                                            bias.shape().DebugString(), " and ", place.shape().DebugString())));
    const Dropout dropout = At(dropout_, place);
    Tensor* outputs;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, products.shape(), &outputs));
    Guarded(context, [&](const Threads& threads) {
      BiasReluDropout(products.dim_size(0), products.dim_size(1), Elements<T>(products), bias.flat<float>().data(), dropout, Elements<T>(outputs),
                      threads);
    });
  }

 private:
  Dropout dropout_{};
};

DLRM_REGISTER_KERNELS("DlrmBiasReluDropout", BiasReluDropoutOp);

REGISTER_OP("DlrmReluGradient")
    .Input("upstream: T")
    .Input("outputs: T")
    .Output("gradient: T")
    .Output("bias_gradient: float")
    .Attr("scale: float = 1")
    .Attr("slices: int >= 1 = 1")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shape));
      TF_RETURN_IF_ERROR(context->Merge(shape, context->input(1), &shape));
      context->set_output(0, shape);
      context->set_output(1, context->Vector(context->Dim(shape, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradients of relu(x + bias) with respect to x and to the bias.

upstream: [b, out].
outputs: the layer's outputs, [b, out].
gradient: upstream times the scale where the output is positive, else 0.
bias_gradient: [out], the sum of `gradient` over the samples: of each slice, then of the slices in pairs.
scale: the dropout's factor of the units that are kept.
slices: the number of equal slices of the samples.
)doc");

template <class T>
class ReluGradientOp : public OpKernel {
 public:
  explicit ReluGradientOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(context, context->GetAttr("slices", &slices_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &upstream = context->input(0), &outputs = context->input(1);
    OP_REQUIRES(context, upstream.dims() == 2 && upstream.shape() == outputs.shape() && upstream.dim_size(0) % slices_ == 0,
                InvalidArgumentError(StrCat("expected [b, out] twice, in ", slices_, " equal slices, received ", upstream.shape().DebugString(), " and ",
                                            outputs.shape().DebugString())));
    Tensor *gradient, *bias_gradient;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({0}, 0, upstream.shape(), &gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, {upstream.dim_size(1)}, &bias_gradient));
    Guarded(context, [&](const Threads& threads) {
      ReluGradient(slices_, upstream.dim_size(0), upstream.dim_size(1), Elements<T>(upstream), Elements<T>(outputs), scale_, Elements<T>(gradient),
                   bias_gradient->flat<float>().data(), threads);
    });
  }

 private:
  float scale_;
  int64_t slices_;
};

DLRM_REGISTER_KERNELS("DlrmReluGradient", ReluGradientOp);

REGISTER_OP("DlrmNarrow")
    .Input("values: float")
    .Output("narrowed: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Values in another type, rounded to nearest, ties to even.
)doc");

template <class T>
class NarrowOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& values = context->input(0);
    Tensor* narrowed;
    OP_REQUIRES_OK(context, context->allocate_output(0, values.shape(), &narrowed));
    Guarded(context, [&](const Threads& threads) { NarrowAll(values.NumElements(), values.flat<float>().data(), Elements<T>(narrowed), threads); });
  }
};

DLRM_REGISTER_KERNELS("DlrmNarrow", NarrowOp);

REGISTER_OP("DlrmSumInPairs")
    .Input("parts: num_parts * T")
    .Output("sum: float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_parts: int >= 1")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle shape = context->input(0);
      for (int i = 1; i < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(context->Merge(shape, context->input(i), &shape));
      context->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"doc(
The sum of tensors of equal shape in float32, by the balanced tree ((0 + 1) + (2 + 3)) + ...
)doc");

template <class T>
class SumInPairsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<const typename ElementOf<T>::type*> parts;
    for (int i = 0; i < context->num_inputs(); ++i) {
      OP_REQUIRES(context, context->input(i).shape() == context->input(0).shape(),
                  InvalidArgumentError(StrCat("parts: expected equal shapes, received ", context->input(0).shape().DebugString(), " and ",
                                              context->input(i).shape().DebugString())));
      parts.push_back(Elements<T>(context->input(i)));
    }
    Tensor* sum;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &sum));
    Guarded(context, [&](const Threads& threads) { SumInPairs(sum->NumElements(), parts, sum->flat<float>().data(), threads); });
  }
};

DLRM_REGISTER_KERNELS("DlrmSumInPairs", SumInPairsOp);

}  // namespace
}  // namespace dlrm
