#include "row_update.h"

#include <algorithm>
#include <cmath>

#include "row_rules.h"

namespace dlrm {
namespace {

constexpr int kMaxColumns = kRun;  // that one task handles: the sum stays in the first-level cache
constexpr int kPositionsPerTask = 256;
constexpr int kAhead = 4;

struct Scale {
  enum { kNone, kTimes, kOver } how;
  float by;
};

// A division by a power of two is a multiplication, bit by bit.
Scale ScaleOf(float loss_scale) {
  int exponent;
  if (loss_scale == 1) return {Scale::kNone, 1};
  if (std::frexp(loss_scale, &exponent) == 0.5f && std::abs(exponent) < 120) return {Scale::kTimes, 1 / loss_scale};
  return {Scale::kOver, loss_scale};
}

// sum += gradient / scale / count, count 1 where there is nothing to divide by.
template <class G>
inline void Add(const G* gradient, Scale scale, float count, float* sum, int n) {
  ForFloats(gradient, n, [=](const auto* values, int64_t first, int64_t n) {
    float* into = sum + first;
    const auto add = [&](const auto& of) {
      for (int i = 0; i < n; ++i) into[i] += of(Widened(values[i]));
    };
    if (count != 1) {
      scale.how == Scale::kOver ? add([=](float x) { return x / scale.by / count; }) : add([=](float x) { return x * scale.by / count; });
    } else if (scale.how == Scale::kNone) {
      add([](float x) { return x; });
    } else if (scale.how == Scale::kTimes) {
      add([=](float x) { return x * scale.by; });
    } else {
      add([=](float x) { return x / scale.by; });
    }
  });
}

// Some groups of a shard, and some of its columns.
struct Task {
  int shard, part, first_group, last_group, first_column, last_column;
};

template <class G, class Update, int kWidth>
void Run(const Task& task, const Shard& shard, const Groups& groups, const std::vector<const G*>& samples, Scale scale, const Update& update) {
  const int width = kWidth ? kWidth : task.last_column - task.first_column;
  alignas(kCacheLine) float few[kMaxColumns];
  std::vector<float> many(width > kMaxColumns ? width : 0);  // only where the rule wants the row whole
  float* const sum = width > kMaxColumns ? many.data() : few;
  const int32_t* positions = groups.positions();
  const int last = groups.end(task.last_group - 1);
  const int bits = SampleBits(samples.size());
  const int32_t mask = static_cast<int32_t>((int64_t{1} << bits) - 1);
  const auto use = [&](int position) -> const Use& { return shard.uses[positions[position] >> bits]; };
  const auto gradient = [&](int position) { return samples[positions[position] & mask] + use(position).column + task.first_column; };
  const auto count = [&](int position) { return use(position).counts ? use(position).counts[positions[position] & mask] : 1.0f; };
  const auto offset = [&](int group) { return static_cast<int64_t>(groups.id(group)) * shard.width + task.first_column; };
  const auto slot_of = [&](int slot, int group) { return shard.slots[slot] + (Update::kRowSlot[slot] ? groups.id(group) : offset(group)); };
  const auto prefetch_row = [&](int group) {
    if (group >= task.last_group) return;
    PrefetchToWrite(shard.table + offset(group), width * 4);
    for (int slot = 0; slot < Update::kSlots; ++slot) PrefetchToWrite(slot_of(slot, group), Update::kRowSlot[slot] ? 4 : width * 4);
  };
  int position = groups.begin(task.first_group);
  for (int i = 0; i < kAhead; ++i) {
    prefetch_row(task.first_group + i);
    if (position + i < last) PrefetchToRead(gradient(position + i), width * sizeof(G));
  }
  for (int group = task.first_group; group < task.last_group; ++group) {
    prefetch_row(group + kAhead);
    for (int i = 0; i < width; ++i) sum[i] = 0;
    for (const int end = groups.end(group); position < end; ++position) {
      if (position + kAhead < last) PrefetchToRead(gradient(position + kAhead), width * sizeof(G));
      Add(gradient(position), scale, count(position), sum, width);
    }
    float* slots[kMaxSlots] = {};
    for (int slot = 0; slot < Update::kSlots; ++slot) slots[slot] = slot_of(slot, group);
    update.Apply(sum, shard.table + offset(group), slots, width);
  }
}

// Cuts the work into tasks of about equal size. A group of very many positions is cut by columns, for its sum has an order; unless rows stay whole.
std::vector<Task> Tasks(const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups, int threads, bool whole_rows) {
  std::vector<std::vector<Task>> by_shard(shards.size());
  int64_t positions = 0;
  for (const Shard& shard : shards) {
    for (const Groups& of : groups[shard.grouped]) positions += of.size() ? of.end(of.size() - 1) : 0;
  }
  const int64_t heavy = std::max<int64_t>(4 * kPositionsPerTask, positions / (4 * threads));
  size_t most = 0;
  for (size_t p = 0; p < shards.size(); ++p) {
    for (size_t part = 0; part < groups[shards[p].grouped].size(); ++part) {
      const Groups& of = groups[shards[p].grouped][part];
      const auto add = [&](int first, int last, int columns) {
        if (first == last) return;
        if (whole_rows) columns = std::max(shards[p].width, 1);
        for (int column = 0; column < shards[p].width; column += columns) {
          by_shard[p].push_back({static_cast<int>(p), static_cast<int>(part), first, last, column, std::min(column + columns, shards[p].width)});
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
    most = std::max(most, by_shard[p].size());
  }
  // Shard after shard for the same samples, so that the pages of their gradients are still in the translation buffers.
  std::vector<Task> tasks;
  for (size_t i = 0; i < most; ++i) {
    for (const auto& of : by_shard) {
      if (i < of.size()) tasks.push_back(of[i]);
    }
  }
  return tasks;
}

template <class G, class Update>
void UpdateBy(const Update& update, const std::vector<Shard>& shards, const std::vector<std::vector<Groups>>& groups,
              const std::vector<const G*>& samples, float loss_scale, const Threads& threads) {
  const std::vector<Task> tasks = Tasks(shards, groups, threads.count, kWholeRows<Update>);
  const Scale scale = ScaleOf(loss_scale);
  threads.run(tasks.size(), [&](int64_t i) {
    const FlushDenormals flush;
    const Task& task = tasks[i];
    const Shard& shard = shards[task.shard];
    const auto run = task.last_column - task.first_column == 128 ? Run<G, Update, 128> : Run<G, Update, 0>;
    run(task, shard, groups[shard.grouped][task.part], samples, scale, update);
  });
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
