#include "row_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lanes.h"
#include "memory.h"
#include "row_rules.h"

namespace dlrm {
namespace {

constexpr int kMaxColumns = kRun;  // columns of a task, so that the sum stays in the first-level cache
constexpr int kPositionsPerTask = 256;
constexpr int kAhead = 4;  // gradients and rows that are prefetched

// What a sample's gradient is divided by for a mean, then multiplied by.
struct Factors {
  float count, weight;
};

// Scalings of a gradient x before it is added; kFactors: they use the factors. Division by a power of two equals multiplication by its inverse, bit for bit.
struct Whole {
  static constexpr bool kFactors = false;
  template <class X>
  X operator()(X x, float, Factors) const {
    return x;
  }
};
struct Times {
  static constexpr bool kFactors = false;
  template <class X>
  X operator()(X x, float by, Factors) const {
    return x * by;
  }
};
struct Over {
  static constexpr bool kFactors = false;
  template <class X>
  X operator()(X x, float by, Factors) const {
    return x / by;
  }
};
template <class Scaled>
struct MeanOf {
  static constexpr bool kFactors = true;
  template <class X>
  X operator()(X x, float by, Factors factors) const {
    return Scaled()(x, by, factors) / factors.count;
  }
};
template <class Scaled>
struct Weighted {
  static constexpr bool kFactors = true;
  template <class X>
  X operator()(X x, float by, Factors factors) const {
    return Scaled()(x, by, factors) * factors.weight;
  }
};

// A range of a shard's groups, and a range of its columns.
struct Task {
  int shard, part, first_group, last_group, first_column, last_column;
};

// The gradients of a task, position by position.
template <class G>
class Gradients {
 public:
  Gradients(const Task& task, const Shard& shard, const Groups& groups, const std::vector<const G*>& samples)
      : positions_(groups.positions()),
        samples_(samples.data()),
        uses_(shard.uses.data()),
        bits_(SampleBits(samples.size())),
        first_column_(task.first_column),
        width_(task.last_column - task.first_column),
        last_(groups.end(task.last_group - 1)) {}

  int width() const { return width_; }
  DLRM_INLINED const G* values(int position) const { return samples_[sample(position)] + use(position).column + first_column_; }
  Factors factors(int position) const {
    const Use& of = use(position);
    return {of.counts ? of.counts[sample(position)] : 1.0f, of.weights ? FloatOf(of.weights[sample(position)]) : 1.0f};
  }
  DLRM_INLINED void Prefetch(int position, int width) const {
    if (position < last_) PrefetchToRead(values(position), width * static_cast<int>(sizeof(G)));
  }

 private:
  const Use& use(int position) const { return uses_[positions_[position] >> bits_]; }
  int32_t sample(int position) const { return positions_[position] & ((int32_t{1} << bits_) - 1); }

  const int32_t* positions_;
  const G* const* samples_;
  const Use* uses_;
  int bits_, first_column_, width_, last_;
};

// Sums the gradients from position `begin` to before `end`, in this order, from zero.
template <class G>
using SumGradients = void (*)(const Gradients<G>& gradients, int begin, int end, float by, float* sum);

// Sums kWidth elements, a multiple of kLanes, in registers; with kWidth 0, any number of elements.
template <class G, int kWidth, class Scaled>
void Sum(const Gradients<G>& gradients, int begin, int end, float by, float* sum) {
  constexpr Scaled kScaled;
  if constexpr (kWidth > 0) {
    constexpr int kVectors = kWidth / kLanes;
    Lanes sums[kVectors];
    DLRM_UNROLLED
    for (int i = 0; i < kVectors; ++i) sums[i] = Lanes{};
    for (int position = begin; position < end; ++position) {
      gradients.Prefetch(position + kAhead, kWidth);
      const G* const values = gradients.values(position);
      const Factors factors = Scaled::kFactors ? gradients.factors(position) : Factors{1, 1};
      DLRM_UNROLLED
      for (int i = 0; i < kVectors; ++i) sums[i] += kScaled(LoadWidened(values + i * kLanes), by, factors);
    }
    DLRM_UNROLLED
    for (int i = 0; i < kVectors; ++i) Store(sums[i], sum + i * kLanes);
  } else {
    for (int i = 0; i < gradients.width(); ++i) sum[i] = 0;
    for (int position = begin; position < end; ++position) {
      gradients.Prefetch(position + kAhead, gradients.width());
      const Factors factors = Scaled::kFactors ? gradients.factors(position) : Factors{1, 1};
      ForFloats(gradients.values(position), gradients.width(), [=](const auto* values, int64_t first, int64_t n) {
        for (int64_t i = 0; i < n; ++i) sum[first + i] += kScaled(Widened(values[i]), by, factors);
      });
    }
  }
}

// Returns the function that sums gradients of so many columns; the overload below also returns the number to divide or multiply by.
template <class G, class Scaled>
SumGradients<G> SumOf(int width) {
  switch (width) {
    case 128:
      return Sum<G, 128, Scaled>;
    case 64:
      return Sum<G, 64, Scaled>;
    case 32:
      return Sum<G, 32, Scaled>;
    case 16:
      return Sum<G, 16, Scaled>;
    default:
      return Sum<G, 0, Scaled>;
  }
}

// The same for the uses of a shard, which may be means and have weights.
template <class G, class Scaled>
SumGradients<G> SumOf(const Shard& shard, int width) {
  const bool mean = std::any_of(shard.uses.begin(), shard.uses.end(), [](const Use& use) { return use.counts != nullptr; });
  const bool weighted = std::any_of(shard.uses.begin(), shard.uses.end(), [](const Use& use) { return use.weights != nullptr; });
  if (weighted) return mean ? SumOf<G, Weighted<MeanOf<Scaled>>>(width) : SumOf<G, Weighted<Scaled>>(width);
  return mean ? SumOf<G, MeanOf<Scaled>>(width) : SumOf<G, Scaled>(width);
}

template <class G>
std::pair<SumGradients<G>, float> SumOf(const Shard& shard, int width, float loss_scale) {
  int exponent;
  if (std::frexp(loss_scale, &exponent) != 0.5f || std::abs(exponent) >= 120) return {SumOf<G, Over>(shard, width), loss_scale};
  return {loss_scale == 1 ? SumOf<G, Whole>(shard, width) : SumOf<G, Times>(shard, width), 1 / loss_scale};
}

// The task's columns of its rows.
template <class Update>
class Rows {
 public:
  Rows(const Task& task, const Shard& shard, const Groups& groups) : task_(task), shard_(shard), groups_(groups) {}

  void Prefetch(int group, int width) const {
    if (group >= task_.last_group) return;
    PrefetchToWrite(shard_.table + offset(group), width * 4);
    for (int slot = 0; slot < Update::kSlots; ++slot) PrefetchToWrite(slot_of(slot, group), Update::kRowSlot[slot] ? 4 : width * 4);
  }
  void Apply(const Update& update, int group, const float* sum, int width) const {
    float* slots[kMaxSlots] = {};
    for (int slot = 0; slot < Update::kSlots; ++slot) slots[slot] = slot_of(slot, group);
    update.Apply(sum, shard_.table + offset(group), slots, width);
  }

 private:
  int64_t offset(int group) const { return static_cast<int64_t>(groups_.id(group)) * shard_.width + task_.first_column; }
  float* slot_of(int slot, int group) const { return shard_.slots[slot] + (Update::kRowSlot[slot] ? groups_.id(group) : offset(group)); }

  const Task& task_;
  const Shard& shard_;
  const Groups& groups_;
};

template <class G, class Update, int kWidth>
void Run(const Task& task, const Shard& shard, const Groups& groups, const std::vector<const G*>& samples, float loss_scale, const Update& update) {
  const Gradients<G> gradients(task, shard, groups, samples);
  const Rows<Update> rows(task, shard, groups);
  const int width = kWidth ? kWidth : gradients.width();
  const auto [add_up, by] = SumOf<G>(shard, width, loss_scale);
  alignas(kCacheLine) float few[kMaxColumns];
  std::vector<float> many(width > kMaxColumns ? width : 0);  // used only if the rule needs whole rows
  float* const sum = width > kMaxColumns ? many.data() : few;
  for (int i = 0; i < kAhead; ++i) {
    rows.Prefetch(task.first_group + i, width);
    gradients.Prefetch(groups.begin(task.first_group) + i, width);
  }
  for (int group = task.first_group; group < task.last_group; ++group) {
    rows.Prefetch(group + kAhead, width);
    add_up(gradients, groups.begin(group), groups.end(group), by, sum);
    rows.Apply(update, group, sum, width);
  }
}

int64_t PositionsOf(const std::vector<Groups>& groups) {
  int64_t positions = 0;
  for (const Groups& of : groups) positions += of.size() ? of.end(of.size() - 1) : 0;
  return positions;
}

// Cuts the work into tasks of about equal size. A group of very many positions is cut by columns, unless rows must stay whole: a sum keeps its order.
// A shard's tasks follow each other, so that the gradients which they read, each once for every id of a list, stay in the caches.
std::vector<Task> Tasks(const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups, int threads, bool whole_rows) {
  std::vector<Task> tasks;
  int64_t positions = 0;
  for (const Shard& shard : shards) positions += PositionsOf(groups[shard.grouped]);
  const int64_t heavy = std::max<int64_t>(4 * kPositionsPerTask, positions / (4 * threads));
  for (size_t p = 0; p < shards.size(); ++p) {
    for (size_t part = 0; part < groups[shards[p].grouped].size(); ++part) {
      const Groups& of = groups[shards[p].grouped][part];
      const auto add = [&](int first, int last, int columns) {
        if (first == last) return;
        if (whole_rows) columns = std::max(shards[p].width, 1);
        for (int column = 0; column < shards[p].width; column += columns) {
          tasks.push_back({static_cast<int>(p), static_cast<int>(part), first, last, column, std::min(column + columns, shards[p].width)});
        }
      };
      int first = 0;
      for (int group = 0; group < of.size(); ++group) {
        if (threads > 1 && of.end(group) - of.begin(group) > heavy) {
          add(first, group, kMaxColumns);
          add(group, group + 1, std::clamp((shards[p].width / (2 * threads) + 15) / 16 * 16, 16, kMaxColumns));
          first = group + 1;
        } else if (of.end(group) - of.begin(first) + group - first >= 2 * kPositionsPerTask) {
          add(first, group + 1, kMaxColumns);
          first = group + 1;
        }
      }
      add(first, of.size(), kMaxColumns);
    }
  }
  return tasks;
}

template <class G, class Update>
void UpdateFrom(const std::vector<const G*>& samples, const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups,
                const Update& update, float loss_scale, const Threads& threads) {
  const std::vector<Task> tasks = Tasks(shards, groups, threads.count, kWholeRows<Update>);
  if (tasks.empty()) return;
  threads.run(tasks.size(), [&](int64_t i) {
    const FlushDenormals flush;
    const Task& task = tasks[i];
    const Shard& shard = shards[task.shard];
    const auto run = task.last_column - task.first_column == 128 ? Run<G, Update, 128> : Run<G, Update, 0>;
    run(task, shard, groups[shard.grouped][task.part], samples, loss_scale, update);
  });
}

// The gradients of one shard at a time, side by side: [samples, columns]. In the batch each sample's lie on other pages of memory than the next one's, and
// a processor finds only some thousand pages quickly.
template <class G>
class Together {
 public:
  // Copies the gradients of the shard, and points its uses to the copy.
  void Copy(const std::vector<const G*>& samples, const Threads& threads, Shard* shard) {
    const std::vector<int64_t> columns = ColumnsOf(*shard);
    const int64_t n = static_cast<int64_t>(samples.size()), length = static_cast<int64_t>(columns.size()) * shard->width;
    if (size_ < n * length) gradients_ = Allocate<G>(size_ = n * length);
    samples_.resize(n);
    threads.run((n + kSamplesPerTask - 1) / kSamplesPerTask, [&](int64_t task) {
      for (int64_t i = task * kSamplesPerTask; i < std::min(n, (task + 1) * kSamplesPerTask); ++i) {
        G* to = gradients_.get() + i * length;
        samples_[i] = to;
        for (const int64_t column : columns) {
          if (i + kAhead < n) PrefetchToRead(samples[i + kAhead] + column, shard->width * static_cast<int>(sizeof(G)));
          to = std::copy_n(samples[i] + column, shard->width, to);
        }
      }
    });
    for (Use& use : shard->uses) use.column = (std::find(columns.begin(), columns.end(), use.column) - columns.begin()) * shard->width;
  }
  const std::vector<const G*>& samples() const { return samples_; }

  // Returns true if each gradient of the shard is read so often that a copy pays.
  static bool Pays(const Shard& shard, const std::vector<Groups>& groups, size_t samples) {
    return samples >= kSamplesToCopy && PositionsOf(groups) > kReadsToCopy * static_cast<int64_t>(samples * ColumnsOf(shard).size());
  }

 private:
  static constexpr int64_t kReadsToCopy = 16, kSamplesPerTask = 64;
  static constexpr size_t kSamplesToCopy = 4096;

  // The first columns of the shard's gradients: places of one list have the same.
  static std::vector<int64_t> ColumnsOf(const Shard& shard) {
    std::vector<int64_t> columns;
    for (const Use& use : shard.uses) {
      if (columns.empty() || columns.back() != use.column) columns.push_back(use.column);
    }
    return columns;
  }

  int64_t size_ = 0;
  Memory<G> gradients_;
  std::vector<const G*> samples_;
};

template <class G, class Update>
void UpdateBy(const Update& update, const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups,
              const std::vector<const G*>& samples, float loss_scale, const Threads& threads) {
  std::vector<Shard> rest;
  Together<G> together;
  for (const Shard& shard : shards) {
    if (!Together<G>::Pays(shard, groups[shard.grouped], samples.size())) {
      rest.push_back(shard);
      continue;
    }
    Shard moved = shard;
    together.Copy(samples, threads, &moved);
    UpdateFrom(together.samples(), {moved}, groups, update, loss_scale, threads);
  }
  UpdateFrom(samples, rest, groups, update, loss_scale, threads);
}

}  // namespace

const RuleFacts* FactsOf(const std::string& rule) {
  const RuleFacts* found = nullptr;
  ForRule(rule, [&](auto type) {
    using Update = typename decltype(type)::type;
    static constexpr RuleFacts kFacts = {Update::kName, Update::kSlots, Update::kConstants, Update::kScalars, {Update::kRowSlot[0], Update::kRowSlot[1]}};
    found = &kFacts;
  });
  return found;
}

template <class G>
void UpdateRows(const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups, const std::vector<const G*>& samples,
                const Optimizer& optimizer, const Threads& threads) {
  ForRule(optimizer.rule, [&](auto type) {
    using Update = typename decltype(type)::type;
    UpdateBy(Update(optimizer), shards, groups, samples, optimizer.loss_scale, threads);
  });
}

#define INSTANTIATE(G)                                                                                                                        \
  template void UpdateRows<G>(const std::vector<Shard>&, const std::vector<std::vector<Groups>>&, const std::vector<const G*>&, const Optimizer&, \
                              const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
