#include "dense_update.h"

#include <algorithm>
#include <cmath>

#include "elements.h"

namespace dlrm {
namespace {

constexpr int64_t kAtOnce = 1 << 15;  // weights of a task

// Some weights of an array.
struct Part {
  int64_t array, first;
};

// Each rule updates `count` weights from number `first` on.
struct Sgd {
  static constexpr const char* kName = "sgd";
  static constexpr DenseRuleFacts kFacts = {0, 0};

  static void Apply(const DenseWeights& of, int64_t first, int64_t count, const Optimizer& by) {
    const float *before = of.weights.before + first, *g = of.gradient + first, rate = by.scalars[0];
    float* after = of.weights.after + first;
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) after[i] = before[i] - g[i] * rate;
  }
};

struct Momentum {
  static constexpr const char* kName = "momentum";
  static constexpr DenseRuleFacts kFacts = {1, 1};

  static void Apply(const DenseWeights& of, int64_t first, int64_t count, const Optimizer& by) {
    const float *before = of.weights.before + first, *m_before = of.slots[0].before + first, *g = of.gradient + first;
    float *after = of.weights.after + first, *m_after = of.slots[0].after + first;
    const float rate = by.scalars[0], momentum = by.constants[0];
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      const float m = m_before[i] * momentum - g[i] * rate;
      m_after[i] = m;
      after[i] = before[i] + m;
    }
  }
};

struct Adagrad {
  static constexpr const char* kName = "adagrad";
  static constexpr DenseRuleFacts kFacts = {1, 1};

  static void Apply(const DenseWeights& of, int64_t first, int64_t count, const Optimizer& by) {
    const float *before = of.weights.before + first, *a_before = of.slots[0].before + first, *g = of.gradient + first;
    float *after = of.weights.after + first, *a_after = of.slots[0].after + first;
    const float rate = by.scalars[0], epsilon = by.constants[0];
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      const float a = a_before[i] + g[i] * g[i];
      a_after[i] = a;
      after[i] = before[i] - rate * g[i] / std::sqrt(a + epsilon);
    }
  }
};

struct Adam {
  static constexpr const char* kName = "adam";
  static constexpr DenseRuleFacts kFacts = {2, 5};

  static void Apply(const DenseWeights& of, int64_t first, int64_t count, const Optimizer& by) {
    const float *before = of.weights.before + first, *m_before = of.slots[0].before + first, *v_before = of.slots[1].before + first;
    float *after = of.weights.after + first, *m_after = of.slots[0].after + first, *v_after = of.slots[1].after + first;
    const float *g = of.gradient + first, rate = by.scalars[0], rest1 = by.constants[1], rest2 = by.constants[3], epsilon = by.constants[4];
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      const float m = m_before[i] + (g[i] - m_before[i]) * rest1;
      const float v = v_before[i] + (g[i] * g[i] - v_before[i]) * rest2;
      m_after[i] = m;
      v_after[i] = v;
      after[i] = before[i] - m * rate / (std::sqrt(v) + epsilon);
    }
  }
};

struct Rmsprop {
  static constexpr const char* kName = "rmsprop";
  static constexpr DenseRuleFacts kFacts = {1, 4};

  static void Apply(const DenseWeights& of, int64_t first, int64_t count, const Optimizer& by) {
    const float *before = of.weights.before + first, *v_before = of.slots[0].before + first, *g = of.gradient + first;
    float *after = of.weights.after + first, *v_after = of.slots[0].after + first;
    const float rate = by.scalars[0], rho = by.constants[0], rest = by.constants[1], inside = by.constants[2], outside = by.constants[3];
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) {
      const float v = rho * v_before[i] + rest * (g[i] * g[i]);
      v_after[i] = v;
      after[i] = before[i] - rate * g[i] / (std::sqrt(v + inside) + outside);
    }
  }
};

template <class Rule>
struct RuleType {
  using type = Rule;
};

// Calls work(RuleType<…>) for the rule of that name; does nothing if there is none.
template <class Work>
void ForRule(const std::string& name, const Work& work) {
  const auto work_all = [&](auto... types) { ((name == decltype(types)::type::kName ? work(types) : void()), ...); };
  work_all(RuleType<Sgd>(), RuleType<Momentum>(), RuleType<Adagrad>(), RuleType<Adam>(), RuleType<Rmsprop>());
}

}  // namespace

const DenseRuleFacts* DenseFactsOf(const std::string& rule) {
  const DenseRuleFacts* found = nullptr;
  ForRule(rule, [&](auto type) { found = &decltype(type)::type::kFacts; });
  return found;
}

void UpdateDense(const std::vector<DenseWeights>& all, const Optimizer& optimizer, const Threads& threads) {
  std::vector<Part> parts;
  for (size_t i = 0; i < all.size(); ++i) {
    for (int64_t first = 0; first < all[i].count; first += kAtOnce) parts.push_back({static_cast<int64_t>(i), first});
  }
  ForRule(optimizer.rule, [&](auto type) {
    threads.run(static_cast<int64_t>(parts.size()), [&](int64_t task) {
      const FlushDenormals flush;
      const DenseWeights& of = all[parts[task].array];
      decltype(type)::type::Apply(of, parts[task].first, std::min(kAtOnce, of.count - parts[task].first), optimizer);
    });
  });
}

}  // namespace dlrm
