// The vectors of all features side by side, and the sum of the products of all their pairs (Rendle 2010).
#ifndef DLRM_OPS_FIELDS_H_
#define DLRM_OPS_FIELDS_H_

#include <cstdint>
#include <vector>

#include "elements.h"
#include "parallel.h"

namespace dlrm {

struct FieldsShape {
  int64_t samples;     // b
  int64_t numericals;  // M
  int64_t features;    // F
  int64_t width;       // D
  bool weighs;         // a sample's F vectors are followed by F weights
  bool pairs;          // the products of all pairs are summed
  bool joins;          // the vectors are wanted side by side
  std::vector<int64_t> picks;  // features whose vectors are also wanted side by side

  int64_t embedded() const { return features * (width + (weighs ? 1 : 0)); }  // columns of a sample that are looked up
  int64_t joined() const { return joins ? (numericals + features) * width : 0; }
  int64_t picked() const { return static_cast<int64_t>(picks.size()) * width; }
};

// What both passes read: a numerical feature's vector is its value times a row of the kernel.
template <class T>
struct FieldsInputs {
  const float* numerical;  // [b, M]
  const float* kernel;     // [M, D]
  const T* embeddings;     // [b, embedded]: the vectors of the F features, then their weights
};

// What the forward pass gives.
template <class T, class U>
struct FieldsOutputs {
  U* joined;     // [b, joined]: the vectors of the numerical features, then those of the others
  float* sums;   // [b]: the products of all pairs of vectors, and the weights
  float* total;  // [b, D] with `pairs`: the sum of the vectors
  T* picked;     // [b, picked]
};

// The gradients with respect to these outputs, but for the total.
template <class T, class U>
struct FieldsUpstream {
  const U* joined;
  const float* sums;
  const float* total;  // the total itself
  const T* picked;
};

template <class T, class U>
void Fields(const FieldsShape& shape, const FieldsInputs<T>& inputs, const FieldsOutputs<T, U>& outputs, const Threads& threads);

// The gradients with respect to the numerical features' vectors, `[b, M D]`, and to the embeddings.
template <class T, class U>
void FieldsGradient(const FieldsShape& shape, const FieldsInputs<T>& inputs, const FieldsUpstream<T, U>& upstream, float* by_scaled, T* by_embeddings,
                    const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_FIELDS_H_
