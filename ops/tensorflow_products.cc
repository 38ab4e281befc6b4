// TensorFlow operations for the products of the dense layers by matrix tiles: signatures and checks.
#include "interaction_amx.h"
#include "products.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("DlrmPackMatrix")
    .Input("matrix: float")
    .Output("packed: bfloat16")
    .Attr("transposed: bool")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle matrix;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &matrix));
      context->set_output(0, context->Vector(context->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
A matrix as DlrmMultiply reads it; see products.h.

matrix: [in, out], or [out, in] if it is transposed.
T: the type of the numbers that are multiplied by it.
)doc");

template <class T>
class PackMatrixOp : public OpKernel {
 public:
  explicit PackMatrixOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES(context, HasTiles(), InvalidArgumentError("the processor has no matrix tiles"));
    OP_REQUIRES_OK(context, context->GetAttr("transposed", &transposed_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& matrix = context->input(0);
    OP_REQUIRES(context, matrix.dims() == 2, InvalidArgumentError(StrCat("expected [in, out], received ", matrix.shape().DebugString())));
    const int64_t depth = matrix.dim_size(transposed_ ? 1 : 0), columns = matrix.dim_size(transposed_ ? 0 : 1);
    Tensor* packed;
    OP_REQUIRES_OK(context, context->allocate_output(0, {PackedSize<typename ElementOf<T>::type>(depth, columns)}, &packed));
    Guarded(context, [&](const Threads& threads) {
      Pack<typename ElementOf<T>::type>(depth, columns, matrix.flat<float>().data(), transposed_, Elements<tensorflow::bfloat16>(packed), threads);
    });
  }

 private:
  bool transposed_;
};

REGISTER_OP("DlrmMultiply")
    .Input("x: T")
    .Input("packed: bfloat16")
    .Input("bias: num_biases * float")
    .Output("y: T")
    .Attr("columns: int >= 1")
    .Attr("relu: bool = false")
    .Attr("num_biases: int >= 0")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle x;
      int64_t columns;
      TF_RETURN_IF_ERROR(context->GetAttr("columns", &columns));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &x));
      context->set_output(0, context->Matrix(context->Dim(x, 0), columns));
      return absl::OkStatus();
    })
    .Doc(R"doc(
x times a matrix, plus the bias, with or without a ReLU, by the processor's matrix tiles; see products.h.

x: [b, in].
packed: the matrix, by DlrmPackMatrix.
bias: [out]; one or none.
y: [b, out].
columns: out.
)doc");

REGISTER_OP("DlrmMultiplyMatrix")
    .Input("x: T")
    .Input("matrix: float")
    .Input("bias: num_biases * float")
    .Output("y: T")
    .Attr("transposed: bool")
    .Attr("relu: bool = false")
    .Attr("num_biases: int >= 0")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle x, matrix;
      bool transposed;
      TF_RETURN_IF_ERROR(context->GetAttr("transposed", &transposed));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &x));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &matrix));
      context->set_output(0, context->Matrix(context->Dim(x, 0), context->Dim(matrix, transposed ? 0 : 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
As DlrmMultiply, bit for bit, without a packed matrix; faster for few rows.

matrix: [in, out], or [out, in] if it is transposed.
)doc");

// With a packed matrix or the matrix itself.
template <class T, bool kPacked>
class MultiplyOp : public OpKernel {
 public:
  explicit MultiplyOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES(context, HasTiles(), InvalidArgumentError("the processor has no matrix tiles"));
    if (kPacked) {
      OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    } else {
      OP_REQUIRES_OK(context, context->GetAttr("transposed", &transposed_));
    }
    OP_REQUIRES_OK(context, context->GetAttr("relu", &relu_));
  }

  void Compute(OpKernelContext* context) override {
    using Element = typename ElementOf<T>::type;
    const Tensor &x = context->input(0), &matrix = context->input(1);
    const Tensor* bias = context->num_inputs() > 2 ? &context->input(2) : nullptr;
    const int64_t columns = kPacked ? columns_ : matrix.dims() == 2 ? matrix.dim_size(transposed_ ? 0 : 1) : 0;
    const bool right_matrix = x.dims() == 2 && (kPacked ? matrix.NumElements() == PackedSize<Element>(x.dim_size(1), columns)
                                                        : matrix.dims() == 2 && matrix.dim_size(transposed_ ? 1 : 0) == x.dim_size(1));
    OP_REQUIRES(context, context->num_inputs() <= 3 && right_matrix && (!bias || (bias->dims() == 1 && bias->dim_size(0) == columns)),
                InvalidArgumentError(StrCat("expected [b, in], a ", kPacked ? "packed " : "", "matrix of ", columns, " columns and perhaps [", columns,
                                            "], received ", x.shape().DebugString(), ", ", matrix.shape().DebugString(), " and ",
                                            bias ? bias->shape().DebugString() : "none")));
    Tensor* y;
    OP_REQUIRES_OK(context, context->allocate_output(0, {x.dim_size(0), columns}, &y));
    PreferHugePages(y);
    Product<Element> product = {x.dim_size(0), x.dim_size(1), columns, Elements<T>(x), nullptr, bias ? bias->flat<float>().data() : nullptr, relu_,
                                Elements<T>(y)};
    if constexpr (kPacked) {
      product.packed = Elements<tensorflow::bfloat16>(matrix);
    } else {
      product.matrix = matrix.flat<float>().data();
      product.transposed = transposed_;
    }
    Guarded(context, [&](const Threads& threads) { Multiply<Element>(product, threads); });
  }

 private:
  int64_t columns_ = 0;
  bool transposed_ = false, relu_;
};

REGISTER_OP("DlrmKernelGradient")
    .Input("x: T")
    .Input("upstream: T")
    .Output("gradient: float")
    .Attr("slices: int >= 1")
    .Attr("T: {float, bfloat16}")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      ShapeHandle x, upstream;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 2, &x));
      TF_RETURN_IF_ERROR(context->WithRank(context->input(1), 2, &upstream));
      context->set_output(0, context->Matrix(context->Dim(x, 1), context->Dim(upstream, 1)));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The gradient with respect to the matrix of a product, by the processor's matrix tiles; see products.h.

x: [b, in].
upstream: the gradient with respect to the product, [b, out].
gradient: [in, out]: the sums of the slices' samples, added in pairs.
slices: the number of equal slices of the samples.
)doc");

template <class T>
class KernelGradientOp : public OpKernel {
 public:
  explicit KernelGradientOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES(context, HasTiles(), InvalidArgumentError("the processor has no matrix tiles"));
    OP_REQUIRES_OK(context, context->GetAttr("slices", &slices_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &x = context->input(0), &upstream = context->input(1);
    OP_REQUIRES(context, x.dims() == 2 && upstream.dims() == 2 && x.dim_size(0) == upstream.dim_size(0) && x.dim_size(0) % slices_ == 0,
                InvalidArgumentError(StrCat("expected [b, in] and [b, out] in ", slices_, " equal slices, received ", x.shape().DebugString(), " and ",
                                            upstream.shape().DebugString())));
    Tensor* gradient;
    OP_REQUIRES_OK(context, context->allocate_output(0, {x.dim_size(1), upstream.dim_size(1)}, &gradient));
    Guarded(context, [&](const Threads& threads) {
      SumProducts<typename ElementOf<T>::type>({slices_, x.dim_size(0) / slices_, x.dim_size(1), upstream.dim_size(1), Elements<T>(x),
                                               Elements<T>(upstream), gradient->flat<float>().data()},
                                              threads);
    });
  }

 private:
  int64_t slices_;
};

#define REGISTER(T)                                                                                                           \
  REGISTER_KERNEL_BUILDER(Name("DlrmPackMatrix").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), PackMatrixOp<T>); \
  REGISTER_KERNEL_BUILDER(Name("DlrmMultiply").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), MultiplyOp<T, true>); \
  REGISTER_KERNEL_BUILDER(Name("DlrmMultiplyMatrix").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), MultiplyOp<T, false>); \
  REGISTER_KERNEL_BUILDER(Name("DlrmKernelGradient").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), KernelGradientOp<T>)
REGISTER(float);
REGISTER(tensorflow::bfloat16);
#undef REGISTER

}  // namespace
}  // namespace dlrm
