// TensorFlow operations that convert between the exchange's orders of columns: signatures and checks.
#include <cstdint>
#include <limits>
#include <vector>

#include "columns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::OpInputList;
using tensorflow::shape_inference::InferenceContext;

// The attributes of both operations that describe the blocks, counted in columns. For each segment: the columns of all blocks before its own block,
// the columns of its own block, its first column in the block and in a sample's vectors, and its number of columns.
class Blocks {
 public:
  absl::Status Read(OpKernelConstruction* context) {
    TF_RETURN_IF_ERROR(context->GetAttr("before", &before_));
    TF_RETURN_IF_ERROR(context->GetAttr("strides", &strides_));
    TF_RETURN_IF_ERROR(context->GetAttr("places", &places_));
    TF_RETURN_IF_ERROR(context->GetAttr("columns", &columns_));
    TF_RETURN_IF_ERROR(context->GetAttr("widths", &widths_));
    for (const auto* list : {&before_, &strides_, &places_, &columns_, &widths_}) {
      if (list->size() != before_.size()) return InvalidArgumentError("before, strides, places, columns and widths: expected lists of equal length");
      for (const int64_t value : *list) {
        if (!Fits(value)) return InvalidArgumentError(StrCat("a segment has ", value, ", expected 0 to 2^31 - 1"));
      }
    }
    for (const int64_t width : widths_) {
      total_ += width;
      if (!Fits(total_)) return InvalidArgumentError("the blocks have 2^31 columns or more");
    }
    return absl::OkStatus();
  }

  int64_t total() const { return total_; }  // columns of all blocks

  // Returns true if a value is small enough that sums and products of two such values do not overflow.
  static bool Fits(int64_t value) { return value >= 0 && value <= std::numeric_limits<int32_t>::max(); }

  // Appends the segments of `samples` samples of `length` columns; `flat` are vectors that hold the blocks, one after another, and `element` is the size
  // of an element.
  absl::Status Segments(int64_t samples, int64_t length, int64_t element, const std::vector<const Tensor*>& flat, std::vector<Segment>* segments) const {
    for (size_t i = 0; i < before_.size(); ++i) {
      const bool fits = places_[i] + widths_[i] <= strides_[i] && before_[i] + strides_[i] <= total_ && columns_[i] + widths_[i] <= length;
      if (!fits) return InvalidArgumentError(StrCat("segment ", i, " does not fit ", total(), " columns in blocks and ", length, " of a sample"));
      if (samples == 0 || widths_[i] == 0) continue;  // empty tensors have no memory to point to
      int64_t start = before_[i] * samples;
      size_t holder = 0;
      while (holder < flat.size() && start >= flat[holder]->NumElements()) start -= flat[holder++]->NumElements();
      if (holder == flat.size() || start + strides_[i] * samples > flat[holder]->NumElements()) {
        return InvalidArgumentError(StrCat("segment ", i, ": no tensor of blocks holds its whole block"));
      }
      char* const block = static_cast<char*>(flat[holder]->data()) + (start + places_[i]) * element;
      segments->push_back({block, strides_[i] * element, columns_[i] * element, widths_[i] * element});
    }
    return absl::OkStatus();
  }

 private:
  std::vector<int64_t> before_, strides_, places_, columns_, widths_;
  int64_t total_ = 0;
};

REGISTER_OP("DlrmBlocksToSamples")
    .Input("blocks: num_blocks * T")
    .Input("others: num_others * T")
    .Output("vectors: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_blocks: int >= 0")
    .Attr("num_others: int >= 0")
    .Attr("length: int")
    .Attr("samples: int")
    .Attr("before: list(int)")
    .Attr("strides: list(int)")
    .Attr("places: list(int)")
    .Attr("columns: list(int)")
    .Attr("widths: list(int)")
    .Attr("other_columns: list(int)")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      int64_t samples, length;
      TF_RETURN_IF_ERROR(context->GetAttr("samples", &samples));
      TF_RETURN_IF_ERROR(context->GetAttr("length", &length));
      context->set_output(0, context->Matrix(samples, length));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Assembles samples' vectors from blocks of columns, and from other matrices.

blocks: any number of whole blocks each, [samples, its columns] flattened, one after another.
others: [samples, any] each.
vectors: [samples, length].
other_columns: the first column of each of the others in `vectors`.
)doc");

template <class T>
class BlocksToSamplesOp : public OpKernel {
 public:
  explicit BlocksToSamplesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, blocks_.Read(context));
    OP_REQUIRES_OK(context, context->GetAttr("samples", &samples_));
    OP_REQUIRES_OK(context, context->GetAttr("length", &length_));
    OP_REQUIRES_OK(context, context->GetAttr("other_columns", &other_columns_));
    OP_REQUIRES(context, Blocks::Fits(samples_) && Blocks::Fits(length_),
                InvalidArgumentError(StrCat("expected 0 to 2^31 - 1 samples and columns, received ", samples_, " and ", length_)));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList blocks, others;
    OP_REQUIRES_OK(context, context->input_list("blocks", &blocks));
    OP_REQUIRES_OK(context, context->input_list("others", &others));
    std::vector<const Tensor*> flat;
    int64_t elements = 0;
    for (const Tensor& some : blocks) {
      flat.push_back(&some);
      elements += some.NumElements();
    }
    OP_REQUIRES(context, elements == samples_ * blocks_.total() && others.size() == static_cast<int>(other_columns_.size()),
                InvalidArgumentError(StrCat("blocks: expected ", samples_ * blocks_.total(), " elements, received ", elements)));
    std::vector<Segment> segments;
    OP_REQUIRES_OK(context, blocks_.Segments(samples_, length_, sizeof(T), flat, &segments));
    for (int i = 0; i < others.size(); ++i) {
      OP_REQUIRES(context,
                  others[i].dims() == 2 && others[i].dim_size(0) == samples_ && Blocks::Fits(other_columns_[i]) &&
                      other_columns_[i] + others[i].dim_size(1) <= length_,
                  InvalidArgumentError(StrCat("others ", i, ": ", others[i].shape().DebugString(), " does not fit at column ", other_columns_[i])));
      const int64_t width = others[i].dim_size(1) * sizeof(T);
      if (others[i].NumElements() == 0) continue;
      segments.push_back({static_cast<char*>(others[i].data()), width, other_columns_[i] * static_cast<int64_t>(sizeof(T)), width});
    }
    Tensor* vectors;
    OP_REQUIRES_OK(context, context->allocate_output(0, {samples_, length_}, &vectors));
    PreferHugePages(vectors);
    Guarded(context, [&](const Threads& threads) {
      BlocksToSamples(segments, samples_, static_cast<char*>(vectors->data()), length_ * sizeof(T), threads);
    });
  }

 private:
  Blocks blocks_;
  int64_t samples_, length_;
  std::vector<int64_t> other_columns_;
};

DLRM_REGISTER_KERNELS("DlrmBlocksToSamples", BlocksToSamplesOp);

REGISTER_OP("DlrmSamplesToBlocks")
    .Input("parts: num_parts * T")
    .Output("blocks: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_parts: int >= 1")
    .Attr("before: list(int)")
    .Attr("strides: list(int)")
    .Attr("places: list(int)")
    .Attr("columns: list(int)")
    .Attr("widths: list(int)")
    .SetShapeFn([](InferenceContext* context) -> absl::Status {
      context->set_output(0, context->Vector(context->UnknownDim()));
      return absl::OkStatus();
    })
    .Doc(R"doc(
The inverse of DlrmBlocksToSamples: blocks of columns, one after another, from samples' vectors in parts along the first dimension.
)doc");

template <class T>
class SamplesToBlocksOp : public OpKernel {
 public:
  explicit SamplesToBlocksOp(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, blocks_.Read(context)); }

  void Compute(OpKernelContext* context) override {
    OpInputList parts;
    OP_REQUIRES_OK(context, context->input_list("parts", &parts));
    int64_t count = 0;
    const int64_t length = parts[0].dims() == 2 ? parts[0].dim_size(1) : -1;
    for (const Tensor& part : parts) {
      OP_REQUIRES(context, part.dims() == 2 && part.dim_size(1) == length,
                  InvalidArgumentError(StrCat("parts: expected [n, columns] of equal width, received ", part.shape().DebugString())));
      count += part.dim_size(0);
    }
    Tensor* blocks;
    OP_REQUIRES_OK(context, context->allocate_output(0, {count * blocks_.total()}, &blocks));
    PreferHugePages(blocks);
    std::vector<Segment> segments;
    OP_REQUIRES_OK(context, blocks_.Segments(count, length, sizeof(T), {blocks}, &segments));
    Guarded(context, [&](const Threads& threads) {
      std::vector<const char*> samples;
      samples.reserve(count);
      for (const Tensor& part : parts) {
        for (int64_t i = 0; i < part.dim_size(0); ++i) samples.push_back(static_cast<const char*>(part.data()) + i * length * sizeof(T));
      }
      SamplesToBlocks(segments, samples, threads);
    });
  }

 private:
  Blocks blocks_;
};

DLRM_REGISTER_KERNELS("DlrmSamplesToBlocks", SamplesToBlocksOp);

}  // namespace
}  // namespace dlrm
