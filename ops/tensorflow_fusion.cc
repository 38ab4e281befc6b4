// TensorFlow operations for the fusion of FinalMLP's streams: signatures and checks.
#include <vector>

#include "fusion.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("DlrmFuse")
    .Input("x: T")
    .Input("z: T")
    .Input("linear: float")
    .Input("bias: float")
    .Input("kernels: heads * T")
    .Output("logits: float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("heads: int >= 1")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle x;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &x));
      context->set_output(0, context->Vector(context->Dim(x, 0)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The fusion of FinalMLP's streams: bias + linear [x, z] + the sum over the heads of x_h W_h z_h; see fusion.h.

x: [b, heads left], z: [b, heads right].
linear: [heads left + heads right, 1].
bias: [1].
kernels: W_h, [left, right] each.
logits: [b].
)doc");

REGISTER_OP("DlrmFuseGradient")
    .Input("x: T")
    .Input("z: T")
    .Input("linear: float")
    .Input("bias: float")
    .Input("kernels: heads * T")
    .Input("upstream: float")
    .Output("by_x: T")
    .Output("by_z: T")
    .Output("by_linear: float")
    .Output("by_bias: float")
    .Output("by_kernels: heads * float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("heads: int >= 1")
    .Attr("slices: int >= 1")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradients of DlrmFuse, given that with respect to the logits.

slices: the number of equal slices of the samples; the sums of the slices' samples are added in pairs.
)doc");

// The inputs that both operations have: two streams, the linear weights, the bias and the kernels.
template <class T>
absl::Status ReadFusion(OpKernelContext* context, int heads, Fusion<typename ElementOf<T>::type>* fusion) {
  const Tensor &x = context->input(0), &z = context->input(1), &linear = context->input(2), &bias = context->input(3), &kernel = context->input(4);
  bool fits = x.dims() == 2 && z.dims() == 2 && x.dim_size(0) == z.dim_size(0) && kernel.dims() == 2 && kernel.NumElements() > 0 &&
              x.dim_size(1) == heads * kernel.dim_size(0) && z.dim_size(1) == heads * kernel.dim_size(1) && bias.NumElements() == 1 &&
              linear.NumElements() == x.dim_size(1) + z.dim_size(1);
  for (int head = 1; head < heads; ++head) fits = fits && context->input(4 + head).shape() == kernel.shape();
  if (!fits) {
    return InvalidArgumentError(StrCat("expected [b, ", heads, " i], [b, ", heads, " j], [", heads, " (i + j), 1], [1] and kernels [i, j], received ",
                                       x.shape().DebugString(), ", ", z.shape().DebugString(), ", ", linear.shape().DebugString(), ", ",
                                       bias.shape().DebugString(), " and ", kernel.shape().DebugString()));
  }
  *fusion = {x.dim_size(0), heads, kernel.dim_size(0), kernel.dim_size(1), Elements<T>(x), Elements<T>(z), {}, linear.flat<float>().data()};
  for (int head = 0; head < heads; ++head) fusion->kernels.push_back(Elements<T>(context->input(4 + head)));
  return absl::OkStatus();
}

template <class T>
class FuseOp : public OpKernel {
 public:
  explicit FuseOp(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_)); }

  void Compute(OpKernelContext* context) override {
    Fusion<typename ElementOf<T>::type> fusion;
    OP_REQUIRES_OK(context, ReadFusion<T>(context, heads_, &fusion));
    Tensor* logits;
    OP_REQUIRES_OK(context, context->allocate_output(0, {fusion.samples}, &logits));
    Guarded(context, [&](const Threads& threads) { Fuse(fusion, context->input(3).flat<float>()(0), logits->flat<float>().data(), threads); });
  }

 private:
  int heads_;
};

template <class T>
class FuseGradientOp : public OpKernel {
 public:
  explicit FuseGradientOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("heads", &heads_));
    OP_REQUIRES_OK(context, context->GetAttr("slices", &slices_));
  }

  void Compute(OpKernelContext* context) override {
    Fusion<typename ElementOf<T>::type> fusion;
    OP_REQUIRES_OK(context, ReadFusion<T>(context, heads_, &fusion));
    const Tensor& upstream = context->input(4 + heads_);
    OP_REQUIRES(context, upstream.NumElements() == fusion.samples && fusion.samples % slices_ == 0,
                InvalidArgumentError(StrCat("expected gradients of ", fusion.samples, " logits in ", slices_, " equal slices, received ",
                                            upstream.shape().DebugString())));
    std::vector<Tensor*> outputs(4 + heads_);
    for (int i = 0; i < 4 + heads_; ++i) OP_REQUIRES_OK(context, context->allocate_output(i, context->input(i).shape(), &outputs[i]));
    FusionGradients<typename ElementOf<T>::type> gradients{Elements<T>(outputs[0]), Elements<T>(outputs[1]), {}, Elements<float>(outputs[2]),
                                                           Elements<float>(outputs[3])};
    for (int head = 0; head < heads_; ++head) gradients.by_kernels.push_back(Elements<float>(outputs[4 + head]));
    Guarded(context, [&](const Threads& threads) { FuseGradient(fusion, upstream.flat<float>().data(), slices_, gradients, threads); });
  }

 private:
  int heads_, slices_;
};

DLRM_REGISTER_KERNELS("DlrmFuse", FuseOp);
DLRM_REGISTER_KERNELS("DlrmFuseGradient", FuseGradientOp);

}  // namespace
}  // namespace dlrm
