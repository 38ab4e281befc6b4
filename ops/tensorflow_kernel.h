// What the files that talk to TensorFlow share. They check what an operation receives and leave the work to the other files, which know no
// TensorFlow and are compiled for the processor at hand (these are compiled as TensorFlow itself was).
#ifndef DLRM_OPS_TENSORFLOW_KERNEL_H_
#define DLRM_OPS_TENSORFLOW_KERNEL_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "elements.h"
#include "parallel.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace dlrm {

using absl::InvalidArgumentError;
using absl::StrCat;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

// An exception in one of the threads, which know none, is thrown again in the one that waits for them.
inline Threads ThreadsOf(OpKernelContext* context) {
  const auto* workers = context->device()->tensorflow_cpu_worker_threads();
  tsl::thread::ThreadPool* pool = workers->workers;
  return {workers->num_threads, [pool](int64_t count, const std::function<void(int64_t)>& work) {
            std::mutex mutex;
            std::exception_ptr thrown;
            const auto some = [&](int64_t first, int64_t last) {
              try {
                for (int64_t i = first; i < last; ++i) work(i);
              } catch (...) {
                const std::lock_guard<std::mutex> lock(mutex);
                thrown = std::current_exception();
              }
            };
            [&]() noexcept { pool->ParallelFor(count, tsl::thread::ThreadPool::SchedulingParams::Fixed(1), some); }();
            if (thrown) std::rethrow_exception(thrown);
          }};
}

// Runs what a kernel does by itself. Memory that is not there fails the step, not the process. Only that: TensorFlow's own functions know no exceptions
// and would not let go of their locks.
template <class Work>
void Guarded(OpKernelContext* context, const Work& work) {
  try {
    work(ThreadsOf(context));
  } catch (const std::bad_alloc&) {
    context->CtxFailure(absl::ResourceExhaustedError(StrCat(context->op_kernel().type_string(), ": out of memory")));
  } catch (const std::exception& error) {
    context->CtxFailure(absl::InternalError(StrCat(context->op_kernel().type_string(), ": ", error.what())));
  }
}

// The element type of a kernel for TensorFlow's.
template <class T>
struct ElementOf;
template <>
struct ElementOf<float> {
  using type = float;
};
template <>
struct ElementOf<tensorflow::bfloat16> {
  using type = BFloat16;
};
template <>
struct ElementOf<Eigen::half> {
  using type = Float16;
};

template <class T>
auto Elements(const Tensor& tensor) {
  return reinterpret_cast<const typename ElementOf<T>::type*>(tensor.flat<T>().data());
}

template <class T>
auto Elements(Tensor* tensor) {
  return reinterpret_cast<typename ElementOf<T>::type*>(tensor->flat<T>().data());
}

// Asks for huge pages where a tensor is large enough to be a mapping of its own that was not touched yet: glibc maps all from 32 MiB on anew every
// time, and the faults of small pages then take longer than the writing.
inline void PreferHugePages(Tensor* tensor) {
#if defined(__linux__)
  constexpr uintptr_t kPage = 4096;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(tensor->data()) + kPage - 1) / kPage * kPage;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(tensor->data()) + tensor->TotalBytes()) / kPage * kPage;
  if (tensor->TotalBytes() >= (size_t{32} << 20)) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

// Registers an operation's kernel for every element type.
#define DLRM_REGISTER_KERNELS(name, Kernel)                                                                                  \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), Kernel<float>);                \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<tensorflow::bfloat16>("T"), Kernel<tensorflow::bfloat16>); \
  REGISTER_KERNEL_BUILDER(Name(name).Device(tensorflow::DEVICE_CPU).TypeConstraint<Eigen::half>("T"), Kernel<Eigen::half>)

}  // namespace dlrm

#endif  // DLRM_OPS_TENSORFLOW_KERNEL_H_
