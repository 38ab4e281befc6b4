// Threads that help a caller, who never waits for one that has not begun: on a busy machine that takes longer than the work.
#ifndef DLRM_OPS_HELPERS_H_
#define DLRM_OPS_HELPERS_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dlrm {

class Helpers {
 public:
  explicit Helpers(int count);
  ~Helpers();

  // Calls work(i) once for each i in 0..tasks-1, here and in at most `most` helpers, and returns when all are done. It must not throw. Several
  // threads may call this at the same time.
  void Run(int64_t tasks, int most, const std::function<void(int64_t)>& work);

 private:
  struct Job {
    const std::function<void(int64_t)>* work;  // gone when all tasks are done
    int64_t tasks, next = 0, done = 0;
    std::condition_variable finished;
  };

  void Help();
  bool Next(std::unique_lock<std::mutex>* lock, Job* job);

  std::mutex mutex_;  // of everything below and of the jobs
  std::condition_variable wanted_;
  std::deque<std::shared_ptr<Job>> jobs_;  // one entry for each helper that is asked for
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_HELPERS_H_
