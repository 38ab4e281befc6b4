#include "matrix_amx.h"

#include <algorithm>
#include <cstring>

#include "lanes.h"
#include "parallel.h"
#include "tiles.h"

namespace dlrm {

#ifdef DLRM_TILES
namespace {

constexpr int64_t kPanelColumns = 2 * kTileLanes, kBlockRows = 2 * kTileRows;
constexpr int kFewRows = 4;        // up to so many rows, vectors are faster than tiles, whose loads wait for memory
constexpr int64_t kPrefetched = 32;  // pairs of inputs whose weights are then prefetched

// Tiles 0 to 3: sums of two times two tiles. 4 and 5: inputs. 6 and 7: weights. (The compiler takes literal numbers only.)
// sums [kBlockRows, kPanelColumns] = x W for at most kBlockRows rows and a panel; kBoth: there are more than kTileRows rows. Or, for at most kTileRows
// rows, with few tiles at a time, see UseFewTiles: the others are zero.
template <bool kBoth, bool kFew = false>
inline void Products(const float* weights, int64_t depth, const BFloat16* x, int64_t stride, float* sums) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kBoth || kFew) {
    _tile_zero(2);
    _tile_zero(3);
  }
  if constexpr (kFew) {
    _tile_zero(5);
    _tile_zero(7);
  }
  const int64_t bytes = stride * sizeof(BFloat16), of_panel = kPanelColumns * sizeof(float);
  for (int64_t k = 0; k < depth; k += kPairsOfTile) {
    const float* tile = weights + k * kPanelColumns;
    _tile_loadd(4, x + 2 * k, bytes);
    _tile_loadd(6, tile, of_panel);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kFew) {
      _tile_loadd(6, tile + kTileLanes, of_panel);
      _tile_dpbf16ps(1, 4, 6);
    } else {
      _tile_loadd(7, tile + kTileLanes, of_panel);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kBoth) {
      _tile_loadd(5, x + kTileRows * stride + 2 * k, bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, of_panel);
  _tile_stored(1, sums + kTileLanes, of_panel);
  if constexpr (kBoth) {
    _tile_stored(2, sums + kTileRows * kPanelColumns, of_panel);
    _tile_stored(3, sums + kTileRows * kPanelColumns + kTileLanes, of_panel);
  }
}

// Adds the bias to the sums of some rows, applies the ReLU, and writes the columns that there are.
void Finish(const float* sums, int64_t rows, const float* bias, int64_t columns, bool relu, float* y, int64_t y_stride) {
  for (int64_t row = 0; row < rows; ++row) {
    alignas(64) float outputs[kPanelColumns];
    for (int64_t i = 0; i < kPanelColumns; i += kLanes) {
      const Lanes sum = Load(sums + row * kPanelColumns + i) + Load(bias + i);
      Store(relu ? Relu(sum) : sum, outputs + i);
    }
    std::memcpy(y + row * y_stride, outputs, columns * sizeof(float));
  }
}

// The products of few rows by vectors, with the bits of `Products`: a tile instruction sums the products of the first and of the second numbers of the
// pairs apart, rounding once a product, then adds both sums to the result.
template <int kR>
void FewRows(const float* weights, int64_t depth, const BFloat16* x, int64_t stride, float* sums) {
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  Lanes total[kR][2] = {};
  for (int64_t k = 0; k < depth; k += kPairsOfTile) {
    Lanes first[kR][2] = {}, second[kR][2] = {};
    alignas(64) float inputs[kR][2 * kPairsOfTile];
    for (int i = 0; i < kR; ++i) WidenRow(x + i * stride + 2 * k, 2 * kPairsOfTile, inputs[i]);
    for (int64_t pair = 0; pair < kPairsOfTile; ++pair) {
      const float* row = weights + (k + pair) * kPanelColumns;
      PrefetchToRead(row + kPrefetched * kPanelColumns, kPanelColumns * sizeof(float));
      const Words words[2] = {(Words)Load(row), (Words)Load(row + kLanes)};
      DLRM_UNROLLED
      for (int i = 0; i < kR; ++i) {
        const float low = inputs[i][2 * pair], high = inputs[i][2 * pair + 1];
        DLRM_UNROLLED
        for (int v = 0; v < 2; ++v) {
          first[i][v] += low * (Lanes)(words[v] << 16);
          second[i][v] += high * (Lanes)(words[v] & 0xffff0000u);
        }
      }
    }
    for (int i = 0; i < kR; ++i) {
      for (int v = 0; v < 2; ++v) total[i][v] += first[i][v] + second[i][v];
    }
  }
  for (int i = 0; i < kR; ++i) {
    for (int v = 0; v < 2; ++v) Store(total[i][v], sums + i * kPanelColumns + v * kLanes);
  }
}

template <int kR>
void FewRows(int64_t rows, const float* weights, int64_t depth, const BFloat16* x, int64_t stride, float* sums) {
  if (rows == kR) return FewRows<kR>(weights, depth, x, stride, sums);
  if constexpr (kR > 1) FewRows<kR - 1>(rows, weights, depth, x, stride, sums);
}

}  // namespace

void MultiplyByTiles(const TilePanels& panels, const BFloat16* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  alignas(64) float sums[kBlockRows * kPanelColumns];
  bool few = false;
  const auto block = [&](int64_t row, int64_t count) {
    const BFloat16* from = x + row * x_stride;
    for (int64_t first = 0; first < panels.columns; first += kPanelColumns) {
      const float *weights = panels.weights + first * panels.depth, *bias = panels.bias + first;
      if (count <= kFewRows) {
        FewRows<kFewRows>(count, weights, panels.depth, from, x_stride, sums);
      } else if (few) {
        Products<false, true>(weights, panels.depth, from, x_stride, sums);
      } else {
        count > kTileRows ? Products<true>(weights, panels.depth, from, x_stride, sums) : Products<false>(weights, panels.depth, from, x_stride, sums);
      }
      Finish(sums, count, bias, std::min(kPanelColumns, panels.columns - first), panels.relu, y + row * y_stride + first, y_stride);
    }
  };
  if (rows <= kFewRows) return block(0, rows);
  Tiles tiles;
  few = UseFewTiles();
  const int64_t at_once = few ? kTileRows : kBlockRows, whole = rows / at_once * at_once, rest = rows - whole;
  for (int64_t row = 0; row < whole; row += at_once) block(row, at_once);
  if (rest == 0) return;
  if (rest <= kFewRows) return block(whole, rest);
  const auto upper = static_cast<uint8_t>(std::min<int64_t>(rest, kTileRows)), lower = static_cast<uint8_t>(std::max<int64_t>(rest - kTileRows, 1));
  tiles.Configure({upper, upper, lower, lower, upper, lower, kTileRows, kTileRows});
  block(whole, rest);
}

#else

void MultiplyByTiles(const TilePanels&, const BFloat16*, int64_t, int64_t, float*, int64_t) {}

#endif

}  // namespace dlrm
