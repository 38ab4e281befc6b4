// Vectors of sixteen floats.
#ifndef DLRM_OPS_LANES_H_
#define DLRM_OPS_LANES_H_

#include <cstring>
#include <utility>

#include "elements.h"

// Unrolls the following loop over few vectors completely: otherwise GCC keeps an array of vectors on the stack instead of in registers.
#if defined(__clang__)
#define DLRM_UNROLLED _Pragma("unroll")
#else
#define DLRM_UNROLLED _Pragma("GCC unroll 8")
#endif

// Inlines a member function of a loop over rows wherever it is called: GCC takes some for too large, and then keeps the loop's state in memory for the call.
#define DLRM_INLINED __attribute__((always_inline))

namespace dlrm {

constexpr int kLanes = 16;

// One register with AVX-512; without it the compiler uses two or four registers, with the same results.
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

// Load and Store accept any address; a Lanes variable itself is aligned, which compilers rely on.
inline Lanes Load(const float* from) {
  Lanes value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
inline Lanes LoadWidened(const float* from) { return Load(from); }
template <class T>
inline Lanes LoadWidened(const T* from) {
  float values[kLanes];
  WidenRow(from, kLanes, values);
  return Load(values);
}
inline void Store(Lanes value, float* to) { std::memcpy(to, &value, sizeof(value)); }

inline Lanes Relu(Lanes x) {
  const Lanes zero = {};
  return x <= zero ? zero : x;  // keeps NaN
}

// Picks lanes by number: those of a from 0 on, those of b from kLanes on.
template <int... kFrom>
inline Lanes Shuffle(Lanes a, Lanes b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kFrom...);
#else
  typedef int Index __attribute__((vector_size(4 * kLanes)));
  return __builtin_shuffle(a, b, Index{kFrom...});
#endif
}

template <int... kPair>
inline Lanes SumPairs(Lanes a, Lanes b, std::integer_sequence<int, kPair...>) {
  return Shuffle<(2 * kPair)...>(a, b) + Shuffle<(2 * kPair + 1)...>(a, b);
}

// Sums the neighbours 0 and 1, 2 and 3, … of a, then those of b.
inline Lanes SumPairs(Lanes a, Lanes b) { return SumPairs(a, b, std::make_integer_sequence<int, kLanes>()); }

}  // namespace dlrm

#endif  // DLRM_OPS_LANES_H_
