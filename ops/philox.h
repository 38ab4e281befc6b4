// Counter-based random bits: Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), the same as those
// of TensorFlow's stateless generators.
#ifndef DLRM_OPS_PHILOX_H_
#define DLRM_OPS_PHILOX_H_

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dlrm {

constexpr int kPhiloxWords = 4;    // words that one count gives
constexpr int kPhiloxCounts = 16;  // counts that are computed at once

// A register of words of the generator's state, each in the lower half of a lane; the upper halves are ignored.
#if defined(__AVX512F__)
typedef uint64_t PhiloxLanes __attribute__((vector_size(64)));
#else
typedef uint64_t PhiloxLanes __attribute__((vector_size(32)));
#endif
constexpr int kPhiloxLanes = sizeof(PhiloxLanes) / 8;

// Multiplies the lower halves by a number of 32 bits.
inline PhiloxLanes Product(PhiloxLanes words, uint32_t number) {
#if defined(__AVX512F__)
  return reinterpret_cast<PhiloxLanes>(_mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(words), _mm512_set1_epi64(number)));
#elif defined(__AVX2__)
  return reinterpret_cast<PhiloxLanes>(_mm256_mul_epu32(reinterpret_cast<__m256i>(words), _mm256_set1_epi64x(number)));
#else
  return (words & uint64_t{0xffffffff}) * uint64_t{number};
#endif
}

// words[4 i + w] = word w of count first + i of the stream, for i below n rounded up to kPhiloxCounts.
inline void PhiloxWords(uint32_t key, uint64_t stream, uint64_t first, int64_t n, uint32_t* words) {
  constexpr int kVectors = kPhiloxCounts / kPhiloxLanes;
  for (int64_t begin = 0; begin < n; begin += kPhiloxCounts) {
    PhiloxLanes a[kVectors], b[kVectors], c[kVectors], d[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      a[v] = PhiloxLanes{};
      for (int i = 0; i < kPhiloxLanes; ++i) a[v][i] = first + begin + v * kPhiloxLanes + i;
      b[v] = a[v] >> 32, c[v] = PhiloxLanes{} + stream, d[v] = c[v] >> 32;
    }
    uint32_t keys[2] = {key, 0};
    for (int round = 0; round < 10; ++round) {
      for (int v = 0; v < kVectors; ++v) {
        const PhiloxLanes left = Product(a[v], 0xD2511F53), right = Product(c[v], 0xCD9E8D57);
        a[v] = (right >> 32) ^ b[v] ^ uint64_t{keys[0]}, b[v] = right;
        c[v] = (left >> 32) ^ d[v] ^ uint64_t{keys[1]}, d[v] = left;
      }
      keys[0] += 0x9E3779B9, keys[1] += 0xBB67AE85;
    }
    for (int v = 0; v < kVectors; ++v) {
      const PhiloxLanes low = PhiloxLanes{} + uint64_t{0xffffffff}, front = (a[v] & low) | b[v] << 32, back = (c[v] & low) | d[v] << 32;
      for (int i = 0; i < kPhiloxLanes; ++i) {
        const uint64_t count[2] = {front[i], back[i]};
        std::memcpy(words + kPhiloxWords * (begin + v * kPhiloxLanes + i), count, sizeof(count));
      }
    }
  }
}

}  // namespace dlrm

#endif  // DLRM_OPS_PHILOX_H_
