// The interaction of bfloat16 vectors on a processor with matrix tiles (Intel AMX): one instruction multiplies 16 x 32 and 32 x 16 elements.
#ifndef DLRM_OPS_INTERACTION_AMX_H_
#define DLRM_OPS_INTERACTION_AMX_H_

#include "elements.h"
#include "interaction_shape.h"
#include "parallel.h"

namespace dlrm {

// Returns true if the processor that this was compiled for has the tiles, and the operating system's kernel lets the process use them.
bool HasTiles();

// Like Interact and InteractGradient; call them only if HasTiles().
void InteractByTiles(const InteractionShape& shape, const BFloat16* bottom, const BFloat16* embeddings, BFloat16* out, const Threads& threads);
void InteractGradientByTiles(const InteractionShape& shape, const BFloat16* bottom, const BFloat16* embeddings, const BFloat16* upstream,
                             BFloat16* bottom_gradient, BFloat16* embeddings_gradient, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_INTERACTION_AMX_H_
