// Aligned memory, in huge pages where the system has them: it then finds a page of memory quickly, however far the next read or write is.
#ifndef DLRM_OPS_MEMORY_H_
#define DLRM_OPS_MEMORY_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "parallel.h"

namespace dlrm {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};
template <class T>
using Memory = std::unique_ptr<T[], Free>;

// Returns memory for so many elements, whose values are undefined; they begin with a line of the cache.
template <class T>
Memory<T> Allocate(int64_t size) {
  constexpr int64_t kHugePage = 2 << 20;
  const int64_t bytes = size * static_cast<int64_t>(sizeof(T)), alignment = bytes < kHugePage ? kCacheLine : kHugePage;
  auto* memory = static_cast<T*>(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
  if (!memory && size > 0) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return Memory<T>(memory);
}

}  // namespace dlrm

#endif  // DLRM_OPS_MEMORY_H_
