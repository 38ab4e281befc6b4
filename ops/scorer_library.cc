// The C interface of the scorer, which model/native_scorer.py calls by ctypes; a separate library, which does not need TensorFlow.
#include <new>

#include "scorer.h"

namespace {

constexpr int64_t kNoMemory = -2;

}  // namespace

extern "C" {

// Whether scoring in bfloat16 pays: the processor multiplies it.
int dlrm_scorer_bfloat16() {
#if defined(__AVX512BF16__)
  return 1;
#else
  return 0;
#endif
}

// Returns null if there is not enough memory.
void* dlrm_scorer_new(const dlrm::ScorerShape* shape, const dlrm::ScorerFeature* features, const dlrm::ScorerLayer* layers, int threads) {
  try {
    return new dlrm::Scorer(*shape, features, layers, threads);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void dlrm_scorer_delete(void* scorer) { delete static_cast<dlrm::Scorer*>(scorer); }

// Like Scorer::Score; returns -2 if there is not enough memory.
int64_t dlrm_scorer_score(const void* scorer, int64_t samples, const float* numerical, const int32_t* ids, float* logits) {
  try {
    return static_cast<const dlrm::Scorer*>(scorer)->Score(samples, numerical, ids, logits);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// Like Scorer::ScoreRows; returns -2 if there is not enough memory.
int64_t dlrm_scorer_score_rows(const void* scorer, int64_t samples, const float* numerical, const int32_t* ids, const void* const* rows,
                               const int64_t* counts, float* logits) {
  try {
    return static_cast<const dlrm::Scorer*>(scorer)->ScoreRows(samples, numerical, ids, rows, counts, logits);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}
}
