// Properties of the library, which model/native.py reads by ctypes.
#include "interaction_amx.h"

extern "C" {

const char* dlrm_compiler() {
#if defined(__clang__)
  return __VERSION__;  // includes the compiler's name
#else
  return "GCC " __VERSION__;
#endif
}

int dlrm_has_tiles() { return dlrm::HasTiles(); }
}
