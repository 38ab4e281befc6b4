#include "helpers.h"

#include <algorithm>
#include <system_error>

namespace dlrm {

Helpers::Helpers(int count) {
  threads_.reserve(std::max(count, 0));
  try {
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { Help(); });
  } catch (const std::system_error&) {  // the system has no more threads: the caller does what they would have done
  }
}

Helpers::~Helpers() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Does the job's next task, if one is left.
bool Helpers::Next(std::unique_lock<std::mutex>* lock, Job* job) {
  if (job->next == job->tasks) return false;
  const int64_t task = job->next++;
  lock->unlock();
  (*job->work)(task);
  lock->lock();
  if (++job->done == job->tasks) job->finished.notify_all();
  return true;
}

void Helpers::Help() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    wanted_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    const std::shared_ptr<Job> job = jobs_.front();
    jobs_.pop_front();
    while (Next(&lock, job.get())) {
    }
  }
}

void Helpers::Run(int64_t tasks, int most, const std::function<void(int64_t)>& work) {
  const auto count = std::min({static_cast<int64_t>(threads_.size()), static_cast<int64_t>(most), tasks - 1});
  if (count <= 0) {
    for (int64_t task = 0; task < tasks; ++task) work(task);
    return;
  }
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
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());  // of helpers that have not begun
}

}  // namespace dlrm
