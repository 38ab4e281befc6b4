// A whole model from ids to logits, without TensorFlow: tables where they lie, pooling, interaction and MLPs in float32.
//
// A sample's logit has the same bits whatever batch it comes in and whatever the number of threads. They are not TensorFlow's, which sums in another
// order.
#ifndef DLRM_OPS_SCORER_H_
#define DLRM_OPS_SCORER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "helpers.h"
#include "matrix.h"

namespace dlrm {

// How rows are stored. Of int8, x = scale * q + bias, with a scale and a bias for each row.
enum RowKind : int32_t { kFloat32Rows, kBFloat16Rows, kFloat16Rows, kInt8Rows };

// A feature, and the table [rows, width] in which it is looked up. The table lies in chunks [chunk_rows, chunk_width] of equal size, of which those
// with the same rows come one after another; what is beyond the table's rows and columns is never read.
struct ScorerFeature {
  const void* const* chunks;
  const float* scales;  // [rows, 2] of int8
  int64_t rows, width, chunk_rows, chunk_width;
  int32_t kind, hotness, mean;  // ids a sample; the mean of their rows, or the sum
};

struct ScorerLayer {
  const float* kernel;  // [inputs, outputs]
  const float* bias;    // [outputs], or null
  int64_t inputs, outputs;
  int32_t relu;
};

enum Interactions : int32_t { kDot, kConcatenation, kCross };

struct ScorerShape {
  int64_t numerical;           // M; 0 where there is no bottom MLP
  int32_t features;            // F
  int32_t bottom, cross, top;  // layers of each; a cross layer is two, V and U
  int32_t interaction;
};

class Scorer {
 public:
  // The layers are copied, the tables are not. Layers are those of the bottom MLP, then the cross layers', then the top MLP's; `threads` are for
  // a call of many samples, the caller's among them.
  Scorer(const ScorerShape& shape, const ScorerFeature* features, const ScorerLayer* layers, int threads);

  // numerical [samples, M], ids [samples, K], each feature's side by side, -1 in a list for none -> logits [samples].
  // Returns -1, or the place of an id that is out of range; then the logits are not complete.
  int64_t Score(int64_t samples, const float* numerical, const int32_t* ids, float* logits) const;

 private:
  struct Feature {
    ScorerFeature table;
    std::vector<const void*> chunks;
    int64_t first_id, column;  // of a sample's ids and of its vectors
    bool in_bottom;            // stands where the bottom MLP's output would
  };
  struct Buffers;

  void ScoreSome(int64_t samples, const float* numerical, const int32_t* ids, float* logits, Buffers* buffers) const;
  void LookUp(int64_t samples, const int32_t* ids, Buffers* buffers) const;
  int64_t BadId(int64_t samples, const int32_t* ids) const;

  ScorerShape shape_;
  std::vector<Feature> features_;
  std::vector<PackedLayer> bottom_, cross_, top_;
  int64_t ids_, embedded_, joined_, widest_, flops_;  // K; columns of the vectors, of what the interaction gives, of any layer; of a sample
  int threads_;
  std::unique_ptr<Helpers> helpers_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_SCORER_H_
