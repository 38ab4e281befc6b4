// TensorFlow operations for batch normalisation: signatures and checks.
#include <string>
#include <vector>

#include "batch_norm.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_dropout.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

template <class T>
using ElementType = typename ElementOf<T>::type;

// Returns an error unless the tensors have these shapes.
absl::Status CheckShapes(OpKernelContext* context, const std::vector<tensorflow::TensorShape>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (context->input(i).shape() != expected[i]) {
      return InvalidArgumentError(
          StrCat("input ", i, ": expected ", expected[i].DebugString(), ", received ", context->input(i).shape().DebugString()));
    }
  }
  return absl::OkStatus();
}

// Two rows with one number for each column of input 0.
absl::Status ShapeOfSums(InferenceContext* context) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &shape));
  context->set_output(0, context->Matrix(2, context->Dim(shape, 1)));
  return absl::OkStatus();
}

REGISTER_OP("DlrmColumnMoments")
    .Input("products: T")
    .Input("real: float")
    .Output("sums: double")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(ShapeOfSums)
    .Doc(R"doc(
The sums of each column and of its squares, over the samples that are not padding.

products: [b, out].
real: [b], 0 for padding.
sums: [2, out].
)doc");

template <class T>
class ColumnMomentsOp : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor &products = context->input(0), &real = context->input(1);
    OP_REQUIRES(context, products.dims() == 2, InvalidArgumentError(StrCat("expected [b, out], received ", products.shape().DebugString())));
    const int64_t rows = products.dim_size(0), columns = products.dim_size(1);
    OP_REQUIRES_OK(context, CheckShapes(context, {products.shape(), {rows}}));
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {2, columns}, &sums));
    Guarded(context, [&](const Threads& threads) {
      ColumnMoments(rows, columns, Elements<T>(products), real.flat<float>().data(), sums->flat<double>().data(), threads);
    });
  }
};

DLRM_REGISTER_KERNELS("DlrmColumnMoments", ColumnMomentsOp);

REGISTER_OP("DlrmNormaliseRelu")
    .Input("factors: float")
    .Input("place: int64")
    .Input("products: num_parts * T")
    .Output("outputs: T")
    .Attr("key: int >= 0 = 0")
    .Attr("threshold: int >= 0 = 0")
    .Attr("scale: float = 1")
    .Attr("num_parts: int >= 1")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      DimensionHandle rows = context->MakeDim(0);
      ShapeHandle shape;
      for (int i = 2; i < context->num_inputs(); ++i) {
        TF_RETURN_IF_ERROR(context->WithRank(context->input(i), 2, &shape));
        TF_RETURN_IF_ERROR(context->Add(rows, context->Dim(shape, 0), &rows));
      }
      context->set_output(0, context->Matrix(rows, context->Dim(shape, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
relu((products - factors[0]) * factors[1] + factors[2]), with dropout where the threshold is not 0; dropped units are -0.

factors: [3, out].
place: [2], the step and the number of the first sample, for dropout.
products: the slices of the batch, [b / num_parts, out] each.
outputs: [b, out].
key: the generator's key; it and the threshold are numbers of 32 bits.
)doc");

template <class T>
class NormaliseReluOp : public OpKernel {
 public:
  explicit NormaliseReluOp(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, ReadDropout(context, &dropout_)); }

  void Compute(OpKernelContext* context) override {
    const Tensor &factors = context->input(0), &place = context->input(1), &first = context->input(2);
    OP_REQUIRES(context, first.dims() == 2, InvalidArgumentError(StrCat("expected [b, out], received ", first.shape().DebugString())));
    const int64_t rows = first.dim_size(0), columns = first.dim_size(1), parts = context->num_inputs() - 2;
    std::vector<tensorflow::TensorShape> shapes{{3, columns}, {2}};
    shapes.resize(2 + parts, first.shape());
    OP_REQUIRES_OK(context, CheckShapes(context, shapes));
    std::vector<const ElementType<T>*> from;
    for (int64_t part = 0; part < parts; ++part) from.push_back(Elements<T>(context->input(2 + part)));
    Tensor* outputs;
    OP_REQUIRES_OK(context, context->allocate_output(0, {parts * rows, columns}, &outputs));
    PreferHugePages(outputs);
    ElementType<T>* to = Elements<T>(outputs);
    const Dropout dropout = At(dropout_, place);
    Guarded(context, [&](const Threads& threads) {
      const auto normalise = [&](int64_t part, const Threads& used) {
        NormaliseRelu(rows, columns, from[part], factors.flat<float>().data(), dropout.threshold ? &dropout : nullptr, part * rows,
                      to + part * rows * columns, used);
      };
      if (parts == 1) return normalise(0, threads);
      threads.run(parts, [&](int64_t part) { normalise(part, kCallingThread); });
    });
  }

 private:
  Dropout dropout_{};
};

DLRM_REGISTER_KERNELS("DlrmNormaliseRelu", NormaliseReluOp);

// The inputs 0 to 3 of the backward passes.
template <class T>
NormalisedRows<ElementType<T>> RowsOf(OpKernelContext* context, float scale) {
  return {Elements<T>(context->input(0)), Elements<T>(context->input(1)), Elements<T>(context->input(2)), context->input(3).flat<float>().data(), scale};
}

// Base of the backward passes: the shapes, of which input 4 is [factors, out].
class Backward : public OpKernel {
 public:
  explicit Backward(OpKernelConstruction* context, int64_t factors) : OpKernel(context), factors_(factors) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
  }

 protected:
  absl::Status Check(OpKernelContext* context) const {
    const tensorflow::TensorShape& shape = context->input(0).shape();
    if (shape.dims() != 2) return InvalidArgumentError(StrCat("expected [b, out], received ", shape.DebugString()));
    return CheckShapes(context, {shape, shape, shape, {shape.dim_size(0)}, {factors_, shape.dim_size(1)}});
  }

  float scale_;

 private:
  int64_t factors_;
};

REGISTER_OP("DlrmNormaliseGradientSums")
    .Input("upstream: T")
    .Input("outputs: T")
    .Input("products: T")
    .Input("real: float")
    .Input("moments: double")
    .Output("sums: float")
    .Attr("scale: float = 1")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn(ShapeOfSums)
    .Doc(R"doc(
The gradients of relu(gamma * z + beta) with respect to beta and gamma, z = (products - mean) / deviation.

upstream, outputs, products: [b, out].
real: [b], 0 for padding.
moments: [2, out], the mean and 1 / deviation.
sums: [2, out].
scale: the dropout's factor of the units that are kept.
)doc");

template <class T>
class NormaliseGradientSumsOp : public Backward {
 public:
  explicit NormaliseGradientSumsOp(OpKernelConstruction* context) : Backward(context, 2) {}

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    const int64_t rows = context->input(0).dim_size(0), columns = context->input(0).dim_size(1);
    Tensor* sums;
    OP_REQUIRES_OK(context, context->allocate_output(0, {2, columns}, &sums));
    const double* moments = context->input(4).flat<double>().data();
    Guarded(context, [&](const Threads& threads) {
      NormaliseGradientSums(rows, columns, RowsOf<T>(context, scale_), moments, moments + columns, sums->flat<float>().data(), threads);
    });
  }
};

DLRM_REGISTER_KERNELS("DlrmNormaliseGradientSums", NormaliseGradientSumsOp);

REGISTER_OP("DlrmNormaliseGradient")
    .Input("upstream: T")
    .Input("outputs: T")
    .Input("products: T")
    .Input("real: float")
    .Input("factors: float")
    .Output("gradient: T")
    .Attr("scale: float = 1")
    .Attr("T: {float, bfloat16, half}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    })
    .Doc(R"doc(
g * factors[1] + (products - factors[0]) * factors[2] + factors[3], g the gradient before the ReLU; 0 for padding.

upstream, outputs, products: [b, out].
real: [b], 0 for padding.
factors: [4, out].
gradient: [b, out].
scale: the dropout's factor of the units that are kept.
)doc");

template <class T>
class NormaliseGradientOp : public Backward {
 public:
  explicit NormaliseGradientOp(OpKernelConstruction* context) : Backward(context, 4) {}

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, Check(context));
    const int64_t rows = context->input(0).dim_size(0), columns = context->input(0).dim_size(1);
    Tensor* gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(0).shape(), &gradient));
    Guarded(context, [&](const Threads& threads) {
      NormaliseGradient(rows, columns, RowsOf<T>(context, scale_), context->input(4).flat<float>().data(), Elements<T>(gradient), threads);
    });
  }
};

DLRM_REGISTER_KERNELS("DlrmNormaliseGradient", NormaliseGradientOp);

}  // namespace
}  // namespace dlrm
