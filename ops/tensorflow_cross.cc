// TensorFlow operations for the elementwise part of cross layers: signatures and checks.
#include "cross.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status CheckShapes(OpKernelContext* context, const Tensor& like, int first, int last, const Tensor& bias) {
  if (like.dims() != 2 || bias.dims() != 1 || bias.dim_size(0) != like.dim_size(1)) {
    return InvalidArgumentError(StrCat("expected [b, d] and a bias [d], received ", like.shape().DebugString(), " and ", bias.shape().DebugString()));
  }
  for (int i = first; i < last; ++i) {
    if (context->input(i).shape() != like.shape()) {
      return InvalidArgumentError(StrCat("expected ", like.shape().DebugString(), ", received ", context->input(i).shape().DebugString()));
    }
  }
  return absl::OkStatus();
}

REGISTER_OP("DlrmCross")
    .Input("first: T")
    .Input("products: T")
    .Input("last: T")
    .Input("bias: float")
    .Output("out: T")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shape));
      for (int i = 1; i < 3; ++i) TF_RETURN_IF_ERROR(context->Merge(shape, context->input(i), &shape));
      context->set_output(0, shape);
      return absl::OkStatus();
    })
    .Doc(R"doc(
A cross layer after its products: first * (products + bias) + last, [b, d]; the bias is [d].
)doc");

template <class T>
class CrossOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &first = context->input(0), &products = context->input(1), &last = context->input(2), &bias = context->input(3);
    OP_REQUIRES_OK(context, CheckShapes(context, first, 1, 3, bias));
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, first.shape(), &out));
    Guarded(context, [&](const Threads& threads) {
      Cross(first.dim_size(0), first.dim_size(1), Elements<T>(first), Elements<T>(products), bias.flat<float>().data(), Elements<T>(last),
            Elements<T>(out), threads);
    });
  }
};

DLRM_REGISTER_KERNELS("DlrmCross", CrossOp);

REGISTER_OP("DlrmCrossGradient")
    .Input("first: T")
    .Input("products: T")
    .Input("upstream: parts * T")
    .Input("known: sums * T")
    .Input("bias: float")
    .Output("by_last: T")
    .Output("by_products: T")
    .Output("by_first: T")
    .Output("by_bias: float")
    .Attr("parts: int >= 1")
    .Attr("sums: int >= 0")
    .Attr("last_is_first: bool")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shape));
      for (int i = 1; i + 1 < context->num_inputs(); ++i) TF_RETURN_IF_ERROR(context->Merge(shape, context->input(i), &shape));
      for (int i = 0; i < 3; ++i) context->set_output(i, shape);
      context->set_output(3, context->Vector(context->Dim(shape, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradients of DlrmCross.

upstream: the gradient with respect to the output is the sum of these one or two.
known: none, or a sum that by_first is added to.
last_is_first: by_last is added to by_first, too.
)doc");

template <class T>
class CrossGradientOp : public OpKernel {
 public:
  explicit CrossGradientOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("parts", &parts_));
    OP_REQUIRES_OK(context, context->GetAttr("sums", &sums_));
    OP_REQUIRES_OK(context, context->GetAttr("last_is_first", &last_is_first_));
    OP_REQUIRES(context, parts_ <= 2 && sums_ <= 1, InvalidArgumentError("expected at most two parts of upstream and one known sum"));
  }

  void Compute(OpKernelContext* context) override {
    const int of_bias = 2 + parts_ + sums_;
    const Tensor &first = context->input(0), &products = context->input(1), &bias = context->input(of_bias);
    OP_REQUIRES_OK(context, CheckShapes(context, first, 1, of_bias, bias));
    Tensor *by_last = nullptr, *by_products, *by_first, *by_bias;
    if (parts_ == 1) {
      context->set_output(0, context->input(2));
    } else {
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({3}, 0, first.shape(), &by_last));
    }
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({1}, 1, first.shape(), &by_products));
    if (sums_) {
      OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({2 + parts_}, 2, first.shape(), &by_first));
    } else {
      OP_REQUIRES_OK(context, context->allocate_output(2, first.shape(), &by_first));
    }
    OP_REQUIRES_OK(context, context->allocate_output(3, {first.dim_size(1)}, &by_bias));
    using Element = typename ElementOf<T>::type;
    const CrossGradients<Element> of{Elements<T>(context->input(2)),
                                     parts_ == 2 ? Elements<T>(context->input(3)) : nullptr,
                                     Elements<T>(first),
                                     Elements<T>(products),
                                     bias.flat<float>().data(),
                                     sums_ ? Elements<T>(context->input(2 + parts_)) : nullptr,
                                     last_is_first_,
                                     by_last ? Elements<T>(by_last) : nullptr,
                                     Elements<T>(by_products),
                                     Elements<T>(by_first),
                                     by_bias->flat<float>().data()};
    Guarded(context, [&](const Threads& threads) { CrossGradient(first.dim_size(0), first.dim_size(1), of, threads); });
  }

 private:
  int parts_, sums_;
  bool last_is_first_;
};

DLRM_REGISTER_KERNELS("DlrmCrossGradient", CrossGradientOp);

}  // namespace
}  // namespace dlrm
