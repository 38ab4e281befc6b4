// Element types of gradients and vectors in memory; sums and tables are float.
//
// float16 is converted by the processor's instructions, several elements at once (F16C, AVX-512); without them by integer arithmetic that compilers
// vectorise. _Float16 is not used, because GCC 11 and Clang 14 do not have it.
#ifndef DLRM_OPS_ELEMENTS_H_
#define DLRM_OPS_ELEMENTS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Lets the compiler vectorise the following loop: no iteration reads what another one writes.
#if defined(__clang__)
#define DLRM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DLRM_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace dlrm {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// Conversions of float16 without the processor's instructions. No intermediate float is denormal, because it would count as zero, see FlushDenormals.
namespace by_integers {

inline float Widened(Float16 x) {
  const uint32_t magnitude = static_cast<uint32_t>(x.bits & 0x7fff) << 13, sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t quiet = magnitude > 0xf800000 ? 0x400000 : 0;
  const uint32_t normal = magnitude + 0x38000000, special = (magnitude + 0x70000000) | quiet;
  const uint32_t denormal = BitsOf(FloatOf(magnitude + 0x38800000) - FloatOf(0x38800000));  // 2^-14 (1 + mantissa) - 2^-14
  return FloatOf(sign | (magnitude >= 0xf800000 ? special : magnitude < 0x800000 ? denormal : normal));
}

inline void Narrow(float x, Float16* out) {
  const uint32_t bits = BitsOf(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  const uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;  // to nearest, ties to even
  const uint32_t denormal = BitsOf(FloatOf(magnitude) + 0.5f) - 0x3f000000;                   // 0.5 + x has float16's smallest denormal as its last bit
  const uint32_t special = magnitude > 0x7f800000 ? 0x7e00 | ((magnitude >> 13) & 0x3ff) : 0x7c00;
  out->bits = static_cast<uint16_t>(sign | (magnitude >= 0x47800000 ? special : magnitude < 0x38800000 ? denormal : normal));
}

}  // namespace by_integers

inline float Widened(float x) { return x; }
inline float Widened(BFloat16 x) { return FloatOf(static_cast<uint32_t>(x.bits) << 16); }

inline void Narrow(float x, float* out) { *out = x; }

// Rounds to nearest, ties to even, as tf.cast does; every NaN becomes the same NaN.
inline void Narrow(float x, BFloat16* out) {
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

#if defined(__F16C__)
inline float Widened(Float16 x) { return _cvtsh_ss(x.bits); }
inline void Narrow(float x, Float16* out) { out->bits = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
#else
using by_integers::Narrow;
using by_integers::Widened;
#endif

// The number of leading elements that the processor's conversions handle, sixteen or eight at once.
#if defined(__AVX512F__)
inline int64_t InSixteens(int64_t n) { return n & -16; }
#else
inline int64_t InSixteens(int64_t) { return 0; }
#endif
inline int64_t InEights(int64_t n) { return n & -8; }

// to[i] = from[i] for n elements.
template <class T>
inline void WidenRow(const T* from, int64_t n, float* to) {
  int64_t done = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Float16>) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i < InSixteens(n); i += 16) {
      _mm512_storeu_ps(to + i, _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
    }
#endif
    for (int64_t i = InSixteens(n); i < InEights(n); i += 8) {
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
    }
    done = InEights(n);
  }
#endif
  for (int64_t i = done; i < n; ++i) to[i] = Widened(from[i]);
}

template <class T>
inline void NarrowRow(const float* from, int64_t n, T* to) {
  int64_t done = 0;
#if defined(__F16C__)
  if constexpr (std::is_same_v<T, Float16>) {
#if defined(__AVX512F__)
    for (int64_t i = 0; i < InSixteens(n); i += 16) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_maskz_cvtps_ph(0xffff, _mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
#endif
    for (int64_t i = InSixteens(n); i < InEights(n); i += 8) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    }
    done = InEights(n);
  }
#endif
  for (int64_t i = done; i < n; ++i) Narrow(from[i], to + i);
}

constexpr int64_t kRun = 256;  // elements that are widened to float at once, so that they stay in the first-level cache

// Calls work(values, first, n) for elements first..first+n-1, read as Widened(values[i]): all of `from` at once or, for float16, at most kRun floats
// at a time.
template <class T, class Work>
inline void ForFloats(const T* from, int64_t n, const Work& work) {
  if constexpr (std::is_same_v<T, Float16>) {
    float values[kRun];
    for (int64_t first = 0; first < n; first += kRun) {
      const int64_t count = std::min(kRun, n - first);
      WidenRow(from + first, count, values);
      work(static_cast<const float*>(values), first, count);
    }
  } else {
    work(from, int64_t{0}, n);
  }
}

}  // namespace dlrm

#endif  // DLRM_OPS_ELEMENTS_H_
