// Work on the rows of a matrix, cut into tasks for threads; and the rectifier.
#ifndef DLRM_OPS_ROW_TASKS_H_
#define DLRM_OPS_ROW_TASKS_H_

#include <algorithm>
#include <cstdint>

#include "parallel.h"

namespace dlrm {

constexpr int64_t kRowsPerTask = 64;
constexpr int64_t kAlone = 1 << 20;  // up to so many elements one thread works alone: 0.2 ms, while other threads work on other slices of the batch

inline int64_t TasksOf(int64_t rows) { return (rows + kRowsPerTask - 1) / kRowsPerTask; }

// Calls work(first, last) for rows first..last-1, kRowsPerTask rows at a time.
template <class Work>
void ForRows(int64_t rows, int64_t columns, const Threads& threads, const Work& work) {
  const Threads& used = rows * columns <= kAlone ? kCallingThread : threads;
  used.run(TasksOf(rows), [&](int64_t task) {
    const FlushDenormals flush;
    work(task * kRowsPerTask, std::min(rows, (task + 1) * kRowsPerTask));
  });
}

// Keeps NaN, since NaN <= 0 is false; -0 becomes 0.
inline float Relu(float x) { return x <= 0 ? 0 : x; }

}  // namespace dlrm

#endif  // DLRM_OPS_ROW_TASKS_H_
