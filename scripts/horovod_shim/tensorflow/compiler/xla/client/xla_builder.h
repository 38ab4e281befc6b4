// Horovod 0.28.1 includes <tensorflow/compiler/xla/client/xla_builder.h>, which TensorFlow 2.21 does not ship any more.
// scripts/install puts this folder on CPLUS_INCLUDE_PATH while it builds Horovod. The only file of Horovod that includes
// this path is xla_mpi_ops.cc, so the definition below exists once.
#pragma once

#include "absl/status/statusor.h"
#include "xla/hlo/builder/xla_builder.h"  // where the builder lives now
#include "xla/stream_executor/stream.h"

namespace xla {
// TensorFlow dropped this alias; Horovod still spells its results with it.
template <typename T>
using StatusOr = absl::StatusOr<T>;
}  // namespace xla

#if HAVE_GPU
namespace stream_executor::gpu {
// Declared by Horovod's mpi_ops.cc, formerly defined by TensorFlow: the CUDA stream behind a stream object.
void* AsGpuStreamValue(Stream* stream) { return stream->platform_specific_handle().stream; }
}  // namespace stream_executor::gpu
#endif
