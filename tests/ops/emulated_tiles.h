// The code of the interaction and of the dense layers' products for matrix tiles (Intel AMX), with emulated tile instructions: for processors without them, and for sanitizers, which do
// not see the memory accesses of the real instructions.
#ifndef DLRM_TESTS_OPS_EMULATED_TILES_H_
#define DLRM_TESTS_OPS_EMULATED_TILES_H_

#include <cstdint>

namespace emulated {

// Returns true if the processor that this is compiled for has the other instructions that the code uses.
bool HasTiles();

// The way to use the tiles from now on: a value of TileUse.
void UseTiles(int way);

// InteractByTiles and InteractGradientByTiles with emulated tiles, for `samples` samples of N vectors of D bfloat16, given as bits.
void Interact(int64_t samples, int vectors, int width, const uint16_t* bottom, const uint16_t* embeddings, uint16_t* out);
void InteractGradient(int64_t samples, int vectors, int width, const uint16_t* bottom, const uint16_t* embeddings, const uint16_t* upstream,
                      uint16_t* bottom_gradient, uint16_t* embeddings_gradient);

// Pack and Multiply, and SumProducts, of products.h with emulated tiles, for float32 or bfloat16 numbers.
void Multiply(bool float32, bool packs_itself, int64_t rows, int64_t depth, int64_t columns, const void* x, const float* matrix, bool transposed,
              const float* bias, bool relu, void* y);
void SumProducts(bool float32, int64_t slices, int64_t samples, int64_t inputs, int64_t outputs, const void* x, const void* upstream, float* gradient);

}  // namespace emulated

#endif  // DLRM_TESTS_OPS_EMULATED_TILES_H_
