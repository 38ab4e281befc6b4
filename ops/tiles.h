// The processor's matrix tiles (Intel AMX), where the compiler's target has them: then DLRM_TILES is defined. Without them this file is empty.
#ifndef DLRM_OPS_TILES_H_
#define DLRM_OPS_TILES_H_

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__linux__)
#define DLRM_TILES 1

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace dlrm {

constexpr int kTileRows = 16;      // rows of a tile
constexpr int kTileLanes = 16;     // 32-bit lanes in a row of a tile: 16 sums, or 16 pairs of elements
constexpr int kTileElements = 32;  // bfloat16 elements in a row of a tile

// Configures this thread's tiles, with 64 bytes a row, for the lifetime of this object. The configuration before is restored, because oneDNN keeps one
// of its own in these threads.
class Tiles {
 public:
  // Tiles of 16 rows.
  Tiles() : Tiles({kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows, kTileRows}) {}

  // Tiles of these numbers of rows, each at least 1.
  explicit Tiles(const uint8_t (&rows)[8]) {
    _tile_storeconfig(&before_);
    Configure(rows);
  }
  Tiles(const Tiles&) = delete;
  ~Tiles() { _tile_loadconfig(&before_); }

  // Changes the numbers of rows.
  void Configure(const uint8_t (&rows)[8]) {
    alignas(64) Configuration all = {};
    all.palette = 1;
    for (int i = 0; i < 8; ++i) {
      all.bytes[i] = 64;
      all.rows[i] = rows[i];
    }
    _tile_loadconfig(&all);
  }

 private:
  struct Configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
  };
  alignas(64) Configuration before_;
};

// Exchanges the rows and columns that differ in a bit of their numbers.
template <int kStep>
inline void ExchangeBits(__m512i (&rows)[kTileRows]) {
  alignas(64) int low[kTileLanes], high[kTileLanes];
  for (int i = 0; i < kTileLanes; ++i) {
    const int other = i & kStep ? kTileLanes : 0;  // the second operand
    low[i] = other + (i & ~kStep);
    high[i] = other + (i | kStep);
  }
  const __m512i first = _mm512_load_si512(low), second = _mm512_load_si512(high);
  for (int i = 0; i < kTileRows; ++i) {
    if (i & kStep) continue;
    const __m512i a = rows[i], b = rows[i + kStep];
    rows[i] = _mm512_permutex2var_epi32(a, first, b);
    rows[i + kStep] = _mm512_permutex2var_epi32(a, second, b);
  }
}

// Transposes the 16 x 16 lanes of a tile.
inline void ExchangeRowsAndColumns(__m512i (&rows)[kTileRows]) {
  ExchangeBits<1>(rows);
  ExchangeBits<2>(rows);
  ExchangeBits<4>(rows);
  ExchangeBits<8>(rows);
}

}  // namespace dlrm

#endif

#endif  // DLRM_OPS_TILES_H_
