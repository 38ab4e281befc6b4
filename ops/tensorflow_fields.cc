// TensorFlow operations for the vectors of all features and for the gates of FinalMLP: signatures and checks.
#include <type_traits>
#include <vector>

#include "fields.h"
#include "gate.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::shape_inference::InferenceContext;

REGISTER_OP("DlrmFields")
    .Input("numerical: float")
    .Input("kernel: float")
    .Input("embeddings: T")
    .Output("joined: U")
    .Output("sums: float")
    .Output("total: float")
    .Output("picked: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("U: {float, bfloat16, half}")
    .Attr("features: int >= 1")
    .Attr("weighs: bool")
    .Attr("pairs: bool")
    .Attr("joins: bool")
    .Attr("picks: list(int)")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      tensorflow::shape_inference::ShapeHandle numerical, kernel, embeddings;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &numerical));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &kernel));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(2), 2, &embeddings));
      int64_t features;
      bool pairs, joins;
      std::vector<int64_t> picks;
      TF_RETURN_IF_ERROR(context->GetAttr("features", &features));
      TF_RETURN_IF_ERROR(context->GetAttr("pairs", &pairs));
      TF_RETURN_IF_ERROR(context->GetAttr("joins", &joins));
      TF_RETURN_IF_ERROR(context->GetAttr("picks", &picks));
      const auto samples = context->Dim(embeddings, 0), count = context->Dim(kernel, 0), width = context->Dim(kernel, 1);
      const bool known = context->ValueKnown(width) && context->ValueKnown(count);
      const auto times = [&](int64_t vectors) { return vectors ? known ? context->MakeDim(vectors * context->Value(width)) : context->UnknownDim() : context->MakeDim(0); };
      context->set_output(0, context->Matrix(samples, times(joins && known ? context->Value(count) + features : joins)));
      context->set_output(1, context->Vector(samples));
      context->set_output(2, context->Matrix(samples, times(pairs)));
      context->set_output(3, context->Matrix(samples, times(static_cast<int64_t>(picks.size()))));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The vectors of all features, and their sums.

numerical: [b, M], the values of the numerical features.
kernel: [M, D], whose rows times the values are the numerical features' vectors.
embeddings: [b, F D], or with `weighs` [b, F D + F]: the vectors of the other features, then their weights.
joined: [b, (M + F) D], the vectors of the numerical features, then those of the others; [b, 0] without `joins`.
sums: [b], with `pairs` the dot products of all pairs of vectors, and with `weighs` the weights.
total: [b, D], the sum of the vectors, which the gradient needs; [b, 0] without `pairs`.
picked: [b, D for each of `picks`], the vectors of the features of these numbers.
)doc");

REGISTER_OP("DlrmFieldsGradient")
    .Input("numerical: float")
    .Input("kernel: float")
    .Input("embeddings: T")
    .Input("joined: U")
    .Input("sums: float")
    .Input("total: float")
    .Input("picked: T")
    .Output("by_scaled: float")
    .Output("by_embeddings: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("U: {float, bfloat16, half}")
    .Attr("features: int >= 1")
    .Attr("weighs: bool")
    .Attr("pairs: bool")
    .Attr("joins: bool")
    .Attr("picks: list(int)")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      tensorflow::shape_inference::ShapeHandle kernel;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &kernel));
      const auto count = context->Dim(kernel, 0), width = context->Dim(kernel, 1);
      const bool known = context->ValueKnown(width) && context->ValueKnown(count);
      const auto columns = known ? context->MakeDim(context->Value(count) * context->Value(width)) : context->UnknownDim();
      context->set_output(0, context->Matrix(context->Dim(context->input(2), 0), columns));
      context->set_output(1, context->input(2));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradients of DlrmFields with respect to the numerical features' vectors, [b, M D], and to the embeddings.

joined, sums, picked: the gradients with respect to these outputs.
total: this output.
)doc");

// The common base of both operations.
class FieldsBase : public OpKernel {
 public:
  explicit FieldsBase(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("features", &shape_.features));
    OP_REQUIRES_OK(context, context->GetAttr("weighs", &shape_.weighs));
    OP_REQUIRES_OK(context, context->GetAttr("pairs", &shape_.pairs));
    OP_REQUIRES_OK(context, context->GetAttr("joins", &shape_.joins));
    OP_REQUIRES_OK(context, context->GetAttr("picks", &shape_.picks));
    for (const int64_t pick : shape_.picks) {
      OP_REQUIRES(context, pick >= 0 && pick < shape_.features,
                  InvalidArgumentError(StrCat("picks: expected numbers of features below ", shape_.features, ", received ", pick)));
    }
  }

 protected:
  absl::Status ReadShape(const Tensor& numerical, const Tensor& kernel, const Tensor& embeddings, FieldsShape* shape) const {
    *shape = shape_;
    if (numerical.dims() == 2 && kernel.dims() == 2 && embeddings.dims() == 2) {
      shape->samples = embeddings.dim_size(0);
      shape->numericals = kernel.dim_size(0);
      shape->width = kernel.dim_size(1);
      if (numerical.dim_size(0) == shape->samples && numerical.dim_size(1) == shape->numericals && embeddings.dim_size(1) == shape->embedded()) {
        return absl::OkStatus();
      }
    }
    return InvalidArgumentError(StrCat("expected [b, M], [M, D] and the columns of ", shape_.features, " features, received ",
                                       numerical.shape().DebugString(), ", ", kernel.shape().DebugString(), " and ",
                                       embeddings.shape().DebugString()));
  }

 private:
  FieldsShape shape_{};
};

template <class T, class U>
class FieldsOp : public FieldsBase {
 public:
  using FieldsBase::FieldsBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &numerical = context->input(0), &kernel = context->input(1), &embeddings = context->input(2);
    FieldsShape shape;
    OP_REQUIRES_OK(context, ReadShape(numerical, kernel, embeddings, &shape));
    Tensor *joined, *sums, *total, *picked;
    OP_REQUIRES_OK(context, context->allocate_output(0, {shape.samples, shape.joined()}, &joined));
    OP_REQUIRES_OK(context, context->allocate_output(1, {shape.samples}, &sums));
    OP_REQUIRES_OK(context, context->allocate_output(2, {shape.samples, shape.pairs ? shape.width : 0}, &total));
    OP_REQUIRES_OK(context, context->allocate_output(3, {shape.samples, shape.picked()}, &picked));
    Guarded(context, [&](const Threads& threads) {
      const FieldsInputs<typename ElementOf<T>::type> inputs{Elements<float>(numerical), Elements<float>(kernel), Elements<T>(embeddings)};
      const FieldsOutputs<typename ElementOf<T>::type, typename ElementOf<U>::type> outputs{Elements<U>(joined), Elements<float>(sums),
                                                                                           Elements<float>(total), Elements<T>(picked)};
      Fields(shape, inputs, outputs, threads);
    });
  }
};

template <class T, class U>
class FieldsGradientOp : public FieldsBase {
 public:
  using FieldsBase::FieldsBase;

  void Compute(OpKernelContext* context) override {
    const Tensor &numerical = context->input(0), &kernel = context->input(1), &embeddings = context->input(2);
    const Tensor &joined = context->input(3), &sums = context->input(4), &total = context->input(5), &picked = context->input(6);
    FieldsShape shape;
    OP_REQUIRES_OK(context, ReadShape(numerical, kernel, embeddings, &shape));
    OP_REQUIRES(context,
                joined.NumElements() == shape.samples * shape.joined() && sums.NumElements() == shape.samples &&
                    total.NumElements() == (shape.pairs ? shape.samples * shape.width : 0) &&
                    picked.NumElements() == shape.samples * shape.picked(),
                InvalidArgumentError(StrCat("expected gradients of the outputs' shapes, received ", joined.shape().DebugString(), ", ",
                                            sums.shape().DebugString(), ", ", total.shape().DebugString(), " and ", picked.shape().DebugString())));
    Tensor *by_scaled, *by_embeddings;
    OP_REQUIRES_OK(context, context->allocate_output(0, {shape.samples, shape.numericals * shape.width}, &by_scaled));
    OP_REQUIRES_OK(context, context->allocate_output(1, embeddings.shape(), &by_embeddings));
    Guarded(context, [&](const Threads& threads) {
      const FieldsInputs<typename ElementOf<T>::type> inputs{Elements<float>(numerical), Elements<float>(kernel), Elements<T>(embeddings)};
      const FieldsUpstream<typename ElementOf<T>::type, typename ElementOf<U>::type> upstream{Elements<U>(joined), Elements<float>(sums),
                                                                                             Elements<float>(total), Elements<T>(picked)};
      FieldsGradient(shape, inputs, upstream, Elements<float>(by_scaled), Elements<T>(by_embeddings), threads);
    });
  }
};

#define DLRM_REGISTER_FIELDS(T_, U_)                                                                                                 \
  REGISTER_KERNEL_BUILDER(Name("DlrmFields").Device(tensorflow::DEVICE_CPU).TypeConstraint<T_>("T").TypeConstraint<U_>("U"),          \
                          FieldsOp<T_, U_>);                                                                                         \
  REGISTER_KERNEL_BUILDER(Name("DlrmFieldsGradient").Device(tensorflow::DEVICE_CPU).TypeConstraint<T_>("T").TypeConstraint<U_>("U"), \
                          FieldsGradientOp<T_, U_>)
DLRM_REGISTER_FIELDS(float, float);
DLRM_REGISTER_FIELDS(tensorflow::bfloat16, tensorflow::bfloat16);
DLRM_REGISTER_FIELDS(tensorflow::bfloat16, float);
DLRM_REGISTER_FIELDS(Eigen::half, Eigen::half);
DLRM_REGISTER_FIELDS(Eigen::half, float);
#undef DLRM_REGISTER_FIELDS

absl::Status ShapesOfFirstInput(InferenceContext* context) {
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(0));
  return absl::OkStatus();
}

REGISTER_OP("DlrmGate")
    .Input("inputs: float")
    .Input("logits: num_streams * float")
    .Output("outputs: num_streams * T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_streams: int >= 1")
    .SetShapeFn(ShapesOfFirstInput)
    .Doc(R"doc(
The inputs times twice the sigmoid of each stream's logits; all of one shape.
)doc");

REGISTER_OP("DlrmGateGradient")
    .Input("inputs: float")
    .Input("logits: num_streams * float")
    .Input("upstream: num_streams * T")
    .Output("by_inputs: float")
    .Output("by_logits: num_streams * float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_streams: int >= 1")
    .SetShapeFn(ShapesOfFirstInput)
    .Doc(R"doc(
The gradients of DlrmGate with respect to the inputs and to the logits, given those with respect to its outputs.
)doc");

// Checks that all inputs are of the first one's shape.
absl::Status CheckEqualShapes(OpKernelContext* context) {
  for (int i = 1; i < context->num_inputs(); ++i) {
    if (context->input(i).shape() != context->input(0).shape()) {
      return InvalidArgumentError(
          StrCat("expected equal shapes, received ", context->input(0).shape().DebugString(), " and ", context->input(i).shape().DebugString()));
    }
  }
  return absl::OkStatus();
}

template <class T>
class GateOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckEqualShapes(context));
    const Tensor& inputs = context->input(0);
    std::vector<const float*> logits;
    std::vector<typename ElementOf<T>::type*> outputs;
    for (int i = 0; i < context->num_outputs(); ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context, context->allocate_output(i, inputs.shape(), &output));
      logits.push_back(Elements<float>(context->input(1 + i)));
      outputs.push_back(Elements<T>(output));
    }
    Guarded(context, [&](const Threads& threads) { Gate(inputs.NumElements(), Elements<float>(inputs), logits, outputs, threads); });
  }
};

template <class T>
class GateGradientOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckEqualShapes(context));
    const Tensor& inputs = context->input(0);
    const int streams = context->num_outputs() - 1;
    std::vector<const float*> logits;
    std::vector<const typename ElementOf<T>::type*> upstream;
    std::vector<float*> by_logits;
    Tensor* by_inputs;
    OP_REQUIRES_OK(context, context->allocate_output(0, inputs.shape(), &by_inputs));
    for (int i = 1; i <= streams; ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context, AllocateByLogits(context, i, streams + i, &output));
      logits.push_back(Elements<float>(context->input(i)));
      upstream.push_back(Elements<T>(context->input(streams + i)));
      by_logits.push_back(Elements<float>(output));
    }
    Guarded(context, [&](const Threads& threads) {
      GateGradient(inputs.NumElements(), Elements<float>(inputs), logits, upstream, Elements<float>(by_inputs), by_logits, threads);
    });
  }

 private:
  // A gradient takes the place of what it is computed from, element by element, where that is float32 and no longer needed.
  static absl::Status AllocateByLogits(OpKernelContext* context, int output, int upstream, Tensor** tensor) {
    if constexpr (std::is_same_v<T, float>) {
      return context->forward_input_or_allocate_output({upstream}, output, context->input(0).shape(), tensor);
    }
    return context->allocate_output(output, context->input(0).shape(), tensor);
  }
};

DLRM_REGISTER_KERNELS("DlrmGate", GateOp);
DLRM_REGISTER_KERNELS("DlrmGateGradient", GateGradientOp);

}  // namespace
}  // namespace dlrm
