// The scorer for model/native_scorer.py, which calls it by ctypes; a library of its own, which needs no TensorFlow.
#include <new>

#include "scorer.h"

namespace {

constexpr int64_t kNoMemory = -2;

}  // namespace

extern "C" {

// Null where there is no memory.
void* dlrm_scorer_new(const dlrm::ScorerShape* shape, const dlrm::ScorerFeature* features, const dlrm::ScorerLayer* layers, int threads) {
  try {
    return new dlrm::Scorer(*shape, features, layers, threads);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void dlrm_scorer_delete(void* scorer) { delete static_cast<dlrm::Scorer*>(scorer); }

// As Scorer::Score; -2 where there is no memory.
int64_t dlrm_scorer_score(const void* scorer, int64_t samples, const float* numerical, const int32_t* ids, float* logits) {
  try {
    return static_cast<const dlrm::Scorer*>(scorer)->Score(samples, numerical, ids, logits);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}
}
