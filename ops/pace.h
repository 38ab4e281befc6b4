// A choice between two ways to do the same work, by the time that they take.
#ifndef DLRM_OPS_PACE_H_
#define DLRM_OPS_PACE_H_

#include <algorithm>
#include <atomic>
#include <chrono>

namespace dlrm {

// Keeps a moving average of each way's time. The slower way is tried now and then, for a few turns, since other programs come and go: ever more rarely
// while it stays the slower one. The first turn after another way's does not count: threads may have gone to sleep meanwhile, and must be woken. Several
// threads may use it at the same time; where they do, a measurement may be lost.
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
    using Clock = std::chrono::steady_clock;

    Pace* pace_;
    const int way_;
    const Clock::time_point begun_;
  };

  static constexpr unsigned kFirst = 16;                     // turns at the start, trials of both ways; the fastest of each way counts
  static constexpr unsigned kTrial = 4;                      // turns of the slower way that follow each other
  static constexpr unsigned kSoonest = 64, kLatest = 4096;  // turns to the next trial

  // The way of the next turn: 0 or 1.
  int Next() {
    const unsigned turn = turns_.fetch_add(1, kRelaxed);
    if (turn < kFirst) return static_cast<int>(turn / kTrial % 2);
    const int faster = Faster(), since = static_cast<int>(turn - due_.load(kRelaxed));
    const bool changed = faster_.exchange(faster, kRelaxed) != faster;
    if (!changed && since < 0) return faster;
    if (!changed && since < static_cast<int>(kTrial)) return 1 - faster;
    const unsigned between = changed ? kSoonest : std::min(2 * between_.load(kRelaxed), kLatest);
    between_.store(between, kRelaxed);
    due_.store(turn + between, kRelaxed);
    return faster;
  }

  // Takes the time of a turn.
  void Took(int way, float seconds) {
    const bool at_start = turns_.load(kRelaxed) <= kFirst, slower = way != Faster();
    const float before = average_[way].load(kRelaxed), other = average_[1 - way].load(kRelaxed);
    if (!at_start && slower && seconds > kHopeless * other) due_.fetch_sub(kTrial, kRelaxed);
    if (last_.exchange(way, kRelaxed) != way) return;
    float now = seconds;
    if (before > 0 && at_start) now = std::min(before, seconds);
    if (before > 0 && !at_start) now = before + (slower ? kTried : kNew) * (std::min(seconds, kOutlier * before) - before);
    average_[way].store(now, kRelaxed);
  }

 private:
  static constexpr std::memory_order kRelaxed = std::memory_order_relaxed;
  static constexpr float kHopeless = 2.0f;              // times the other way's average: a turn that ends a trial
  static constexpr float kNew = 0.125f, kTried = 0.5f;  // weight of a new time in the average, and of one in a trial
  static constexpr float kOutlier = 8.0f;               // times an average at most: of a turn that the system interrupted

  int Faster() const { return average_[1].load(kRelaxed) < average_[0].load(kRelaxed) ? 1 : 0; }

  std::atomic<unsigned> turns_{0}, due_{0}, between_{kSoonest};
  std::atomic<int> faster_{-1}, last_{-1};
  std::atomic<float> average_[2] = {};
};

}  // namespace dlrm

#endif  // DLRM_OPS_PACE_H_
