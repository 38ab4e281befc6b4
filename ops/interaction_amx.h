// The interaction of bfloat16 vectors on a processor with matrix tiles (Intel AMX): products of 16 x 32 and 32 x 16 elements by one instruction.
#ifndef DLRM_OPS_INTERACTION_AMX_H_
#define DLRM_OPS_INTERACTION_AMX_H_

#include "elements.h"
#include "interaction_shape.h"
#include "parallel.h"

namespace dlrm {

// Whether the processor that this was compiled for has the tiles, and the kernel lets the process use them.
bool HasTiles();

// As Interact and InteractGradient, if HasTiles().
void InteractByTiles(const InteractionShape& shape, const BFloat16* bottom, const BFloat16* embeddings, BFloat16* out, const Threads& threads);
void InteractGradientByTiles(const InteractionShape& shape, const BFloat16* bottom, const BFloat16* embeddings, const BFloat16* upstream,
                             BFloat16* bottom_gradient, BFloat16* embeddings_gradient, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_INTERACTION_AMX_H_
