// The operations on table rows as TensorFlow sees them: signatures, checks, and the variables' locks.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "row_lookup.h"
#include "row_update.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"

namespace dlrm {
namespace {

using tensorflow::OpInputList;
using tensorflow::Var;

absl::Status OutOfRange(const Tensor& ids, int64_t row, int64_t position, int64_t rows) {
  return InvalidArgumentError(StrCat("ids[", row, ", ", position, "] = ", ids.matrix<int32_t>()(row, position), " is not in [0, ", rows, ")"));
}

// The variables of rows that are an operation's first inputs, locked while this lives: for one writer, or for several readers.
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
    // Two that write to the same rows would each undo some of the other's work.
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
  // What TensorFlow's own sparse operations do before they touch a variable (EnsureSparseVariableAccess): a buffer that somebody else still
  // reads is copied, once; from then on whoever reads the whole variable gets a copy.
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
          return InvalidArgumentError(StrCat("inputs ", j, " and ", i, " are the same variable: each table and slot may be named once in an update"));
        }
      }
    }
    return absl::InternalError("no variable is named twice");
  }

  bool to_write_;
  std::vector<tensorflow::core::RefCountPtr<Var>> variables_;
  std::vector<Var*> locked_;
};

// Update ------------------------------------------------------------------------------------------------------------------------------------

REGISTER_OP("DlrmUpdateRows")
    .Input("tables: num_tables * resource")
    .Input("slots: num_slots * resource")
    .Input("ids: int32")
    .Input("gradients: num_gradients * T")
    .Input("scalars: float")
    .Input("loss_scale: float")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_tables: int >= 1")
    .Attr("num_slots: int >= 0")
    .Attr("num_gradients: int >= 1")
    .Attr("id_rows: list(int)")
    .Attr("columns: list(int)")
    .Attr("rule: string")
    .Attr("constants: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Update rows of tables in place; none is touched if any id is out of range.

tables: [V, width] float32 each, any widths.
slots: of the optimizer, of their tables' shapes, or [V, 1] where it keeps one number a row: all of the first table, then all of the second, ...
ids: [R, B].
gradients: of B samples in equal parts along the first dimension; a sample's gradient is what its part holds beside that dimension, flattened.
scalars: of this step: the learning rate (with Adam, after the bias correction), then what else the rule needs.
id_rows: for each table the row of `ids` that holds its ids.
columns: for each table the first of its columns in a sample's gradient.
rule: a name in row_rules.h.
constants: of the rule.
loss_scale: what the gradients are divided by, in float32.
)doc");

template <class T>
class UpdateRowsOp : public OpKernel {
 public:
  explicit UpdateRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_slots;
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(context, context->GetAttr("num_slots", &num_slots));
    OP_REQUIRES_OK(context, context->GetAttr("id_rows", &id_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &optimizer_.rule));
    OP_REQUIRES_OK(context, context->GetAttr("constants", &optimizer_.constants));
    rule_ = FactsOf(optimizer_.rule);
    OP_REQUIRES(context, rule_ != nullptr, InvalidArgumentError(StrCat(optimizer_.rule, ": no rule of this name")));
    const int constants = static_cast<int>(optimizer_.constants.size());
    OP_REQUIRES(context, num_slots == num_tables_ * rule_->slots && constants == rule_->constants,
                InvalidArgumentError(StrCat(optimizer_.rule, " of ", num_tables_, " tables received ", num_slots, " slots and ", constants, " constants")));
    OP_REQUIRES(context, static_cast<int>(id_rows_.size()) == num_tables_ && static_cast<int>(columns_.size()) == num_tables_,
                InvalidArgumentError(StrCat("expected an id_row and a column for each of ", num_tables_, " tables")));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor *ids, *scalars, *loss_scale;
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input("ids", &ids));
    OP_REQUIRES_OK(context, context->input("scalars", &scalars));
    OP_REQUIRES_OK(context, context->input("loss_scale", &loss_scale));
    OP_REQUIRES(context, loss_scale->NumElements() == 1,
                InvalidArgumentError(StrCat("loss_scale: expected a number, received ", loss_scale->shape().DebugString())));
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES(context, ids->dims() == 2 && ids->dim_size(1) < (int64_t{1} << 30),
                InvalidArgumentError(StrCat("ids: expected [R, B], received ", ids->shape().DebugString())));
    OP_REQUIRES(context, scalars->NumElements() == rule_->scalars,
                InvalidArgumentError(StrCat("scalars: expected ", rule_->scalars, ", received ", scalars->shape().DebugString())));
    int64_t length = 0;
    OP_REQUIRES_OK(context, FindLength(gradients, ids->dim_size(1), &length));

    Tables tables(/*to_write=*/true);
    OP_REQUIRES_OK(context, tables.Open(context, num_tables_ * (1 + rule_->slots)));
    std::vector<Shard> shards(num_tables_);
    for (int i = 0; i < num_tables_; ++i) OP_REQUIRES_OK(context, MakeShard(tables, i, ids->dim_size(0), length, &shards[i]));
    if (ids->dim_size(1) == 0) return;

    absl::Status status;
    Guarded(context, [&](const Threads& threads) {
      std::vector<Groups> groups(ids->dim_size(0));
      status = Group(*ids, shards, threads, &groups);
      if (!status.ok()) return;
      Optimizer optimizer = optimizer_;
      optimizer.loss_scale = loss_scale->flat<float>()(0);
      optimizer.scalars.assign(scalars->flat<float>().data(), scalars->flat<float>().data() + rule_->scalars);
      UpdateRows(shards, groups, Samples(gradients, length), optimizer, threads);
    });
    OP_REQUIRES_OK(context, status);
  }

 private:
  using Element = typename ElementOf<T>::type;

  // Of a sample's gradient, in elements.
  static absl::Status FindLength(const OpInputList& gradients, int64_t batch, int64_t* length) {
    const int64_t each = batch / gradients.size();
    *length = each == 0 ? 0 : gradients[0].NumElements() / each;
    for (const Tensor& part : gradients) {
      if (part.dims() < 1 || part.dim_size(0) != each || each * gradients.size() != batch || part.NumElements() != each * *length) {
        return InvalidArgumentError(
            StrCat("gradients: expected ", gradients.size(), " equal parts of ", batch, " samples, received ", part.shape().DebugString()));
      }
    }
    return absl::OkStatus();
  }

  // Where each sample's gradient begins.
  static std::vector<const Element*> Samples(const OpInputList& gradients, int64_t length) {
    std::vector<const Element*> samples;
    samples.reserve(gradients.size() * gradients[0].dim_size(0));
    for (const Tensor& part : gradients) {
      const Element* first = Elements<T>(part);
      for (int64_t i = 0; i < part.dim_size(0); ++i) samples.push_back(first + i * length);
    }
    return samples;
  }

  absl::Status MakeShard(const Tables& tables, int i, int64_t id_rows, int64_t length, Shard* shard) const {
    *shard = {tables.values(i), {nullptr, nullptr}, tables.rows(i), tables.width(i), id_rows_[i], columns_[i]};
    for (int k = 0; k < rule_->slots; ++k) {
      const int slot = num_tables_ + i * rule_->slots + k;
      const int width = rule_->row_slot[k] ? 1 : shard->width;
      if (tables.rows(slot) != shard->rows || tables.width(slot) != width) {
        return InvalidArgumentError(StrCat("slot ", k, " of table ", i, ": expected [", shard->rows, ", ", width, "], received [",
                                           tables.rows(slot), ", ", tables.width(slot), "]"));
      }
      shard->slots[k] = tables.values(slot);
    }
    const bool column_fits = length == 0 || (shard->column >= 0 && shard->column + shard->width <= length);
    if (shard->id_row < 0 || shard->id_row >= id_rows || !column_fits) {
      return InvalidArgumentError(StrCat("table ", i, " of width ", shard->width, " wants row ", shard->id_row, " of ", id_rows, " of ids and column ",
                                         shard->column, " of ", length, " of gradients"));
    }
    return absl::OkStatus();
  }

  static absl::Status Group(const Tensor& ids, const std::vector<Shard>& shards, const Threads& threads, std::vector<Groups>* groups) {
    const int batch = static_cast<int>(ids.dim_size(1));
    const int32_t* values = ids.flat<int32_t>().data();
    std::vector<int64_t> rows(groups->size(), -1), bad(groups->size(), -1);
    for (const Shard& shard : shards) rows[shard.id_row] = rows[shard.id_row] < 0 ? shard.rows : std::min(rows[shard.id_row], shard.rows);
    threads.run(groups->size(), [&](int64_t i) {
      if (rows[i] >= 0) bad[i] = (*groups)[i].Build(values + i * batch, batch, rows[i]);
    });
    for (size_t i = 0; i < bad.size(); ++i) {
      if (bad[i] >= 0) return OutOfRange(ids, i, bad[i], rows[i]);
    }
    return absl::OkStatus();
  }

  int num_tables_;
  const RuleFacts* rule_;
  std::vector<int> id_rows_;
  std::vector<int64_t> columns_;
  Optimizer optimizer_;
};

DLRM_REGISTER_KERNELS("DlrmUpdateRows", UpdateRowsOp);

// Lookup ------------------------------------------------------------------------------------------------------------------------------------

REGISTER_OP("DlrmLookUpRows")
    .Input("tables: num_tables * resource")
    .Input("ids: int32")
    .Output("vectors: T")
    .Attr("T: {float, bfloat16, half}")
    .Attr("num_tables: int >= 1")
    .Attr("id_rows: list(int)")
    .Attr("widths: list(int)")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) -> absl::Status {
      std::vector<int> widths;
      int num_tables;
      TF_RETURN_IF_ERROR(context->GetAttr("widths", &widths));
      TF_RETURN_IF_ERROR(context->GetAttr("num_tables", &num_tables));
      tensorflow::shape_inference::ShapeHandle ids;
      TF_RETURN_IF_ERROR(context->WithRank(context->input(num_tables), 2, &ids));
      context->set_output(0, context->Matrix(context->Dim(ids, 1), std::accumulate(widths.begin(), widths.end(), int64_t{0})));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Rows of tables, side by side in the order of the tables.

tables: [V, width] float32 each.
ids: [R, B].
vectors: [B, sum of the widths].
id_rows: for each table the row of `ids` that holds its ids.
widths: of the tables.
)doc");

template <class T>
class LookUpRowsOp : public OpKernel {
 public:
  explicit LookUpRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_tables;
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables));
    OP_REQUIRES_OK(context, context->GetAttr("id_rows", &id_rows_));
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES(context, static_cast<int>(id_rows_.size()) == num_tables && static_cast<int>(widths_.size()) == num_tables,
                InvalidArgumentError(StrCat("expected an id_row and a width for each of ", num_tables, " tables")));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor* ids;
    OP_REQUIRES_OK(context, context->input("ids", &ids));
    OP_REQUIRES(context, ids->dims() == 2, InvalidArgumentError(StrCat("ids: expected [R, B], received ", ids->shape().DebugString())));
    const int64_t batch = ids->dim_size(1);
    Tables tables(/*to_write=*/false);
    OP_REQUIRES_OK(context, tables.Open(context, static_cast<int>(widths_.size())));
    std::vector<Source> sources;
    int64_t length = 0;
    for (int i = 0; i < static_cast<int>(widths_.size()); ++i) {
      OP_REQUIRES(context, tables.width(i) == widths_[i] && id_rows_[i] >= 0 && id_rows_[i] < ids->dim_size(0),
                  InvalidArgumentError(StrCat("table ", i, " is ", tables.width(i), " wide, expected ", widths_[i], ", and wants row ", id_rows_[i],
                                              " of ", ids->dim_size(0), " of ids")));
      sources.push_back({tables.values(i), tables.rows(i), widths_[i], length, ids->flat<int32_t>().data() + id_rows_[i] * batch});
      length += widths_[i];
    }
    Tensor* vectors;
    OP_REQUIRES_OK(context, context->allocate_output(0, {batch, length}, &vectors));
    PreferHugePages(vectors);
    BadId bad;
    Guarded(context, [&](const Threads& threads) { bad = LookUpRows(sources, batch, length, Elements<T>(vectors), threads); });
    OP_REQUIRES(context, bad.source < 0, OutOfRange(*ids, id_rows_[std::max(bad.source, 0)], bad.position, tables.rows(std::max(bad.source, 0))));
  }

 private:
  std::vector<int> id_rows_, widths_;
};

DLRM_REGISTER_KERNELS("DlrmLookUpRows", LookUpRowsOp);

}  // namespace
}  // namespace dlrm
