#include "dense_update.h"

#include <algorithm>

#include "elements.h"

namespace dlrm {

void Descend(const std::vector<DenseWeights>& all, float rate, const Threads& threads) {
  constexpr int64_t kAtOnce = 1 << 15;  // weights of a task
  struct Part {
    int64_t array, first;
  };
  std::vector<Part> parts;
  for (size_t i = 0; i < all.size(); ++i) {
    for (int64_t first = 0; first < all[i].count; first += kAtOnce) parts.push_back({static_cast<int64_t>(i), first});
  }
  threads.run(static_cast<int64_t>(parts.size()), [&](int64_t task) {
    const FlushDenormals flush;
    const DenseWeights& of = all[parts[task].array];
    const int64_t first = parts[task].first, count = std::min(kAtOnce, of.count - first);
    const float *before = of.before + first, *gradient = of.gradient + first;
    float* after = of.after + first;
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) after[i] = before[i] - gradient[i] * rate;
  });
}

}  // namespace dlrm
