// TensorFlow operations for the interaction: signatures and checks.
#include "interaction.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

REGISTER_OP("DlrmInteract")
    .Input("bottom: T")
    .Input("embeddings: T")
    .Output("out: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("tiles: bool = true")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) -> absl::Status {
      tensorflow::shape_inference::ShapeHandle bottom, embeddings;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &bottom));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 3, &embeddings));
      tensorflow::shape_inference::DimensionHandle width = context->UnknownDim();
      if (context->ValueKnown(context->Dim(bottom, 1)) && context->ValueKnown(context->Dim(embeddings, 1))) {
        const int64_t features = context->Value(context->Dim(embeddings, 1));
        width = context->MakeDim(context->Value(context->Dim(bottom, 1)) + features * (features + 1) / 2);
      }
      context->set_output(0, context->Matrix(context->Dim(bottom, 0), width));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The dot-product interaction of DLRM.

bottom: [b, D].
embeddings: [b, F, D].
out: [b, D + (F + 1) F / 2]: bottom, then the dot products (1, 0), (2, 0), (2, 1), ... of the F + 1 vectors.
tiles: use the processor's matrix tiles for bfloat16, if it has them.
)doc");

REGISTER_OP("DlrmInteractGradient")
    .Input("bottom: T")
    .Input("embeddings: T")
    .Input("upstream: T")
    .Output("bottom_gradient: T")
    .Output("embeddings_gradient: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("tiles: bool = true")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) -> absl::Status {
      context->set_output(0, context->input(0));
      context->set_output(1, context->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradients of the inputs of DlrmInteract, given the gradient of its output.
)doc");

absl::Status ReadInteractionShape(const Tensor& bottom, const Tensor& embeddings, InteractionShape* shape) {
  if (bottom.dims() != 2 || embeddings.dims() != 3 || bottom.dim_size(0) != embeddings.dim_size(0) || bottom.dim_size(1) != embeddings.dim_size(2) ||
      embeddings.dim_size(1) > 4096 || bottom.dim_size(1) < 1 || bottom.dim_size(1) > (1 << 20)) {
    return InvalidArgumentError(
        StrCat("expected [b, D] and [b, F, D], received ", bottom.shape().DebugString(), " and ", embeddings.shape().DebugString()));
  }
  *shape = {bottom.dim_size(0), static_cast<int>(embeddings.dim_size(1)) + 1, static_cast<int>(bottom.dim_size(1))};
  return absl::OkStatus();
}

// The common base of both operations.
class Interaction : public OpKernel {
 public:
  explicit Interaction(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, context->GetAttr("tiles", &tiles_)); }

 protected:
  bool tiles_;
};

template <class T>
class InteractOp : public Interaction {
 public:
  using Interaction::Interaction;

  void Compute(OpKernelContext* context) override {
    const Tensor &bottom = context->input(0), &embeddings = context->input(1);
    InteractionShape shape;
    OP_REQUIRES_OK(context, ReadInteractionShape(bottom, embeddings, &shape));
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, {shape.samples, shape.width + shape.pairs()}, &out));
    Guarded(context, [&](const Threads& threads) {
      Interact(shape, Elements<T>(bottom), Elements<T>(embeddings), Elements<T>(out), tiles_, threads);
    });
  }
};

template <class T>
class InteractGradientOp : public Interaction {
 public:
  using Interaction::Interaction;

  void Compute(OpKernelContext* context) override {
    const Tensor &bottom = context->input(0), &embeddings = context->input(1), &upstream = context->input(2);
    InteractionShape shape;
    OP_REQUIRES_OK(context, ReadInteractionShape(bottom, embeddings, &shape));
    OP_REQUIRES(context, upstream.dims() == 2 && upstream.dim_size(0) == shape.samples && upstream.dim_size(1) == shape.width + shape.pairs(),
                InvalidArgumentError(StrCat("upstream: expected [", shape.samples, ", ", shape.width + shape.pairs(), "], received ",
                                            upstream.shape().DebugString())));
    Tensor *bottom_gradient, *embeddings_gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, bottom.shape(), &bottom_gradient));
    OP_REQUIRES_OK(context, context->allocate_output(1, embeddings.shape(), &embeddings_gradient));
    PreferHugePages(embeddings_gradient);
    Guarded(context, [&](const Threads& threads) {
      InteractGradient(shape, Elements<T>(bottom), Elements<T>(embeddings), Elements<T>(upstream), Elements<T>(bottom_gradient),
                       Elements<T>(embeddings_gradient), tiles_, threads);
    });
  }
};

DLRM_REGISTER_KERNELS("DlrmInteract", InteractOp);
DLRM_REGISTER_KERNELS("DlrmInteractGradient", InteractGradientOp);

}  // namespace
}  // namespace dlrm
