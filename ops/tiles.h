// The processor's matrix tiles (Intel AMX), where the compiler's target has them: then DLRM_TILES is defined. Without them this file is empty.
#ifndef DLRM_OPS_TILES_H_
#define DLRM_OPS_TILES_H_

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__linux__)
#define DLRM_TILES 1

#include <immintrin.h>

#include <algorithm>
#include <atomic>
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
    asm volatile("" ::"r"(&all) : "memory");  // all of it is in memory: GCC 12 knows of its first 8 bytes only that they are read
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

// Ways to use the tiles: all eight, or few at a time, and the others zero. By default it is measured which of them is faster; tests choose one, or change at
// each question.
enum class TileUse { kMeasured, kAll, kFew, kAlternating };
inline std::atomic<TileUse> tile_use{TileUse::kMeasured};

// Ticks for 16 loads of tiles. Four tiles are loaded again and again; the other four hold something, or are zero.
inline uint64_t TicksOfLoads(bool others) {
  alignas(64) static const char kZeros[kTileRows * 64] = {};
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if (others) {
    _tile_loadd(0, kZeros, 64);
    _tile_loadd(1, kZeros, 64);
    _tile_loadd(2, kZeros, 64);
    _tile_loadd(3, kZeros, 64);
  }
  _mm_lfence();
  const uint64_t begin = __rdtsc();
  for (int i = 0; i < 4; ++i) {
    _tile_loadd(4, kZeros, 64);
    _tile_loadd(5, kZeros, 64);
    _tile_loadd(6, kZeros, 64);
    _tile_loadd(7, kZeros, 64);
  }
  _mm_lfence();
  return __rdtsc() - begin;
}

// Whether to use few tiles at a time. A core writes a tile into a spare register while instructions still read the tile's contents before. Its two threads
// share these registers, and a tile that holds anything but its first zeros takes one. So where another program, on clouds that of another machine, uses
// tiles on the same core, hardly a spare one is left to a thread that uses all eight: instructions that write tiles then wait for each other, and take 2
// to 5 times as long. Call it while there is an object of the class Tiles; it changes all tiles. A thread's measurement counts for a while.
inline bool UseFewTiles() {
  constexpr uint64_t kFor = 1 << 20;  // ticks: half a millisecond
  static thread_local uint64_t measured = 0;
  static thread_local bool few = false;
  const TileUse use = tile_use.load(std::memory_order_relaxed);
  if (use == TileUse::kAlternating) return few = !few;
  if (use != TileUse::kMeasured) return use == TileUse::kFew;
  if (measured && __rdtsc() - measured < kFor) return few;
  uint64_t with_others = ~uint64_t{0}, alone = with_others;
  for (int turn = 0; turn < 2; ++turn) {  // after a pause the first instructions with tiles are slow
    with_others = std::min(with_others, TicksOfLoads(true));
    alone = std::min(alone, TicksOfLoads(false));
  }
  few = with_others > alone + alone / 4;
  measured = __rdtsc();
  return few;
}

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
