// Conversion of samples' vectors between two orders of columns: sample by sample, as the model needs them, and block by block, as workers exchange
// them.
#ifndef DLRM_OPS_COLUMNS_H_
#define DLRM_OPS_COLUMNS_H_

#include <cstdint>
#include <vector>

#include "parallel.h"

namespace dlrm {

// Consecutive columns of every sample. All sizes are in bytes.
struct Segment {
  char* block;     // position of the first sample's columns in the blocks
  int64_t stride;  // distance to the next sample in the blocks
  int64_t column;  // first byte in a sample's vectors
  int64_t width;
};

// Copies the blocks to the samples of `length` bytes each. Columns that no segment covers stay unchanged.
void BlocksToSamples(const std::vector<Segment>& segments, int64_t samples, char* out, int64_t length, const Threads& threads);

// Copies the samples to the blocks; `samples` points to the beginning of each sample's vectors.
void SamplesToBlocks(const std::vector<Segment>& segments, const std::vector<const char*>& samples, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_COLUMNS_H_
