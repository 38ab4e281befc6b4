// The columns of samples' vectors between two orders: sample by sample, as the model wants them, and block by block, as workers exchange them.
#ifndef DLRM_OPS_COLUMNS_H_
#define DLRM_OPS_COLUMNS_H_

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace dlrm {

// Consecutive columns of every sample. All in bytes.
struct Segment {
  char* block;     // where they lie for the first sample, block by block
  int64_t stride;  // to the next sample there
  int64_t column;  // where they begin in a sample's vectors
  int64_t width;
};

// From the blocks to the samples, each `length` bytes. Columns that no segment names are left alone.
void BlocksToSamples(const std::vector<Segment>& segments, int64_t samples, char* out, int64_t length, const Threads& threads);

// And back; `samples` holds where each sample's vectors begin.
void SamplesToBlocks(const std::vector<Segment>& segments, const std::vector<const char*>& samples, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_COLUMNS_H_
