// Threads that help a caller. The caller never waits for a helper that has not begun: on a busy machine that would take longer than the work.
#ifndef DLRM_OPS_HELPERS_H_
#define DLRM_OPS_HELPERS_H_

#include <atomic>
#include <cstdint>
#include <functional>

namespace dlrm {

// A forked process gets threads of its own at its first Run: its copies of the parent's locks may be locked, and nobody would release them.
class Helpers {
 public:
  explicit Helpers(int count);
  ~Helpers();

  // Calls work(i) once for each i in 0..tasks-1, in this thread and in at most `most` helpers, and returns when all are done. `work` must not throw.
  // Several threads may call this at the same time.
  void Run(int64_t tasks, int most, const std::function<void(int64_t)>& work);

  // A counter of the calls that run in this process; a forked process counts anew.
  std::atomic<int>* Calls();

 private:
  class Crew;

  Crew* OfThisProcess();

  const int count_;
  std::atomic<Crew*> crew_;

 public:
  // Helpers that wait actively, so that they begin at once what Run gives them: for many pieces of work of a few microseconds, since waking a thread
  // takes longer than one of them. They stay for some 100 microseconds after this object, where the next one finds them. There must be one at a time.
  class Company {
   public:
    // Asks for at most `most` helpers, who come when the system lets them. They leave where Calls() exceeds 1: another caller needs the processors.
    Company(Helpers* helpers, int most);
    ~Company();

    // Calls work(i) once for each i in 0..tasks-1, in this thread and in the helpers that have come, and returns when all are done.
    void Run(int64_t tasks, const std::function<void(int64_t)>& work);

   private:
    Crew* crew_;
  };
};

}  // namespace dlrm

#endif  // DLRM_OPS_HELPERS_H_
