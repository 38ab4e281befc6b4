// The interaction's code for matrix tiles (Intel AMX) with the tiles' instructions emulated: for processors that have none, and for sanitizers, which
// do not see what those instructions read and write.
#ifndef DLRM_TESTS_OPS_EMULATED_TILES_H_
#define DLRM_TESTS_OPS_EMULATED_TILES_H_

#include <cstdint>

namespace emulated {

// Whether the processor that this is compiled for has the other instructions that the code uses.
bool HasTiles();

// As InteractByTiles and InteractGradientByTiles, of `samples` samples of N vectors of D bfloat16, by their bits.
void Interact(int64_t samples, int vectors, int width, const uint16_t* bottom, const uint16_t* embeddings, uint16_t* out);
void InteractGradient(int64_t samples, int vectors, int width, const uint16_t* bottom, const uint16_t* embeddings, const uint16_t* upstream,
                      uint16_t* bottom_gradient, uint16_t* embeddings_gradient);

}  // namespace emulated

#endif  // DLRM_TESTS_OPS_EMULATED_TILES_H_
