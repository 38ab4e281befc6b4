// Access of the operations on rows to the variables that hold tables and slots.
#ifndef DLRM_OPS_TENSORFLOW_TABLES_H_
#define DLRM_OPS_TENSORFLOW_TABLES_H_

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow_kernel.h"

namespace dlrm {

using tensorflow::Var;

// The variables that are an operation's first inputs, locked for the lifetime of this object: for one writer, or for several readers.
class Tables {
 public:
  explicit Tables(bool to_write) : to_write_(to_write) {}
  Tables(const Tables&) = delete;
  ~Tables() {
    for (Var* variable : locked_) to_write_ ? variable->mu()->unlock() : variable->mu()->unlock_shared();
  }

  absl::Status Open(OpKernelContext* context, int count) {
    variables_.resize(count);
    for (int i = 0; i < count; ++i) {
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i), &variables_[i]));
      TF_RETURN_IF_ERROR(OwnBuffer(context, variables_[i].get()));
    }
    std::vector<Var*> in_order;
    for (const auto& variable : variables_) in_order.push_back(variable.get());
    std::sort(in_order.begin(), in_order.end(), [](Var* a, Var* b) { return std::less<void*>()(a->mu(), b->mu()); });
    in_order.erase(std::unique(in_order.begin(), in_order.end()), in_order.end());
    for (Var* variable : in_order) {
      to_write_ ? variable->mu()->lock() : variable->mu()->lock_shared();
      locked_.push_back(variable);
    }
    // Two updates of the same variable would overwrite each other's rows.
    if (to_write_ && static_cast<int>(in_order.size()) < count) return Twice();
    for (int i = 0; i < count; ++i) {
      const Tensor& values = *variables_[i]->tensor();
      if (values.dtype() != tensorflow::DT_FLOAT || values.dims() != 2) {
        return InvalidArgumentError(StrCat("input ", i, ": expected [V, width] float32, received ", values.shape().DebugString()));
      }
    }
    return absl::OkStatus();
  }

  int64_t rows(int i) const { return variables_[i]->tensor()->dim_size(0); }
  int width(int i) const { return static_cast<int>(variables_[i]->tensor()->dim_size(1)); }
  float* values(int i) const { return static_cast<float*>(variables_[i]->tensor()->data()); }

 private:
  // Does the same as TensorFlow's own sparse operations before they access a variable (EnsureSparseVariableAccess): copies the buffer once if someone
  // else still reads it; from then on, reads of the whole variable return copies.
  static absl::Status OwnBuffer(OpKernelContext* context, Var* variable) {
    if (variable->copy_on_read_mode.load()) return absl::OkStatus();
    tensorflow::mutex_lock lock(*variable->mu());
    Tensor* values = variable->tensor();
    if (!variable->copy_on_read_mode.load() && !values->RefCountIsOne()) {
      Tensor copy;
      TF_RETURN_IF_ERROR(context->allocate_temp(values->dtype(), values->shape(), &copy));
      if (values->TotalBytes() > 0) std::memcpy(copy.data(), values->data(), values->TotalBytes());
      *values = copy;
    }
    variable->copy_on_read_mode.store(true);
    return absl::OkStatus();
  }

  absl::Status Twice() const {
    for (size_t i = 0; i < variables_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (variables_[i].get() == variables_[j].get()) {
          return InvalidArgumentError(StrCat("inputs ", j, " and ", i, " are the same variable; expected each table and slot once in an update"));
        }
      }
    }
    return absl::InternalError("no variable is given twice");
  }

  bool to_write_;
  std::vector<tensorflow::core::RefCountPtr<Var>> variables_;
  std::vector<Var*> locked_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_TENSORFLOW_TABLES_H_
