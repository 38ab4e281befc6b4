#include "helpers.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "parallel.h"

namespace dlrm {
namespace {

constexpr int kPauses = 2000;  // a helper waits actively for some 100 microseconds, then it leaves

std::atomic<int64_t> forks{0};  // number of forks between the process that loaded the library and this one
const int kCounted = pthread_atfork(nullptr, nullptr, [] { ++forks; });

// Work for helpers that wait actively.
class Watch {
 public:
  std::atomic<int> calls{0};  // that run in this process

  // Waits actively for work, and does it.
  void Attend() {
    ++attending_;
    for (int pauses = 0; pauses < kPauses && calls <= 1; ++pauses) {
      while (Next()) pauses = 0;
      Pause();
    }
    --attending_;
  }

  int attending() const { return attending_; }

  void Run(int64_t tasks, const std::function<void(int64_t)>& work) {
    work_ = &work;
    done_.store(0, std::memory_order_relaxed);
    tickets_.store(static_cast<uint64_t>(tasks) << 32, std::memory_order_release);
    while (Next()) {
    }
    for (int pauses = 0; done_.load(std::memory_order_acquire) < tasks; ++pauses) pauses < kPauses ? Pause() : static_cast<void>(sched_yield());
  }

 private:
  static int64_t Left(uint64_t ticket) { return static_cast<int64_t>(ticket >> 32) - static_cast<int64_t>(ticket & 0xffffffffu); }

  // Runs the next task; returns false if none is left.
  bool Next() {
    if (Left(tickets_.load(std::memory_order_relaxed)) <= 0) return false;
    const uint64_t ticket = tickets_.fetch_add(1, std::memory_order_acq_rel);
    if (Left(ticket) <= 0) return false;
    (*work_)(static_cast<int64_t>(ticket & 0xffffffffu));
    done_.fetch_add(1, std::memory_order_release);
    return true;
  }

  // Tasks of the piece of work << 32 | the next of them. One number holds both, so that a helper who comes late cannot take a task of another piece.
  std::atomic<uint64_t> tickets_{0};
  std::atomic<int64_t> done_{0};
  std::atomic<int> attending_{0};
  const std::function<void(int64_t)>* work_ = nullptr;  // valid until all tasks are done
};

}  // namespace

// The helper threads of one process.
class Helpers::Crew {
 public:
  explicit Crew(int count) : forks_(forks) {
    threads_.reserve(count);
    try {
      for (int i = 0; i < count; ++i) threads_.emplace_back([this] { Help(); });
    } catch (const std::system_error&) {  // the system has no more threads: the caller does their work, too
    }
  }

  ~Crew() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  bool OfThisProcess() const { return forks_ == forks; }

  void Run(int64_t tasks, int64_t most, const std::function<void(int64_t)>& work) {
    const int64_t count = std::min(static_cast<int64_t>(threads_.size()), most);
    const auto job = std::make_shared<Job>();
    job->work = &work, job->tasks = tasks;
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.insert(jobs_.end(), count, job);
    lock.unlock();
    for (int64_t i = 0; i < count; ++i) wanted_.notify_one();
    lock.lock();
    while (Next(&lock, job.get())) {
    }
    job->finished.wait(lock, [&job] { return job->done == job->tasks; });
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());  // drop the entries of helpers that have not begun
  }

  Watch& watch() { return watch_; }

  // Asks for helpers that attend the watch, so many with those that do already.
  void Call(int most) {
    const int count = std::min(static_cast<int>(threads_.size()), most) - watch_.attending();
    if (count <= 0) return;
    const auto job = std::make_shared<Job>();
    job->attends = true;
    std::unique_lock<std::mutex> lock(mutex_);
    jobs_.insert(jobs_.end(), count, job);
    lock.unlock();
    called_ = true;
    for (int i = 0; i < count; ++i) wanted_.notify_one();
  }

  // Drops the entries of helpers that have not come.
  void Dismiss() {
    if (!called_) return;
    called_ = false;
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(), [](const std::shared_ptr<Job>& job) { return job->attends; }), jobs_.end());
  }

 private:
  struct Job {
    const std::function<void(int64_t)>* work;  // invalid when all tasks are done
    int64_t tasks, next = 0, done = 0;
    std::condition_variable finished;
    bool attends = false;  // the job is to attend the watch
  };

  // Runs the job's next task; returns false if none is left.
  bool Next(std::unique_lock<std::mutex>* lock, Job* job) {
    if (job->next == job->tasks) return false;
    const int64_t task = job->next++;
    lock->unlock();
    (*job->work)(task);
    lock->lock();
    if (++job->done == job->tasks) job->finished.notify_all();
    return true;
  }

  void Help() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wanted_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
      if (ending_) return;
      const std::shared_ptr<Job> job = jobs_.front();
      jobs_.pop_front();
      if (job->attends) {
        lock.unlock();
        watch_.Attend();
        lock.lock();
        continue;
      }
      while (Next(&lock, job.get())) {
      }
    }
  }

  const int64_t forks_;
  Watch watch_;
  bool called_ = false;  // since Dismiss
  std::mutex mutex_;  // protects the following members and the jobs
  std::condition_variable wanted_;
  std::deque<std::shared_ptr<Job>> jobs_;  // one entry for each requested helper
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

Helpers::Helpers(int count) : count_(std::max(count, 0)), crew_(new Crew(count_)) {}

Helpers::~Helpers() {
  const Crew* crew = crew_;
  if (crew->OfThisProcess()) delete crew;  // threads of another process can be neither ended nor joined
}

Helpers::Crew* Helpers::OfThisProcess() {
  Crew* crew = crew_;
  if (crew->OfThisProcess()) return crew;
  auto fresh = std::make_unique<Crew>(count_);
  return crew_.compare_exchange_strong(crew, fresh.get()) ? fresh.release() : crew;
}

void Helpers::Run(int64_t tasks, int most, const std::function<void(int64_t)>& work) {
  const int64_t wanted = std::min({static_cast<int64_t>(count_), static_cast<int64_t>(most), tasks - 1});
  if (wanted > 0) return OfThisProcess()->Run(tasks, wanted, work);
  for (int64_t task = 0; task < tasks; ++task) work(task);
}

std::atomic<int>* Helpers::Calls() { return &OfThisProcess()->watch().calls; }

Helpers::Company::Company(Helpers* helpers, int most) : crew_(helpers->OfThisProcess()) { crew_->Call(std::min(helpers->count_, most)); }

Helpers::Company::~Company() { crew_->Dismiss(); }

void Helpers::Company::Run(int64_t tasks, const std::function<void(int64_t)>& work) { crew_->watch().Run(tasks, work); }

}  // namespace dlrm
