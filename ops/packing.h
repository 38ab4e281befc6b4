// Numbers as matrix tiles multiply them, see products.h: matrices cut into tiles of 16 rows of 64 bytes, and float32 numbers into pieces in bfloat16. Only
// where the compiler's target has tiles.
#ifndef DLRM_OPS_PACKING_H_
#define DLRM_OPS_PACKING_H_

#include "tiles.h"

#ifdef DLRM_TILES
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

#include "elements.h"
#include "parallel.h"

namespace dlrm {

constexpr int64_t kTile = kTileRows * kTileElements;  // elements of a tile
constexpr int64_t kBlock = 2 * kTileRows;     // rows and columns of sums that are computed at once: two times two tiles
constexpr int64_t kPair = 2 * kTile;          // elements of two tiles
constexpr int64_t kSums = kBlock * kBlock;       // sums of a block

// Pieces of a number of type T, each with its weight in the sum.
template <class T>
constexpr int kPieces = std::is_same_v<T, float> ? 3 : 1;

inline int64_t Ceiling(int64_t n, int64_t of) { return (n + of - 1) / of; }

// Memory that is not filled with zeros. A thread keeps its own.
template <class T>
class Buffer {
 public:
  // Has at least so many elements then, of any value.
  T* Of(int64_t size) {
    if (size > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(static_cast<T*>(::operator new(size * sizeof(T), std::align_val_t(64))));
      size_ = size;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(T* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };
  int64_t size_ = 0;
  std::unique_ptr<T, Free> memory_;
};

inline __mmask16 FirstOf(int64_t n) { return n >= kTileLanes ? 0xffff : n <= 0 ? 0 : (1u << n) - 1; }

// Sixteen numbers of a row, zero where the mask is not set, as pieces whose lower halves are zero.
template <class From, int kOf>
struct Numbers {
  __m512i pieces[kOf];

  void Load(const From* from, __mmask16 mask) {
    if constexpr (std::is_same_v<From, BFloat16>) {
      pieces[0] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16);
    } else if constexpr (kOf == 1) {
      const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, from)));
      pieces[0] = _mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16);
    } else {
      const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32(0xffff0000);
      const __m512 x = _mm512_maskz_loadu_ps(mask, from);
      pieces[0] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
      const __m512 rest = _mm512_sub_ps(x, _mm512_castsi512_ps(pieces[0]));
      pieces[1] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(rest), half), upper);
      pieces[2] = _mm512_castps_si512(_mm512_sub_ps(rest, _mm512_castsi512_ps(pieces[1])));  // has at most eight digits, so its lower half is zero
    }
  }
};

// Bytes from what is packed to what is prefetched, for the left and for the right matrix: processors themselves do not prefetch beyond a page of memory.
constexpr int64_t kLeftAhead = 2048, kRightAhead = 4096;

// A block of the left matrix: a step has two tiles of 16 rows for each piece; a tile's row has the row's next 32 numbers. Memory is read along the rows.
template <int kOf, class From>
void PackRows(const From* from, int64_t stride, int64_t rows, int64_t depth, BFloat16* to) {
  alignas(64) static constexpr uint16_t kUpper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                      33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
  const __m512i upper = _mm512_load_si512(kUpper);
  for (int64_t row = 0; row < kBlock; ++row, from += stride, to += kTileElements) {
    BFloat16* at = to;
    for (int64_t first = 0; first < depth; first += kTileElements, at += kOf * kPair) {
      const int64_t rest = row < rows ? depth - first : 0;
      if (row < rows) PrefetchToRead(from + first + kLeftAhead / sizeof(From), kTileElements * sizeof(From));
      if constexpr (std::is_same_v<From, BFloat16>) {
        const __mmask32 mask = rest >= kTileElements ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
        _mm512_store_si512(at, _mm512_maskz_loadu_epi16(mask, from + first));
      } else {
        Numbers<From, kOf> a, b;
        a.Load(from + first, FirstOf(rest));
        b.Load(from + first + kTileLanes, FirstOf(rest - kTileLanes));
        for (int i = 0; i < kOf; ++i) _mm512_store_si512(at + i * kPair, _mm512_permutex2var_epi16(a.pieces[i], upper, b.pieces[i]));
      }
    }
  }
}

// Two rows of numbers as pairs: in each lane the number of `first`, then that of `second`.
template <class N>
inline __m512i Pairs(const N& first, const N& second, int piece) {
  return _mm512_or_si512(_mm512_srli_epi32(first.pieces[piece], 16), second.pieces[piece]);
}

// 32 rows of the right matrix, in panels of 32 columns that are `panel` elements apart: two tiles of 16 columns for each piece; a tile's row has the
// pairs of two rows. Memory is read along the rows.
template <int kOf, class From>
void PackPairs(const From* from, int64_t stride, int64_t rows, int64_t columns, int64_t panel, BFloat16* to) {
  for (int64_t row = 0; row < kTileElements; row += 2, from += 2 * stride, to += kTileElements) {
    BFloat16* at = to;
    if (row >= rows) {
      for (int64_t first = 0; first < columns; first += kBlock, at += panel) {
        for (int64_t i = 0; i < 2 * kOf; ++i) _mm512_store_si512(at + i * kTile, _mm512_setzero_si512());
      }
      continue;
    }
    for (int64_t first = 0; first < columns; first += kBlock, at += panel) {
      PrefetchToRead(from + first + kRightAhead / sizeof(From), kBlock * sizeof(From));
      PrefetchToRead(from + stride + first + kRightAhead / sizeof(From), kBlock * sizeof(From));
      for (int64_t half = 0; half < 2; ++half) {
        const __mmask16 mask = FirstOf(columns - first - half * kTileLanes);
        const From* of_half = from + first + half * kTileLanes;
        Numbers<From, kOf> a, b;
        a.Load(of_half, mask);
        b.Load(of_half + stride, row + 1 < rows ? mask : 0);
        for (int i = 0; i < kOf; ++i) _mm512_store_si512(at + i * kPair + half * kTile, Pairs(a, b, i));
      }
    }
  }
}

// Exchanges rows and columns of the pairs of every tile.
inline void Transpose(int64_t tiles, BFloat16* pairs) {
  for (int64_t tile = 0; tile < tiles; ++tile, pairs += kTile) {
    __m512i rows[kTileRows];
    for (int i = 0; i < kTileRows; ++i) rows[i] = _mm512_load_si512(pairs + i * kTileElements);
    ExchangeRowsAndColumns(rows);
    for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(pairs + i * kTileElements, rows[i]);
  }
}

}  // namespace dlrm

#endif

#endif  // DLRM_OPS_PACKING_H_
