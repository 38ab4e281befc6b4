// A whole model from ids to logits, without TensorFlow: lookup in tables in place, pooling, interaction and MLPs, in
// float32 or, the products of matrices only, in bfloat16.
//
// A sample's logit has the same bits in every batch and for any number of threads. TensorFlow sums in another order, so its last bits differ.
#ifndef DLRM_OPS_SCORER_H_
#define DLRM_OPS_SCORER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "helpers.h"
#include "matrix.h"
#include "pace.h"
#include "parallel.h"

namespace dlrm {

// The formats of rows. For int8, x = scale * q + bias, with a scale and a bias for each row.
enum RowKind : int32_t { kFloat32Rows, kBFloat16Rows, kFloat16Rows, kInt8Rows };

// A feature, and the table [rows, width] in which it is looked up. The table consists of chunks [chunk_rows, chunk_width] of equal size, listed in
// row-major order; elements beyond the table's rows and columns are never read.
struct ScorerFeature {
  const void* const* chunks;  // null where every call brings rows along
  const float* scales;  // [rows, 2] for int8
  int64_t rows, width, chunk_rows, chunk_width;
  int32_t kind, hotness, mean;  // RowKind; ids a sample; 1 for the mean of their rows, 0 for the sum
  int32_t weighted;             // 1: the ids of a sample are followed by as many bits of float32 weights, of a weighted sum or mean

  bool list() const { return hotness > 1 || weighted; }
  int64_t ids() const { return weighted ? 2 * int64_t{hotness} : hotness; }
};

struct ScorerLayer {
  const float* kernel;  // [inputs, outputs]
  const float* bias;    // [outputs], or null
  int64_t inputs, outputs;
  int32_t relu;
};

enum Interactions : int32_t { kDot, kConcatenation, kCross, kPairSum };

struct ScorerShape {
  int64_t numerical;           // M
  int32_t features;            // F
  int32_t bottom, cross, top;  // numbers of layers; a cross layer counts as two, V and U, or as one of full rank
  int32_t interaction;
  int32_t full_rank;  // 1: cross layers of one kernel
  int32_t parallel;   // 1: the top MLP reads what the cross layers read, and its last layer the output of both, the cross layers' first
  int32_t linear;     // 1: a linear part: F more features with tables of one column, looked up by the ids of the first F, and a layer [M, 1]
  int32_t scaled;     // 1: each numerical feature has a vector, which its value is multiplied by; they come before those of the features
  // Two streams, each an MLP of the concatenation, in place of the top MLP: layers of their gates (0 for none), features that the gates read, layers
  // of the streams (0 for no streams).
  int32_t gate[2], gate_features[2], stream[2];
  int32_t heads;            // kernels of the bilinear layer of both streams' outputs
  const int32_t* gated_by;  // positions of the features that the first gate reads, then those of the second
  int32_t bfloat16;         // 1: layers of more than one output, but for a gate's last, multiply in bfloat16
};

class Scorer {
 public:
  // The layers are copied, the tables are not. `layers` holds those of the bottom MLP, then the cross layers, then those of the top MLP, then the layer
  // of the linear part, then the numerical features' vectors [M, D], then for each stream its gate and its MLP, then the layer [d1 + d2, 1] of both
  // streams' outputs, then the heads' kernels [d1 / heads, d2 / heads]. `threads` is the number of threads for a call with many samples, including the
  // caller's. Without a bottom MLP the concatenation begins with the numerical features, or their vectors. A pair sum is added to the logits of the
  // top MLP, which may have no layers.
  Scorer(const ScorerShape& shape, const ScorerFeature* features, const ScorerLayer* layers, int threads);

  // numerical [samples, M], ids [samples, K], each feature's ids, and their weights, side by side, -1 in a list for no id -> logits [samples].
  // Returns -1, or the position of an id that is out of range; then the logits are incomplete.
  int64_t Score(int64_t samples, const float* numerical, const int32_t* ids, float* logits) const;

  // The same where a batch brings rows of some tables along: rows[i] holds counts[i] float32 rows [width] of the i-th of `features`, which the ids of
  // this call number; null for the table itself. Ids of a feature and of its linear weight are the same, so both are given, or neither.
  int64_t ScoreRows(int64_t samples, const float* numerical, const int32_t* ids, const void* const* rows, const int64_t* counts, float* logits) const;

 private:
  struct Feature {
    ScorerFeature table;
    std::vector<const void*> chunks;
    int64_t first_id, column;  // position in a sample's ids, and in its vectors
    bool in_bottom;            // the feature takes the place of the bottom MLP's output
  };
  struct Tables {
    std::vector<Feature> features, linear;  // linear: the weights of the linear part
  };
  // logit = bias + w [x, z] + the sum over the heads h of x_h W_h z_h, where x and z are the streams' outputs
  struct Stream {
    std::vector<PackedLayer> gate, layers;
    std::vector<int32_t> features;  // that the gate reads
  };
  struct Buffers;

  int64_t ScoreAll(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits) const;
  // Scores a call's samples while no other call runs: alone, or with helpers that divide the layers' outputs, whichever takes less time.
  void ScoreAlone(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits, Buffers* buffers) const;
  void ScoreSome(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits, Buffers* buffers) const;
  void LookUp(const Tables& tables, int64_t samples, const int32_t* ids, Buffers* buffers) const;
  void AddPairSums(int64_t samples, float* logits, Buffers* buffers) const;
  void FuseStreams(int64_t samples, float* logits, Buffers* buffers) const;
  void Gate(const Stream& stream, int64_t samples, Buffers* buffers) const;
  void AddLinear(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits) const;
  int64_t BadId(const Tables& tables, int64_t samples, const int32_t* ids) const;

  ScorerShape shape_;
  Tables tables_;
  std::vector<PackedLayer> bottom_, cross_, top_;
  std::vector<Stream> streams_;
  std::vector<PackedLayer> fusion_, heads_;
  std::vector<float> weights_, scaled_;  // of the numerical features: of the linear part [M], their vectors [M, D]
  float intercept_;                      // of the linear part
  // K; columns of the vectors, before them, of the interaction's output and of the widest layer; the most inputs of a layer; operations a sample,
  // lookups expressed in them; columns of the vectors that a gate reads, and of both streams' outputs.
  int64_t ids_, embedded_, before_, joined_, widest_, deepest_, flops_, context_, fused_;
  int threads_;
  std::unique_ptr<Helpers> helpers_;
  int company_;           // helpers that may divide the layers' outputs where a single call with few samples runs; 0 where the layers are small
  mutable Pace paces_[6];  // of such calls, by the logarithm of the samples: alone, or with helpers
};

}  // namespace dlrm

#endif  // DLRM_OPS_SCORER_H_
