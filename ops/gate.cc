#include "gate.h"

#include "row_tasks.h"

namespace dlrm {
namespace {

constexpr int64_t kElementsPerTask = 16384;  // a multiple of kRun

// Calls work(first, n) for runs of at most kRun elements, divided over the threads.
template <class Work>
void ForRuns(int64_t size, const Threads& threads, const Work& work) {
  const Threads& used = size <= kAlone ? kCallingThread : threads;
  used.run((size + kElementsPerTask - 1) / kElementsPerTask, [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t last = std::min(size, (task + 1) * kElementsPerTask);
    for (int64_t first = task * kElementsPerTask; first < last; first += kRun) work(first, std::min(kRun, last - first));
  });
}

}  // namespace

template <class T>
void Gate(int64_t size, const float* inputs, const std::vector<const float*>& logits, const std::vector<T*>& out, const Threads& threads) {
  ForRuns(size, threads, [&](int64_t first, int64_t n) {
    // All kRun elements are computed, so that the last ones pass through the same instructions as any other.
    float x[kRun] = {}, weighed[kRun], of_gate[kRun] = {};
    std::copy_n(inputs + first, n, x);
    for (size_t stream = 0; stream < logits.size(); ++stream) {
      std::copy_n(logits[stream] + first, n, of_gate);
      DLRM_INDEPENDENT
      for (int64_t i = 0; i < kRun; ++i) weighed[i] = x[i] * TwiceSigmoid(of_gate[i]);
      NarrowRow(weighed, n, out[stream] + first);
    }
  });
}

template <class T>
void GateGradient(int64_t size, const float* inputs, const std::vector<const float*>& logits, const std::vector<const T*>& upstream, float* by_inputs,
                  const std::vector<float*>& by_logits, const Threads& threads) {
  ForRuns(size, threads, [&](int64_t first, int64_t n) {
    float x[kRun] = {}, of_gate[kRun] = {}, above[kRun] = {}, by_gate[kRun], sum[kRun] = {};
    std::copy_n(inputs + first, n, x);
    for (size_t stream = 0; stream < logits.size(); ++stream) {
      std::copy_n(logits[stream] + first, n, of_gate);
      WidenRow(upstream[stream] + first, n, above);
      DLRM_INDEPENDENT
      for (int64_t i = 0; i < kRun; ++i) {
        const float weight = TwiceSigmoid(of_gate[i]), by_input = above[i] * weight;
        by_gate[i] = by_input * x[i] * (1 - 0.5f * weight);
        sum[i] += by_input;
      }
      std::copy_n(by_gate, n, by_logits[stream] + first);
    }
    std::copy_n(sum, n, by_inputs + first);
  });
}

#define INSTANTIATE(T)                                                                                                                             \
  template void Gate<T>(int64_t, const float*, const std::vector<const float*>&, const std::vector<T*>&, const Threads&);                           \
  template void GateGradient<T>(int64_t, const float*, const std::vector<const float*>&, const std::vector<const T*>&, float*,                      \
                                const std::vector<float*>&, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
