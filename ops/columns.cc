#include "columns.h"

#include <algorithm>
#include <cstring>

namespace dlrm {
namespace {

constexpr int64_t kSamplesPerTask = 64;

template <class Work>
void ForSamples(int64_t samples, const Threads& threads, const Work& work) {
  threads.run((samples + kSamplesPerTask - 1) / kSamplesPerTask, [&](int64_t task) {
    for (int64_t i = task * kSamplesPerTask; i < std::min(samples, (task + 1) * kSamplesPerTask); ++i) work(i);
  });
}

}  // namespace

void BlocksToSamples(const std::vector<Segment>& segments, int64_t samples, char* out, int64_t length, const Threads& threads) {
  ForSamples(samples, threads, [&](int64_t i) {
    for (const Segment& segment : segments) std::memcpy(out + i * length + segment.column, segment.block + i * segment.stride, segment.width);
  });
}

void SamplesToBlocks(const std::vector<Segment>& segments, const std::vector<const char*>& samples, const Threads& threads) {
  ForSamples(static_cast<int64_t>(samples.size()), threads, [&](int64_t i) {
    for (const Segment& segment : segments) std::memcpy(segment.block + i * segment.stride, samples[i] + segment.column, segment.width);
  });
}

}  // namespace dlrm
