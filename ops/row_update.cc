#include "row_update.h"

#include <algorithm>
#include <cmath>

namespace dlrm {
namespace {

constexpr int kMaxColumns = kRun;  // that one task handles: the sum stays in the first-level cache
#ifndef UPDATE_TASK
#define UPDATE_TASK 256
#endif
constexpr int kPositionsPerTask = UPDATE_TASK;
#ifndef UPDATE_AHEAD
#define UPDATE_AHEAD 4
#endif
constexpr int kAhead = UPDATE_AHEAD;

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

// n is at most kMaxColumns, so one call of `ForFloats` is one call of its work.
template <class G>
inline void Add(const G* gradient, Scale scale, float* sum, int n) {
  ForFloats(gradient, n, [scale, sum](const auto* values, int64_t, int64_t n) {
    if (scale.how == Scale::kNone) {
      for (int i = 0; i < n; ++i) sum[i] += Widened(values[i]);
    } else if (scale.how == Scale::kTimes) {
      for (int i = 0; i < n; ++i) sum[i] += Widened(values[i]) * scale.by;
    } else {
      for (int i = 0; i < n; ++i) sum[i] += Widened(values[i]) / scale.by;
    }
  });
}

struct Sgd {
  static constexpr int kSlots = 0, kConstants = 0;
  float rate;
  explicit Sgd(const Optimizer& from) : rate(from.rate) {}
  inline void Apply(const float* sum, float* row, float* const*, int n) const {
    for (int i = 0; i < n; ++i) row[i] -= sum[i] * rate;
  }
};

struct Adagrad {
  static constexpr int kSlots = 1, kConstants = 1;
  float rate, epsilon;
  explicit Adagrad(const Optimizer& from) : rate(from.rate), epsilon(from.constants[0]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    float* __restrict accumulator = slots[0];
    for (int i = 0; i < n; ++i) {
      const float total = accumulator[i] + sum[i] * sum[i];
      accumulator[i] = total;
      row[i] -= rate * sum[i] / std::sqrt(total + epsilon);
    }
  }
};

struct Adam {
  static constexpr int kSlots = 2, kConstants = 5;
  float rate, beta1, rest1, beta2, rest2, epsilon;
  explicit Adam(const Optimizer& from)
      : rate(from.rate),
        beta1(from.constants[0]),
        rest1(from.constants[1]),
        beta2(from.constants[2]),
        rest2(from.constants[3]),
        epsilon(from.constants[4]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    float* __restrict momentum = slots[0];
    float* __restrict velocity = slots[1];
    for (int i = 0; i < n; ++i) {
      const float first = beta1 * momentum[i] + rest1 * sum[i];
      const float second = beta2 * velocity[i] + rest2 * (sum[i] * sum[i]);
      momentum[i] = first;
      velocity[i] = second;
      row[i] -= rate * first / (std::sqrt(second) + epsilon);
    }
  }
};

// Some groups of a piece, and some of its columns.
struct Task {
  int piece, first_group, last_group, first_column, last_column;
};

template <class G, class Update, int kWidth>
void Run(const Task& task, const Piece& piece, const Groups& groups, const G* const* samples, Scale scale, const Update& update) {
  const int width = kWidth ? kWidth : task.last_column - task.first_column;
  alignas(kCacheLine) float sum[kMaxColumns];
  const int32_t* positions = groups.positions();
  const int last = groups.end(task.last_group - 1);
  const auto gradient = [&](int position) { return samples[positions[position]] + piece.column + task.first_column; };
  const auto offset = [&](int group) { return static_cast<int64_t>(groups.id(group)) * piece.width + task.first_column; };
  const auto prefetch_row = [&](int group) {
    if (group >= task.last_group) return;
    PrefetchToWrite(piece.table + offset(group), width * 4);
    for (int slot = 0; slot < Update::kSlots; ++slot) PrefetchToWrite(piece.slots[slot] + offset(group), width * 4);
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
      Add(gradient(position), scale, sum, width);
    }
    float* slots[kMaxSlots] = {};
    for (int slot = 0; slot < Update::kSlots; ++slot) slots[slot] = piece.slots[slot] + offset(group);
    update.Apply(sum, piece.table + offset(group), slots, width);
  }
}

// Cuts the work into tasks of about equal size. A group of very many positions is cut by columns, for its sum has an order.
std::vector<Task> Tasks(const std::vector<Piece>& pieces, const std::vector<Groups>& groups, int batch, int threads) {
  std::vector<std::vector<Task>> by_piece(pieces.size());
  const int64_t heavy = std::max<int64_t>(4 * kPositionsPerTask, static_cast<int64_t>(batch) * pieces.size() / (4 * threads));
  size_t most = 0;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Groups& of = groups[pieces[p].id_row];
    const auto add = [&](int first, int last, int columns) {
      if (first == last) return;
      for (int column = 0; column < pieces[p].width; column += columns) {
        by_piece[p].push_back({static_cast<int>(p), first, last, column, std::min(column + columns, pieces[p].width)});
      }
    };
    int first = 0;
    for (int group = 0; group < of.size(); ++group) {
      if (threads > 1 && of.end(group) - of.begin(group) > heavy) {
        add(first, group, kMaxColumns);
        add(group, group + 1, std::clamp((pieces[p].width / (2 * threads) + 15) / 16 * 16, 16, kMaxColumns));
        first = group + 1;
      } else if (of.end(group) - of.begin(first) + group - first >= 2 * kPositionsPerTask) {
        add(first, group + 1, kMaxColumns);
        first = group + 1;
      }
    }
    add(first, of.size(), kMaxColumns);
    most = std::max(most, by_piece[p].size());
  }
  // Piece after piece for the same samples, so that the pages of their gradients are still in the translation buffers.
  std::vector<Task> tasks;
  for (size_t i = 0; i < most; ++i) {
    for (const auto& of : by_piece) {
      if (i < of.size()) tasks.push_back(of[i]);
    }
  }
  return tasks;
}

template <class G, class Update>
void UpdateBy(const Update& update, const std::vector<Piece>& pieces, const std::vector<Groups>& groups, const std::vector<const G*>& samples,
              float loss_scale, const Threads& threads) {
  const std::vector<Task> tasks = Tasks(pieces, groups, static_cast<int>(samples.size()), threads.count);
  const Scale scale = ScaleOf(loss_scale);
  threads.run(tasks.size(), [&](int64_t i) {
    const FlushDenormals flush;
    const Task& task = tasks[i];
    const Piece& piece = pieces[task.piece];
    const auto run = task.last_column - task.first_column == 128 ? Run<G, Update, 128> : Run<G, Update, 0>;
    run(task, piece, groups[piece.id_row], samples.data(), scale, update);
  });
}

}  // namespace

int SlotsOf(Rule rule) { return rule == Rule::kSgd ? Sgd::kSlots : rule == Rule::kAdagrad ? Adagrad::kSlots : Adam::kSlots; }

int ConstantsOf(Rule rule) { return rule == Rule::kSgd ? Sgd::kConstants : rule == Rule::kAdagrad ? Adagrad::kConstants : Adam::kConstants; }

template <class G>
void UpdateRows(const std::vector<Piece>& pieces, const std::vector<Groups>& groups, const std::vector<const G*>& samples, const Optimizer& optimizer,
                const Threads& threads) {
  if (optimizer.rule == Rule::kSgd) {
    UpdateBy(Sgd(optimizer), pieces, groups, samples, optimizer.loss_scale, threads);
  } else if (optimizer.rule == Rule::kAdagrad) {
    UpdateBy(Adagrad(optimizer), pieces, groups, samples, optimizer.loss_scale, threads);
  } else {
    UpdateBy(Adam(optimizer), pieces, groups, samples, optimizer.loss_scale, threads);
  }
}

#define INSTANTIATE(G)                                                                                                                  \
  template void UpdateRows<G>(const std::vector<Piece>&, const std::vector<Groups>&, const std::vector<const G*>&, const Optimizer&, \
                              const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
