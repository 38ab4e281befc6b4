// TensorFlow operations on table rows: signatures and checks.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "row_lookup.h"
#include "row_update.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow_kernel.h"
#include "tensorflow_tables.h"

namespace dlrm {
namespace {

using tensorflow::OpInputList;

// A feature's lookup: the index of its table, and its rows of `ids`, which those of the weights follow, if there are any.
struct Lookup {
  int table, id_row, hotness;
  bool mean, weighted;

  int id_rows() const { return weighted ? 2 * hotness : hotness; }
  FeatureIds ids(const Tensor& all) const {
    const int32_t* first = all.flat<int32_t>().data() + id_row * all.dim_size(1);
    return {first, hotness, weighted ? first + hotness * all.dim_size(1) : nullptr};
  }
};

absl::Status GetLookups(OpKernelConstruction* context, int num_tables, std::vector<Lookup>* lookups) {
  std::vector<int> tables, id_rows, hotness;
  std::vector<bool> means, weighted;
  TF_RETURN_IF_ERROR(context->GetAttr("lookup_tables", &tables));
  TF_RETURN_IF_ERROR(context->GetAttr("id_rows", &id_rows));
  TF_RETURN_IF_ERROR(context->GetAttr("hotness", &hotness));
  TF_RETURN_IF_ERROR(context->GetAttr("means", &means));
  TF_RETURN_IF_ERROR(context->GetAttr("weighted", &weighted));
  const size_t count = tables.size();
  if (id_rows.size() != count || hotness.size() != count || means.size() != count || weighted.size() != count) {
    return InvalidArgumentError(StrCat("expected an id_row, a hotness, a mean and a weighted for each of ", count, " lookups"));
  }
  for (size_t i = 0; i < count; ++i) {
    if (tables[i] < 0 || tables[i] >= num_tables || hotness[i] < 1) {
      return InvalidArgumentError(StrCat("lookup ", i, ": expected a table below ", num_tables, " and a hotness of at least 1, received table ",
                                         tables[i], ", hotness ", hotness[i]));
    }
    lookups->push_back({tables[i], id_rows[i], hotness[i], means[i], weighted[i]});
  }
  return absl::OkStatus();
}

absl::Status CheckIds(const Tensor& ids, const std::vector<Lookup>& lookups) {
  if (ids.dims() != 2) return InvalidArgumentError(StrCat("ids: expected [K, B], received ", ids.shape().DebugString()));
  for (size_t i = 0; i < lookups.size(); ++i) {
    const int64_t first = lookups[i].id_row, end = first + lookups[i].id_rows();
    if (first < 0 || end > ids.dim_size(0)) {
      return InvalidArgumentError(StrCat("lookup ", i, ": rows [", first, ", ", end, ") are not within the ", ids.dim_size(0), " rows of ids"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checked(const Tensor& ids, BadId bad) {
  if (bad.id == nullptr) return absl::OkStatus();
  const int64_t at = bad.id - ids.flat<int32_t>().data(), batch = ids.dim_size(1);
  return InvalidArgumentError(StrCat("ids[", at / batch, ", ", at % batch, "] = ", *bad.id, " is not in [0, ", bad.rows, ")"));
}

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
    .Attr("lookup_tables: list(int)")
    .Attr("id_rows: list(int)")
    .Attr("hotness: list(int)")
    .Attr("means: list(bool)")
    .Attr("weighted: list(bool)")
    .Attr("columns: list(int)")
    .Attr("rule: string")
    .Attr("constants: list(float)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Updates rows of tables in place; no row changes if any id is out of range.

tables: [V, width] float32 each, any widths.
slots: the optimizer's slots, of their tables' shapes or [V, 1] for one number a row: all slots of the first table, then all of the second, ...
ids: [K, B]; -1 is no id where a lookup's hotness is above 1 or its ids have weights.
gradients: the gradients of B samples in equal parts along the first dimension; the other dimensions are flattened.
scalars: of this step: the learning rate (for Adam, after the bias correction), then other numbers that the rule needs.
lookup_tables: the table of each lookup. The gradients of all lookups in a table are summed before its rows are updated.
id_rows: the first row of `ids` of each lookup.
hotness: the number of rows of `ids` of each lookup, without weights.
means: for each lookup, true if its vector is the mean of rows, false for the sum.
weighted: for each lookup, true if its ids have weights: as many further rows of `ids`, which hold the bits of float32 numbers.
columns: the first column of each lookup in a sample's gradient.
rule: a name in row_rules.h.
constants: the rule's constants.
loss_scale: the divisor of the gradients, applied in float32.
)doc");

template <class T>
class UpdateRowsOp : public OpKernel {
 public:
  explicit UpdateRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    int num_slots;
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(context, context->GetAttr("num_slots", &num_slots));
    OP_REQUIRES_OK(context, GetLookups(context, num_tables_, &lookups_));
    OP_REQUIRES_OK(context, context->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(context, context->GetAttr("rule", &optimizer_.rule));
    OP_REQUIRES_OK(context, context->GetAttr("constants", &optimizer_.constants));
    rule_ = FactsOf(optimizer_.rule);
    OP_REQUIRES(context, rule_ != nullptr, InvalidArgumentError(StrCat(optimizer_.rule, ": unknown optimizer rule")));
    const int constants = static_cast<int>(optimizer_.constants.size());
    OP_REQUIRES(context, num_slots == num_tables_ * rule_->slots && constants == rule_->constants,
                InvalidArgumentError(StrCat(optimizer_.rule, " of ", num_tables_, " tables received ", num_slots, " slots and ", constants, " constants")));
    OP_REQUIRES(context, columns_.size() == lookups_.size(),
                InvalidArgumentError(StrCat("expected a column for each of ", lookups_.size(), " lookups, received ", columns_.size())));
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
    OP_REQUIRES_OK(context, CheckIds(*ids, lookups_));
    OP_REQUIRES(context, scalars->NumElements() == rule_->scalars,
                InvalidArgumentError(StrCat("scalars: expected ", rule_->scalars, ", received ", scalars->shape().DebugString())));
    int64_t length = 0;
    OP_REQUIRES_OK(context, FindLength(gradients, ids->dim_size(1), &length));

    Tables tables(/*to_write=*/true);
    OP_REQUIRES_OK(context, tables.Open(context, num_tables_ * (1 + rule_->slots)));
    std::vector<Shard> shards(num_tables_);
    for (int i = 0; i < num_tables_; ++i) OP_REQUIRES_OK(context, MakeShard(tables, i, &shards[i]));
    std::vector<TableIds> to_group;
    OP_REQUIRES_OK(context, AddUses(*ids, length, &shards));
    OP_REQUIRES_OK(context, AddIds(*ids, &shards, &to_group));
    if (ids->dim_size(1) == 0) return;

    absl::Status status;
    Guarded(context, [&](const Threads& threads) {
      std::vector<std::vector<Groups>> groups;
      status = Checked(*ids, GroupIds(to_group, ids->dim_size(1), threads, &groups));
      if (!status.ok()) return;
      const Counts counts = AddCounts(*ids, threads, &shards);
      Optimizer optimizer = optimizer_;
      optimizer.loss_scale = loss_scale->flat<float>()(0);
      optimizer.scalars.assign(scalars->flat<float>().data(), scalars->flat<float>().data() + rule_->scalars);
      UpdateRows(shards, groups, Samples(gradients, length), optimizer, threads);
    });
    OP_REQUIRES_OK(context, status);
  }

 private:
  using Element = typename ElementOf<T>::type;
  using IdRows = std::tuple<int, int, bool>;  // first row, number of rows, and whether weights follow
  using Counts = std::map<IdRows, std::vector<float>>;

  // Finds the length of a sample's gradient, in elements.
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

  // Returns the beginning of each sample's gradient.
  static std::vector<const Element*> Samples(const OpInputList& gradients, int64_t length) {
    std::vector<const Element*> samples;
    samples.reserve(gradients.size() * gradients[0].dim_size(0));
    for (const Tensor& part : gradients) {
      const Element* first = Elements<T>(part);
      for (int64_t i = 0; i < part.dim_size(0); ++i) samples.push_back(first + i * length);
    }
    return samples;
  }

  absl::Status MakeShard(const Tables& tables, int i, Shard* shard) const {
    *shard = {tables.values(i), {nullptr, nullptr}, tables.rows(i), tables.width(i), 0, {}};
    for (int k = 0; k < rule_->slots; ++k) {
      const int slot = num_tables_ + i * rule_->slots + k;
      const int width = rule_->row_slot[k] ? 1 : shard->width;
      if (tables.rows(slot) != shard->rows || tables.width(slot) != width) {
        return InvalidArgumentError(StrCat("slot ", k, " of table ", i, ": expected [", shard->rows, ", ", width, "], received [",
                                           tables.rows(slot), ", ", tables.width(slot), "]"));
      }
      shard->slots[k] = tables.values(slot);
    }
    return absl::OkStatus();
  }

  // The lists of a weighted lookup count place by place, so that a position in the groups tells the place, and with it the weight.
  static std::vector<FeatureIds> Places(const Lookup& lookup, const Tensor& ids) {
    const FeatureIds all = lookup.ids(ids);
    if (!all.weights) return {all};
    std::vector<FeatureIds> places;
    for (int64_t j = 0; j < all.hotness; ++j) places.push_back({all.ids + j * ids.dim_size(1), 1, all.weights + j * ids.dim_size(1)});
    return places;
  }

  absl::Status AddUses(const Tensor& ids, int64_t length, std::vector<Shard>* shards) const {
    for (size_t i = 0; i < lookups_.size(); ++i) {
      Shard& shard = (*shards)[lookups_[i].table];
      if (length > 0 && (columns_[i] < 0 || columns_[i] > length - shard.width)) {
        return InvalidArgumentError(StrCat("lookup ", i, " in table ", lookups_[i].table, ": expected ", shard.width, " columns within the ", length,
                                           " of gradients, received first column ", columns_[i]));
      }
      for (const FeatureIds& place : Places(lookups_[i], ids)) shard.uses.push_back({columns_[i], nullptr, place.weights});
    }
    return absl::OkStatus();
  }

  // Collects the ids of the tables. Tables with the same ids, such as columns of one table, share them.
  absl::Status AddIds(const Tensor& ids, std::vector<Shard>* shards, std::vector<TableIds>* to_group) const {
    std::vector<std::vector<IdRows>> rows(shards->size());
    for (const Lookup& lookup : lookups_) rows[lookup.table].emplace_back(lookup.id_row, lookup.hotness, lookup.weighted);
    std::map<std::vector<IdRows>, int> seen;
    for (size_t i = 0; i < shards->size(); ++i) {
      Shard& shard = (*shards)[i];
      const auto [place, is_new] = seen.emplace(rows[i], static_cast<int>(to_group->size()));
      shard.grouped = place->second;
      if (is_new) to_group->push_back({{}, shard.rows});
      TableIds& table = (*to_group)[shard.grouped];
      table.rows = std::min(table.rows, shard.rows);
      if (!is_new) continue;
      for (const Lookup& lookup : lookups_) {
        if (lookup.table != static_cast<int>(i)) continue;
        for (const FeatureIds& place : Places(lookup, ids)) table.features.push_back(place);
      }
      if (!Countable(table.features, ids.dim_size(1))) {
        return InvalidArgumentError(StrCat("table ", i, ": its ", rows[i].size(), " lookups have ids of ", ids.dim_size(1),
                                           " samples, more than the 2^30 ids that an update supports; use a smaller batch"));
      }
    }
    return absl::OkStatus();
  }

  // Counts the ids of each sample for means; the shards point into the result, which must outlive them.
  Counts AddCounts(const Tensor& ids, const Threads& threads, std::vector<Shard>* shards) const {
    Counts counts;
    std::vector<size_t> next(shards->size());  // next use of each shard
    for (const Lookup& lookup : lookups_) {
      Use* use = (*shards)[lookup.table].uses.data() + next[lookup.table];
      const int uses = lookup.weighted ? lookup.hotness : 1;
      next[lookup.table] += uses;
      if (!lookup.mean || (lookup.hotness == 1 && !lookup.weighted)) continue;
      std::vector<float>& of = counts[{lookup.id_row, lookup.hotness, lookup.weighted}];
      if (of.empty()) of = CountIds(lookup.ids(ids), ids.dim_size(1), threads);
      for (int j = 0; j < uses; ++j) use[j].counts = of.data();
    }
    return counts;
  }

  int num_tables_;
  const RuleFacts* rule_;
  std::vector<Lookup> lookups_;
  std::vector<int64_t> columns_;  // for each lookup
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
    .Attr("lookup_tables: list(int)")
    .Attr("id_rows: list(int)")
    .Attr("hotness: list(int)")
    .Attr("means: list(bool)")
    .Attr("weighted: list(bool)")
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
Rows of tables, or sums or means of several, side by side in the order of the lookups.

tables: [V, width] float32 each.
ids: [K, B]; -1 is no id where a lookup's hotness is above 1 or its ids have weights.
vectors: [B, sum of the widths].
lookup_tables: the table of each lookup.
id_rows: the first row of `ids` of each lookup.
hotness: the number of rows of `ids` of each lookup, without weights.
means: for each lookup, true for the mean of rows, false for the sum.
weighted: for each lookup, true if its ids have weights: as many further rows of `ids`, which hold the bits of float32 numbers.
widths: the width of each lookup's table.
)doc");

template <class T>
class LookUpRowsOp : public OpKernel {
 public:
  explicit LookUpRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_tables", &num_tables_));
    OP_REQUIRES_OK(context, GetLookups(context, num_tables_, &lookups_));
    OP_REQUIRES_OK(context, context->GetAttr("widths", &widths_));
    OP_REQUIRES(context, widths_.size() == lookups_.size(),
                InvalidArgumentError(StrCat("expected a width for each of ", lookups_.size(), " lookups, received ", widths_.size())));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor* ids;
    OP_REQUIRES_OK(context, context->input("ids", &ids));
    OP_REQUIRES_OK(context, CheckIds(*ids, lookups_));
    Tables tables(/*to_write=*/false);
    OP_REQUIRES_OK(context, tables.Open(context, num_tables_));
    std::vector<Source> sources;
    int64_t length = 0;
    for (size_t i = 0; i < lookups_.size(); ++i) {
      const int table = lookups_[i].table;
      OP_REQUIRES(context, tables.width(table) == widths_[i],
                  InvalidArgumentError(StrCat("lookup ", i, ": table ", table, " is ", tables.width(table), " wide, expected ", widths_[i])));
      sources.push_back({tables.values(table), tables.rows(table), widths_[i], length, lookups_[i].ids(*ids), lookups_[i].mean});
      length += widths_[i];
    }
    Tensor* vectors;
    OP_REQUIRES_OK(context, context->allocate_output(0, {ids->dim_size(1), length}, &vectors));
    PreferHugePages(vectors);
    BadId bad;
    Guarded(context, [&](const Threads& threads) { bad = LookUpRows(sources, ids->dim_size(1), length, Elements<T>(vectors), threads); });
    OP_REQUIRES_OK(context, Checked(*ids, bad));
  }

 private:
  int num_tables_;
  std::vector<Lookup> lookups_;
  std::vector<int> widths_;
};

DLRM_REGISTER_KERNELS("DlrmLookUpRows", LookUpRowsOp);

}  // namespace
}  // namespace dlrm
