// Memory for rows that are written one by one: address space is reserved, and the kernel gives pages as they are written.
#include <sys/mman.h>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

// A buffer outside TensorFlow's allocators, which would count all of its bytes as used.
class ReservedBuffer : public tensorflow::TensorBuffer {
 public:
  ReservedBuffer(void* start, size_t size) : TensorBuffer(start), size_(size) {}
  ~ReservedBuffer() override { munmap(data(), size_); }

  size_t size() const override { return size_; }
  TensorBuffer* root_buffer() override { return this; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(size_));
    proto->set_allocator_name("reserved");
  }

 private:
  size_t size_;
};

REGISTER_OP("DlrmReserveRows")
    .Output("rows: float")
    .Attr("shape: shape")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ExplicitShape)
    .Doc(R"doc(
Reserves address space for rows, which are zero; a page takes memory once it is written.

shape: [C, width], at least one element.
)doc");

class ReserveRowsOp : public OpKernel {
 public:
  explicit ReserveRowsOp(OpKernelConstruction* context) : OpKernel(context) { OP_REQUIRES_OK(context, context->GetAttr("shape", &shape_)); }

  void Compute(OpKernelContext* context) override {
    const size_t size = sizeof(float) * static_cast<size_t>(shape_.num_elements());
    void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    OP_REQUIRES(context, start != MAP_FAILED,
                absl::ResourceExhaustedError(StrCat("no address space for ", size, " bytes of rows; see ulimit -v")));
    context->set_output(0, Tensor(tensorflow::DT_FLOAT, shape_, tensorflow::core::RefCountPtr<tensorflow::TensorBuffer>(new ReservedBuffer(start, size))));
  }

 private:
  tensorflow::TensorShape shape_;
};

REGISTER_KERNEL_BUILDER(Name("DlrmReserveRows").Device(tensorflow::DEVICE_CPU), ReserveRowsOp);

}  // namespace
}  // namespace dlrm
