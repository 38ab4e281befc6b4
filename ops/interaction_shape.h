// The shape of an interaction.
#ifndef DLRM_OPS_INTERACTION_SHAPE_H_
#define DLRM_OPS_INTERACTION_SHAPE_H_

#include <cstdint>

namespace dlrm {

struct InteractionShape {
  int64_t samples;
  int vectors;  // N = F + 1
  int width;    // D, at least 1

  int64_t pairs() const { return int64_t{vectors} * (vectors - 1) / 2; }
};

}  // namespace dlrm

#endif  // DLRM_OPS_INTERACTION_SHAPE_H_
