// The sparse optimizers' rules, one struct each. Each gives the same bits as `apply` of the class of the same name in training/optimizers/, whose
// constants and scalars it takes.
//
// `Apply` takes the sum of a row's gradients, its weights and its slots, for n columns: those of the task, which are the whole row if a slot has one
// number a row.
#ifndef DLRM_OPS_ROW_RULES_H_
#define DLRM_OPS_ROW_RULES_H_

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lanes.h"
#include "optimizer.h"

namespace dlrm {

struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr int kSlots = 0, kConstants = 0, kScalars = 1;
  static constexpr bool kRowSlot[kMaxSlots] = {false, false};
  float rate;
  explicit Sgd(const Optimizer& from) : rate(from.scalars[0]) {}
  inline void Apply(const float* sum, float* row, float* const*, int n) const {
    for (int i = 0; i < n; ++i) row[i] -= sum[i] * rate;
  }
};

struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr int kSlots = 1, kConstants = 1, kScalars = 1;
  static constexpr bool kRowSlot[kMaxSlots] = {false, false};
  float rate, momentum;
  explicit Momentum(const Optimizer& from) : rate(from.scalars[0]), momentum(from.constants[0]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    float* __restrict velocity = slots[0];
    for (int i = 0; i < n; ++i) {
      velocity[i] = momentum * velocity[i] - sum[i] * rate;
      row[i] += velocity[i];
    }
  }
};

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr int kSlots = 1, kConstants = 1, kScalars = 1;
  static constexpr bool kRowSlot[kMaxSlots] = {false, false};
  float rate, epsilon;
  explicit Adagrad(const Optimizer& from) : rate(from.scalars[0]), epsilon(from.constants[0]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    float* __restrict accumulator = slots[0];
    for (int i = 0; i < n; ++i) {
      const float total = accumulator[i] + sum[i] * sum[i];
      accumulator[i] = total;
      row[i] -= rate * sum[i] / std::sqrt(total + epsilon);
    }
  }
};

// Sums neighbours, two sums of a and two of b in turn: shuffles within 16 bytes have the shortest latency.
inline Lanes SumPairsNearby(Lanes a, Lanes b) {
  return Shuffle<0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30>(a, b) +
         Shuffle<1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31>(a, b);
}

// Sums neighbouring quarters of a, then of b.
inline Lanes SumQuarters(Lanes a, Lanes b) {
  return Shuffle<0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27>(a, b) +
         Shuffle<4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31>(a, b);
}

// SumOfSquares(values, 128): the same tree, computed in registers.
inline float SumOfSquares128(const float* values) {
  Lanes four[2];  // one for each half of the values: each quarter has the sums of 4 neighbours, of the half's four vectors in order
  for (int half = 0; half < 2; ++half) {
    Lanes squares[4];
    for (int i = 0; i < 4; ++i) squares[i] = Load(values + (4 * half + i) * kLanes) * Load(values + (4 * half + i) * kLanes);
    four[half] = SumPairsNearby(SumPairsNearby(squares[0], squares[1]), SumPairsNearby(squares[2], squares[3]));
  }
  const Lanes eight = SumQuarters(four[0], four[1]);
  Lanes sum = SumQuarters(eight, eight);  // the sums of whole vectors, in order
  for (int i = 0; i < 2; ++i) sum = SumPairsNearby(sum, sum);
  return sum[0] + sum[4];
}

// Sums the squares of n values by a balanced binary tree over the next power of two, padded with zeros, like `row_squares.node_sum`.
inline float SumOfSquares(const float* values, int n) {
  if (n == 128) return SumOfSquares128(values);
  constexpr int kFew = 16;
  Lanes few[kFew + 1];
  int count = (n + kLanes - 1) / kLanes;
  std::vector<Lanes> many(count > kFew ? count + 1 : 0);
  Lanes* const squares = count > kFew ? many.data() : few;
  for (int i = 0; i < n / kLanes; ++i) squares[i] = Load(values + i * kLanes) * Load(values + i * kLanes);
  if (n % kLanes) {
    float last[kLanes] = {};
    for (int i = 0; i < n % kLanes; ++i) last[i] = values[n / kLanes * kLanes + i];
    squares[count - 1] = Load(last) * Load(last);
  }
  if (count == 0) squares[count++] = Lanes{};
  for (; count > 1; count = (count + 1) / 2) {
    squares[count] = Lanes{};  // the neighbour of an odd last one
    for (int i = 0; i < count; i += 2) squares[i / 2] = SumPairs(squares[i], squares[i + 1]);
  }
  Lanes sum = squares[0];
  for (int width = kLanes; width > 1; width /= 2) sum = SumPairs(sum, sum);
  return sum[0];
}

struct RowwiseAdagrad {
  static constexpr const char* kName = "rowwise_adagrad";
  static constexpr int kSlots = 1, kConstants = 2, kScalars = 1;
  static constexpr bool kRowSlot[kMaxSlots] = {true, false};
  float rate, epsilon, dim;
  explicit RowwiseAdagrad(const Optimizer& from) : rate(from.scalars[0]), epsilon(from.constants[0]), dim(from.constants[1]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    const float total = slots[0][0] + SumOfSquares(sum, n) / dim;
    slots[0][0] = total;
    const float root = std::sqrt(total + epsilon);
    for (int i = 0; i < n; ++i) row[i] -= rate * sum[i] / root;
  }
};

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr int kSlots = 2, kConstants = 5, kScalars = 1;
  static constexpr bool kRowSlot[kMaxSlots] = {false, false};
  float rate, beta1, rest1, beta2, rest2, epsilon;
  explicit Adam(const Optimizer& from)
      : rate(from.scalars[0]),
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

struct Ftrl {
  static constexpr const char* kName = "ftrl";
  static constexpr int kSlots = 2, kConstants = 2, kScalars = 1;
  static constexpr bool kRowSlot[kMaxSlots] = {false, false};
  float rate, l1, twice_l2;
  explicit Ftrl(const Optimizer& from) : rate(from.scalars[0]), l1(from.constants[0]), twice_l2(from.constants[1]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    if (!(rate > 0)) return;
    float* __restrict accumulator = slots[0];
    float* __restrict linear = slots[1];
    for (int i = 0; i < n; ++i) {
      const float total = accumulator[i] + sum[i] * sum[i], root = std::sqrt(total);
      const float leader = linear[i] + (sum[i] - (root - std::sqrt(accumulator[i])) / rate * row[i]);
      accumulator[i] = total;
      linear[i] = leader;
      row[i] = (std::max(-l1, std::min(leader, l1)) - leader) / (root / rate + twice_l2);
    }
  }
};

struct Rmsprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr int kSlots = 2, kConstants = 4, kScalars = 2;
  static constexpr bool kRowSlot[kMaxSlots] = {false, true};
  float rate, now, rho, rest, inside, outside;  // epsilon inside or outside the root: one of the two is 0, and adding it changes no bit
  explicit Rmsprop(const Optimizer& from)
      : rate(from.scalars[0]),
        now(from.scalars[1]),
        rho(from.constants[0]),
        rest(from.constants[1]),
        inside(from.constants[2]),
        outside(from.constants[3]) {}
  inline void Apply(const float* sum, float* __restrict row, float* const* slots, int n) const {
    float* __restrict velocity = slots[0];
    const float decay = Decay(static_cast<int32_t>(now - slots[1][0]) & 0xffffff);
    slots[1][0] = now;
    for (int i = 0; i < n; ++i) {
      velocity[i] = decay * velocity[i] + rest * (sum[i] * sum[i]);
      row[i] -= rate * sum[i] / (std::sqrt(velocity[i] + inside) + outside);
    }
  }
  inline float Decay(int32_t steps) const {
    float decay = 1;
    for (float power = rho; steps; steps >>= 1, power *= power) {
      if (steps & 1) decay *= power;
    }
    return decay;
  }
};

template <class T>
struct RuleType {
  using type = T;
};

// Calls work(RuleType<…>) for the rule of that name; does nothing if there is none.
template <class Work>
void ForRule(const std::string& name, const Work& work) {
  const auto work_all = [&](auto... types) { ((name == decltype(types)::type::kName ? work(types) : void()), ...); };
  work_all(RuleType<Sgd>(), RuleType<Momentum>(), RuleType<Adagrad>(), RuleType<RowwiseAdagrad>(), RuleType<Adam>(), RuleType<Ftrl>(),
           RuleType<Rmsprop>());
}

// True if a task must have all columns of its rows, because a slot of one number a row needs a single writer.
template <class Update>
inline constexpr bool kWholeRows = Update::kRowSlot[0] || Update::kRowSlot[1];

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_RULES_H_
