// The attributes of a layer's dropout, and its place in the run.
#ifndef DLRM_OPS_TENSORFLOW_DROPOUT_H_
#define DLRM_OPS_TENSORFLOW_DROPOUT_H_

#include "dense.h"
#include "tensorflow_kernel.h"

namespace dlrm {

// Reads the attributes `key`, `threshold` and `scale`; a threshold of 0 drops nothing.
inline absl::Status ReadDropout(OpKernelConstruction* context, Dropout* dropout) {
  int64_t key, threshold;
  TF_RETURN_IF_ERROR(context->GetAttr("key", &key));
  TF_RETURN_IF_ERROR(context->GetAttr("threshold", &threshold));
  TF_RETURN_IF_ERROR(context->GetAttr("scale", &dropout->scale));
  if (key >> 32 != 0 || threshold >> 32 != 0) return InvalidArgumentError("expected a key and a threshold of 32 bits");
  dropout->key = static_cast<uint32_t>(key), dropout->threshold = static_cast<uint32_t>(threshold);
  return absl::OkStatus();
}

// Returns the dropout at a place: [2], the step and the number of the first sample.
inline Dropout At(Dropout dropout, const Tensor& place) {
  dropout.stream = place.flat<int64_t>()(0), dropout.first_row = place.flat<int64_t>()(1);
  return dropout;
}

}  // namespace dlrm

#endif  // DLRM_OPS_TENSORFLOW_DROPOUT_H_
