// TensorFlow operation for the update of the dense weights: signature and checks.
#include <algorithm>
#include <functional>
#include <vector>

#include "dense_update.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::Var;

REGISTER_OP("DlrmUpdateDense")
    .Input("weights: num_weights * resource")
    .Input("slots: num_slots * resource")
    .Input("gradients: num_weights * float")
    .Input("scalars: float")
    .Attr("num_weights: int >= 1")
    .Attr("num_slots: int >= 0")
    .Attr("rule: string")
    .Attr("constants: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Updates weights and slots, float32 variables that are each given once.

slots: of the weights' shapes: all slots of the first weights, then all of the second, ...
scalars: [1]: the learning rate, for Adam after the bias correction.
rule: a name in dense_update.h.
constants: the rule's constants.
)doc");

class UpdateDenseOp : public OpKernel {
 public:
  explicit UpdateDenseOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_slots;
    OP_REQUIRES_OK(context, context->GetAttr("num_weights", &num_weights_));
    OP_REQUIRES_OK(context, context->GetAttr("num_slots", &num_slots));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &optimizer_.rule));
    OP_REQUIRES_OK(context, context->GetAttr("constants", &optimizer_.constants));
    rule_ = DenseFactsOf(optimizer_.rule);
    OP_REQUIRES(context, rule_ != nullptr, InvalidArgumentError(StrCat(optimizer_.rule, ": unknown rule for dense weights")));
    const int constants = static_cast<int>(optimizer_.constants.size());
    OP_REQUIRES(context, num_slots == num_weights_ * rule_->slots && constants == rule_->constants,
                InvalidArgumentError(StrCat(optimizer_.rule, " of ", num_weights_, " weights received ", num_slots, " slots and ", constants, " constants")));
  }

  void Compute(OpKernelContext* context) override {
    const int variables = num_weights_ * (1 + rule_->slots);
    const Tensor& scalars = context->input(context->num_inputs() - 1);
    OP_REQUIRES(context, scalars.dims() == 1 && scalars.NumElements() == 1, InvalidArgumentError("scalars: expected [1]"));
    std::vector<tensorflow::core::RefCountPtr<Var>> held(variables);
    std::vector<Var*> in_order;
    for (int i = 0; i < variables; ++i) {
      OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i), &held[i]));
      in_order.push_back(held[i].get());
    }
    std::sort(in_order.begin(), in_order.end(), [](Var* a, Var* b) { return std::less<void*>()(a->mu(), b->mu()); });
    const bool once = std::adjacent_find(in_order.begin(), in_order.end()) == in_order.end();
    OP_REQUIRES(context, once, InvalidArgumentError("weights: expected each variable once"));
    std::vector<tensorflow::mutex_lock> locks;
    locks.reserve(variables);
    for (Var* variable : in_order) locks.emplace_back(*variable->mu());
    std::vector<Tensor> fresh(variables);
    std::vector<DenseWeights> all;
    for (int i = 0; i < num_weights_; ++i) {
      const Tensor& gradient = context->input(variables + i);
      DenseWeights one{gradient.NumElements(), gradient.flat<float>().data(), {}, {}};
      OP_REQUIRES_OK(context, Open(context, "weights", i, *held[i], gradient, &fresh[i], &one.weights));
      for (int j = 0; j < rule_->slots; ++j) {
        const int slot = i * rule_->slots + j, place = num_weights_ + slot;
        OP_REQUIRES_OK(context, Open(context, "slots", slot, *held[place], gradient, &fresh[place], &one.slots[j]));
      }
      all.push_back(one);
    }
    Guarded(context, [&](const Threads& threads) {
      Optimizer optimizer = optimizer_;
      optimizer.scalars = {scalars.flat<float>()(0)};
      UpdateDense(all, optimizer, threads);
    });
    for (int i = 0; i < variables; ++i) {
      if (fresh[i].NumElements() > 0 && context->status().ok()) *held[i]->tensor() = fresh[i];
    }
  }

 private:
  // Finds the memory of a variable, which must be like its gradient. If someone may still read that memory, the values after the step get another one.
  static absl::Status Open(OpKernelContext* context, const char* name, int number, Var& variable, const Tensor& gradient, Tensor* fresh,
                           Changed* changed) {
    Tensor* values = variable.tensor();
    if (!variable.is_initialized) return absl::FailedPreconditionError(StrCat(name, " ", number, ": not initialised"));
    if (values->dtype() != tensorflow::DT_FLOAT || values->shape() != gradient.shape()) {
      return InvalidArgumentError(StrCat(name, " ", number, ": expected float32 of shape ", gradient.shape().DebugString(), ", received ",
                                         tensorflow::DataTypeString(values->dtype()), " of shape ", values->shape().DebugString()));
    }
    const bool alone = values->RefCountIsOne();
    if (!alone) TF_RETURN_IF_ERROR(context->allocate_temp(values->dtype(), values->shape(), fresh));
    *changed = {static_cast<const float*>(values->data()), static_cast<float*>((alone ? *values : *fresh).data())};
    return absl::OkStatus();
  }

  int num_weights_;
  Optimizer optimizer_;
  const DenseRuleFacts* rule_;
};

REGISTER_KERNEL_BUILDER(Name("DlrmUpdateDense").Device(tensorflow::DEVICE_CPU), UpdateDenseOp);

}  // namespace
}  // namespace dlrm
