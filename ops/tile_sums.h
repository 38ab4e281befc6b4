// Sums of products by matrix tiles, of matrices as packing.h packs them, in two ways, see UseFewTiles, that give the same bits. Only where the compiler's
// target has tiles.
#ifndef DLRM_OPS_TILE_SUMS_H_
#define DLRM_OPS_TILE_SUMS_H_

#include "packing.h"

#ifdef DLRM_TILES

namespace dlrm {

constexpr int64_t kSumsStride = kBlock * sizeof(float);  // bytes

// The wide way to add the products of a block of the left and of the right matrix. Tiles 0 to 3: the sums. 4 and 5: of the left matrix. 6 and 7: of the
// right one. (The compiler takes literal numbers only.) Where a block has at most 16 rows, or at most 16 columns, the second tile of that side has zeros
// only, and is left out: kLefts or kRights is 1.
template <int kLefts>
inline void LoadLeft(const BFloat16* left) {  // past the first-level cache, which keeps the right matrix's panel
  _tile_stream_loadd(4, left, 64);
  if constexpr (kLefts == 2) _tile_stream_loadd(5, left + kTile, 64);
}
template <int kRights>
inline void LoadRight(const BFloat16* right) {
  _tile_loadd(6, right, 64);
  if constexpr (kRights == 2) _tile_loadd(7, right + kTile, 64);
}
template <int kLefts, int kRights>
inline void AddProducts() {
  _tile_dpbf16ps(0, 4, 6);
  if constexpr (kRights == 2) _tile_dpbf16ps(1, 4, 7);
  if constexpr (kLefts == 2) _tile_dpbf16ps(2, 5, 6);
  if constexpr (kLefts == 2 && kRights == 2) _tile_dpbf16ps(3, 5, 7);
}

template <int kOf, int kLefts, int kRights, class Work>
inline void AddWide(const BFloat16* left, const BFloat16* right, int64_t steps, const Work& beside) {
  for (int64_t step = 0; step < steps; ++step, left += kOf * kPair, right += kOf * kPair) {
    LoadLeft<kLefts>(left + (kOf - 1) * kPair);
    LoadRight<kRights>(right);
    AddProducts<kLefts, kRights>();
    if constexpr (kOf == 3) {
      LoadLeft<kLefts>(left + kPair);
      AddProducts<kLefts, kRights>();
      LoadRight<kRights>(right + kPair);
      AddProducts<kLefts, kRights>();
      LoadLeft<kLefts>(left);
      AddProducts<kLefts, kRights>();
      LoadRight<kRights>(right + 2 * kPair);
      AddProducts<kLefts, kRights>();
      LoadRight<kRights>(right);
      AddProducts<kLefts, kRights>();
    }
    beside(step);
  }
}

// The narrow way, for 16 rows. Tiles 0 and 1: the sums. 4: of the left matrix. 6: of the right one. The sums get the same products in the same order.
inline void LoadLeft(const BFloat16* left) { _tile_stream_loadd(4, left, 64); }
inline void ToFirst() { _tile_dpbf16ps(0, 4, 6); }
inline void ToSecond() { _tile_dpbf16ps(1, 4, 6); }
inline void ToFirst(const BFloat16* right) {
  _tile_loadd(6, right, 64);
  ToFirst();
}
inline void ToSecond(const BFloat16* right) {
  _tile_loadd(6, right + kTile, 64);
  ToSecond();
}

template <int kOf, int kRights, class Work>
inline void AddNarrow(const BFloat16* left, const BFloat16* right, int64_t steps, const Work& beside) {
  for (int64_t step = 0; step < steps; ++step, left += kOf * kPair, right += kOf * kPair) {
    LoadLeft(left + (kOf - 1) * kPair);
    ToFirst(right);
    if constexpr (kRights == 2) ToSecond(right);
    if constexpr (kOf == 3 && kRights == 2) {
      LoadLeft(left + kPair);
      ToSecond();
      ToFirst(right);
      ToFirst(right + kPair);
      ToSecond(right + kPair);
      LoadLeft(left);
      ToSecond();
      ToFirst(right + kPair);
      ToFirst(right + 2 * kPair);
      ToSecond(right + 2 * kPair);
      ToSecond(right);
      ToFirst(right);
    } else if constexpr (kOf == 3) {
      LoadLeft(left + kPair);
      ToFirst();
      ToFirst(right + kPair);
      LoadLeft(left);
      ToFirst();
      ToFirst(right + 2 * kPair);
      ToFirst(right);
    }
    beside(step);
  }
}

// Adds the products of a block, of which there are so many rows and columns, to sums [kBlock, kBlock], or to zeros where `before` is null. After each of
// the steps it calls beside(step): the tiles work on meanwhile.
template <int kOf, int kLefts, int kRights, class Work>
void SumWide(const BFloat16* left, const BFloat16* right, int64_t steps, const Work& beside, const float* before, float* sums) {
  if (before) {
    _tile_loadd(0, before, kSumsStride);
    _tile_loadd(1, before + kTileLanes, kSumsStride);
    _tile_loadd(2, before + kTileRows * kBlock, kSumsStride);
    _tile_loadd(3, before + kTileRows * kBlock + kTileLanes, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  AddWide<kOf, kLefts, kRights>(left, right, steps, beside);
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileLanes, kSumsStride);
  _tile_stored(2, sums + kTileRows * kBlock, kSumsStride);
  _tile_stored(3, sums + kTileRows * kBlock + kTileLanes, kSumsStride);
}

template <int kOf, int kRights, class Work>
void SumNarrow(const BFloat16* left, const BFloat16* right, int64_t steps, const Work& beside, const float* before, float* sums) {
  if (before) {
    _tile_loadd(0, before, kSumsStride);
    _tile_loadd(1, before + kTileLanes, kSumsStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
  }
  AddNarrow<kOf, kRights>(left, right, steps, beside);
  _tile_stored(0, sums, kSumsStride);
  _tile_stored(1, sums + kTileLanes, kSumsStride);
}

// The same of any block, in the way that is asked for. Of a block with at most 16 rows, the narrow way does not write the sums of the other rows.
template <int kOf, class Work>
void SumBlock(bool narrow, int64_t rows, int64_t columns, const BFloat16* left, const BFloat16* right, int64_t steps, const Work& beside,
              const float* before, float* sums) {
  asm volatile("" ::: "memory");  // what is packed is in memory: compilers do not know that tiles read it
  if (narrow) {
    constexpr int64_t kHalf = kTileRows * kBlock;
    const auto nothing = [](int64_t) {};
    _tile_zero(2);  // zeros take no register
    _tile_zero(3);
    _tile_zero(5);
    _tile_zero(7);
    const float* second = before ? before + kHalf : nullptr;
    if (columns > kTileLanes) {
      SumNarrow<kOf, 2>(left, right, steps, beside, before, sums);
      if (rows > kTileRows) SumNarrow<kOf, 2>(left + kTile, right, steps, nothing, second, sums + kHalf);
    } else {
      SumNarrow<kOf, 1>(left, right, steps, beside, before, sums);
      if (rows > kTileRows) SumNarrow<kOf, 1>(left + kTile, right, steps, nothing, second, sums + kHalf);
    }
  } else if (rows > kTileRows) {
    columns > kTileLanes ? SumWide<kOf, 2, 2>(left, right, steps, beside, before, sums) : SumWide<kOf, 2, 1>(left, right, steps, beside, before, sums);
  } else {
    columns > kTileLanes ? SumWide<kOf, 1, 2>(left, right, steps, beside, before, sums) : SumWide<kOf, 1, 1>(left, right, steps, beside, before, sums);
  }
  asm volatile("" ::: "memory");
}

}  // namespace dlrm

#endif

#endif  // DLRM_OPS_TILE_SUMS_H_
