// Code shared by the files that use TensorFlow. These files check an operation's inputs and leave the work to the other files, which do not use
// TensorFlow and are compiled for this machine's processor; files with TensorFlow are compiled with TensorFlow's own flags.
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

// TensorFlow's threads handle no exceptions, so an exception in one of them is rethrown in the thread that waits for them.
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

// Runs a kernel's own work; if memory is lacking, the step fails instead of the process. Do not call TensorFlow's functions in `work`: they are not
// made for exceptions and would keep their locks.
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

// The kernels' element type for each of TensorFlow's.
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

// Asks for huge pages if a tensor is large enough to be a fresh memory mapping: glibc maps allocations of 32 MiB or more anew every time, and page
// faults of small pages then take longer than writing.
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
