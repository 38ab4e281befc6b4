// Threads that help a caller, who never waits for one that has not begun: on a busy machine that takes longer than the work.
#ifndef DLRM_OPS_HELPERS_H_
#define DLRM_OPS_HELPERS_H_

#include <atomic>
#include <cstdint>
#include <functional>

namespace dlrm {

// A process that was forked gets threads of its own at its first Run: of its parent's it has copies of locks, which nobody may ever release.
class Helpers {
 public:
  explicit Helpers(int count);
  ~Helpers();

  // Calls work(i) once for each i in 0..tasks-1, here and in at most `most` helpers, and returns when all are done. It must not throw. Several
  // threads may call this at the same time.
  void Run(int64_t tasks, int most, const std::function<void(int64_t)>& work);

 private:
  class Crew;

  Crew* OfThisProcess();

  const int count_;
  std::atomic<Crew*> crew_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_HELPERS_H_
