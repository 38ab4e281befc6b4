// A choice between two ways to do the same work, by the time that they take.
#ifndef DLRM_OPS_PACE_H_
#define DLRM_OPS_PACE_H_

#include <algorithm>
#include <atomic>
#include <chrono>

namespace dlrm {

// Keeps a moving average of each way's time. The slower way is tried now and then, since other programs come and go: ever more rarely while it stays
// the slower one. Several threads may use it at the same time; where they do, a measurement may be lost.
class Pace {
 public:
  // Measures a turn of one of the ways, from its construction to its end.
  class Turn {
   public:
    explicit Turn(Pace* pace) : pace_(pace), way_(pace->Next()), begun_(Clock::now()) {}
    ~Turn() { pace_->Took(way_, std::chrono::duration<float>(Clock::now() - begun_).count()); }

    // 0 or 1
    int way() const { return way_; }

   private:
    Pace* pace_;
    const int way_;
    const std::chrono::steady_clock::time_point begun_;
  };

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr unsigned kFirst = 16;                     // turns at the start, which alternate; the fastest of each way counts
  static constexpr unsigned kSoonest = 64, kLatest = 4096;  // turns between two of the slower way
  static constexpr float kNew = 0.125f;                      // weight of a new time in the average
  static constexpr float kOutlier = 8.0f;                    // times an average at most: of a turn that the system interrupted

  int Next() {
    const unsigned turn = turns_.fetch_add(1, std::memory_order_relaxed);
    const int faster = average_[1].load(std::memory_order_relaxed) < average_[0].load(std::memory_order_relaxed) ? 1 : 0;
    if (turn < kFirst) return static_cast<int>(turn % 2);
    if (static_cast<int>(turn - due_.load(std::memory_order_relaxed)) < 0) return faster;
    const unsigned between = faster == faster_.exchange(faster, std::memory_order_relaxed) ? std::min(2 * between_.load(), kLatest) : kSoonest;
    between_.store(between, std::memory_order_relaxed);
    due_.store(turn + between, std::memory_order_relaxed);
    return 1 - faster;
  }

  void Took(int way, float seconds) {
    const float before = average_[way].load(std::memory_order_relaxed);
    float now = seconds;
    if (before > 0 && turns_.load(std::memory_order_relaxed) <= kFirst) now = std::min(before, seconds);
    if (before > 0 && turns_.load(std::memory_order_relaxed) > kFirst) now = before + kNew * (std::min(seconds, kOutlier * before) - before);
    average_[way].store(now, std::memory_order_relaxed);
  }

  std::atomic<unsigned> turns_{0}, due_{kFirst + kSoonest}, between_{kSoonest};
  std::atomic<int> faster_{-1};
  std::atomic<float> average_[2] = {};
};

}  // namespace dlrm

#endif  // DLRM_OPS_PACE_H_
