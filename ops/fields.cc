#include "fields.h"

#include <algorithm>

#include "row_tasks.h"

namespace dlrm {
namespace {

// Puts a sample's vectors to `row`, in float.
template <class T>
void Assemble(const FieldsShape& shape, const FieldsInputs<T>& inputs, int64_t sample, float* row) {
  const float* __restrict kernel = inputs.kernel;
  for (int64_t i = 0; i < shape.numericals; ++i) {
    const float value = inputs.numerical[sample * shape.numericals + i];
    for (int64_t d = 0; d < shape.width; ++d) row[i * shape.width + d] = value * kernel[i * shape.width + d];
  }
  WidenRow(inputs.embeddings + sample * shape.embedded(), shape.features * shape.width, row + shape.numericals * shape.width);
}

// Half of the square of the sum less the sum of the squares (Rendle 2010, lemma 3.1); `squares` is memory for D floats.
float SumOfPairs(const FieldsShape& shape, const float* row, float* __restrict total, float* __restrict squares) {
  std::fill_n(total, shape.width, 0.0f);
  std::fill_n(squares, shape.width, 0.0f);
  for (int64_t i = 0; i < shape.numericals + shape.features; ++i, row += shape.width) {
    for (int64_t d = 0; d < shape.width; ++d) {
      total[d] += row[d];
      squares[d] += row[d] * row[d];
    }
  }
  float sum = 0;
  for (int64_t d = 0; d < shape.width; ++d) sum += total[d] * total[d] - squares[d];
  return 0.5f * sum;
}

}  // namespace

template <class T, class U>
void Fields(const FieldsShape& shape, const FieldsInputs<T>& inputs, const FieldsOutputs<T, U>& outputs, const Threads& threads) {
  const int64_t all = (shape.numericals + shape.features) * shape.width;
  ForRows(shape.samples, all, threads, [&](int64_t first, int64_t last) {
    std::vector<float> row(all), squares(shape.width);
    for (int64_t sample = first; sample < last; ++sample) {
      const T* embeddings = inputs.embeddings + sample * shape.embedded();
      if (shape.pairs || shape.joins) Assemble(shape, inputs, sample, row.data());
      float sum = shape.pairs ? SumOfPairs(shape, row.data(), outputs.total + sample * shape.width, squares.data()) : 0;
      if (shape.weighs) {
        for (int64_t i = 0; i < shape.features; ++i) sum += Widened(embeddings[shape.features * shape.width + i]);
      }
      outputs.sums[sample] = sum;
      if (shape.joins) NarrowRow(row.data(), all, outputs.joined + sample * all);
      T* picked = outputs.picked + sample * shape.picked();
      for (const int64_t pick : shape.picks) picked = std::copy_n(embeddings + pick * shape.width, shape.width, picked);
    }
  });
}

template <class T, class U>
void FieldsGradient(const FieldsShape& shape, const FieldsInputs<T>& inputs, const FieldsUpstream<T, U>& upstream, float* by_scaled, T* by_embeddings,
                    const Threads& threads) {
  const int64_t all = (shape.numericals + shape.features) * shape.width, scaled = shape.numericals * shape.width;
  ForRows(shape.samples, all, threads, [&](int64_t first, int64_t last) {
    std::vector<float> row(all), gradient(all), picked(shape.picked());
    for (int64_t sample = first; sample < last; ++sample) {
      if (shape.joins) WidenRow(upstream.joined + sample * all, all, gradient.data());
      if (!shape.joins) std::fill(gradient.begin(), gradient.end(), 0.0f);
      const float of_sum = upstream.sums[sample];
      if (shape.pairs) {
        Assemble(shape, inputs, sample, row.data());
        const float* __restrict total = upstream.total + sample * shape.width;
        for (int64_t i = 0; i < all; i += shape.width) {
          float* __restrict to = gradient.data() + i;
          const float* __restrict vector = row.data() + i;
          for (int64_t d = 0; d < shape.width; ++d) to[d] += of_sum * (total[d] - vector[d]);
        }
      }
      WidenRow(upstream.picked + sample * shape.picked(), shape.picked(), picked.data());
      for (size_t i = 0; i < shape.picks.size(); ++i) {
        float* __restrict to = gradient.data() + scaled + shape.picks[i] * shape.width;
        for (int64_t d = 0; d < shape.width; ++d) to[d] += picked[i * shape.width + d];
      }
      std::copy_n(gradient.data(), scaled, by_scaled + sample * scaled);
      T* to = by_embeddings + sample * shape.embedded();
      NarrowRow(gradient.data() + scaled, shape.features * shape.width, to);
      if (shape.weighs) {
        for (int64_t i = 0; i < shape.features; ++i) Narrow(of_sum, to + shape.features * shape.width + i);
      }
    }
  });
}

#define INSTANTIATE(T, U)                                                                                                                          \
  template void Fields<T, U>(const FieldsShape&, const FieldsInputs<T>&, const FieldsOutputs<T, U>&, const Threads&);                               \
  template void FieldsGradient<T, U>(const FieldsShape&, const FieldsInputs<T>&, const FieldsUpstream<T, U>&, float*, T*, const Threads&)
INSTANTIATE(float, float);
INSTANTIATE(BFloat16, BFloat16);
INSTANTIATE(BFloat16, float);
INSTANTIATE(Float16, Float16);
INSTANTIATE(Float16, float);
#undef INSTANTIATE

}  // namespace dlrm
