// Products of activations and packed weights in bfloat16 on a processor with matrix tiles (Intel AMX).
#ifndef DLRM_OPS_MATRIX_AMX_H_
#define DLRM_OPS_MATRIX_AMX_H_

#include <cstdint>

#include "elements.h"

namespace dlrm {

constexpr int64_t kPairsOfTile = 16;  // pairs of inputs that a tile holds

// Panels of a layer's weights: of 32 columns each, [depth, 32] pairs of inputs, where depth is a multiple of kPairsOfTile.
struct TilePanels {
  const float* weights;  // of the first panel; the others follow
  const float* bias;     // [32] each
  int64_t depth, columns;  // columns of y that the panels compute, of which the last panel may have fewer than 32
  bool relu;
};

// y [rows, columns] = x W + b, with or without a ReLU; x [rows, 2 depth]. A row's sums do not depend on the other rows. Call it only if HasTiles().
void MultiplyByTiles(const TilePanels& panels, const BFloat16* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride);

}  // namespace dlrm

#endif  // DLRM_OPS_MATRIX_AMX_H_
