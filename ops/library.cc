// What a library says of itself to model/native.py, which reads it by ctypes.
#include "interaction_amx.h"

extern "C" {

const char* dlrm_compiler() {
#if defined(__clang__)
  return __VERSION__;  // names itself
#else
  return "GCC " __VERSION__;
#endif
}

int dlrm_has_tiles() { return dlrm::HasTiles(); }
}
