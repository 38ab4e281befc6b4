// Element types of gradients and vectors as they lie in memory; sums and tables are float.
#ifndef DLRM_OPS_ELEMENTS_H_
#define DLRM_OPS_ELEMENTS_H_

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dlrm {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline float Widened(float x) { return x; }

inline float Widened(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float Widened(Float16 x) {
  _Float16 half;
  std::memcpy(&half, &x.bits, 2);
  return static_cast<float>(half);
}

inline void Narrow(float x, float* out) { *out = x; }

// To nearest, ties to even, as tf.cast does.
inline void Narrow(float x, BFloat16* out) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

inline void Narrow(float x, Float16* out) {
  const _Float16 half = static_cast<_Float16>(x);
  std::memcpy(&out->bits, &half, 2);
}

}  // namespace dlrm

#endif  // DLRM_OPS_ELEMENTS_H_
