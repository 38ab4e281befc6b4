#include "row_lookup.h"

#include <algorithm>

namespace dlrm {
namespace {

constexpr int64_t kSamplesPerTask = 32;  // 425 KB of output at 26 features of 128 float32
constexpr int kAhead = 2;                // rows prefetched

template <class V, int kWidth>
inline void Copy(const float* row, int width, V* out) {
  NarrowRow(row, kWidth ? kWidth : width, out);
}

}  // namespace

template <class V>
BadId LookUpRows(const std::vector<Source>& sources, int64_t batch, int64_t length, V* out, const Threads& threads) {
  const int count = static_cast<int>(sources.size());
  const int64_t tasks = (batch + kSamplesPerTask - 1) / kSamplesPerTask;
  std::vector<BadId> bad(tasks);
  threads.run(tasks, [&](int64_t task) {
    const int64_t first = task * kSamplesPerTask, last = std::min(first + kSamplesPerTask, batch);
    for (int s = 0; s < count; ++s) {
      for (int64_t i = first; i < last; ++i) {
        if (static_cast<uint64_t>(static_cast<int64_t>(sources[s].ids[i])) >= static_cast<uint64_t>(sources[s].rows)) {
          bad[task] = {s, i};
          return;
        }
      }
    }
    const auto row = [&](int64_t i, int s) { return sources[s].table + static_cast<int64_t>(sources[s].ids[i]) * sources[s].width; };
    for (int64_t i = first; i < last; ++i) {
      V* sample = out + i * length;
      for (int s = 0; s < count; ++s) {
        const int ahead = s + kAhead < count ? s + kAhead : s + kAhead - count;
        const int64_t sample_ahead = s + kAhead < count ? i : i + 1;
        if (ahead < count && sample_ahead < last) PrefetchToRead(row(sample_ahead, ahead), sources[ahead].width * 4);
        const Source& source = sources[s];
        if (source.width == 128) {
          Copy<V, 128>(row(i, s), 128, sample + source.column);
        } else {
          Copy<V, 0>(row(i, s), source.width, sample + source.column);
        }
      }
    }
  });
  for (const BadId& id : bad) {
    if (id.source >= 0) return id;
  }
  return {};
}

#define INSTANTIATE(V) template BadId LookUpRows<V>(const std::vector<Source>&, int64_t, int64_t, V*, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
