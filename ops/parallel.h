// Threads, denormals and prefetching for the kernels.
#ifndef DLRM_OPS_PARALLEL_H_
#define DLRM_OPS_PARALLEL_H_

#include <cstdint>
#include <functional>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dlrm {

// Access to threads that the caller owns: `run` calls work(i) once for each i in 0..count-1 and returns when all are done.
struct Threads {
  int count;
  std::function<void(int64_t count, const std::function<void(int64_t)>& work)> run;
};

inline const Threads kCallingThread{1, [](int64_t count, const std::function<void(int64_t)>& work) {
                                      for (int64_t i = 0; i < count; ++i) work(i);
                                    }};

// Makes denormals count as zero for the lifetime of this object, as in TensorFlow's own threads, so that results do not depend on the thread.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#endif
};

constexpr int kCacheLine = 64;

// Lets the processor rest for a moment in a loop that waits for another thread.
inline void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  asm volatile("" ::: "memory");
#endif
}

// GCC removes calls of a function that only prefetches, because it seems to do nothing; the empty asm statement prevents that.
inline void PrefetchToRead(const void* row, int bytes) {
  asm volatile("");
  for (int i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(row) + i, 0);
}

inline void PrefetchToWrite(const void* row, int bytes) {
  asm volatile("");
  for (int i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(static_cast<const char*>(row) + i, 1);
}

}  // namespace dlrm

#endif  // DLRM_OPS_PARALLEL_H_
