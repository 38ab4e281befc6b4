// Tests of the vectors of all features, against sums over all pairs, and of the gates.
#include "check.h"
#include "fields.h"
#include "gate.h"

#include <algorithm>

namespace {

using dlrm::BFloat16;
using dlrm::Float16;

template <class T>
double At(const std::vector<T>& values, int64_t i) {
  return dlrm::Widened(values[i]);
}

template <class T, class U>
void TestFields(const dlrm::FieldsShape& shape) {
  const int64_t scaled = shape.numericals * shape.width, all = scaled + shape.features * shape.width, weights = shape.features * shape.width;
  const std::vector<float> numerical = Drawn<float>(shape.samples * shape.numericals, 0), kernel = Drawn<float>(scaled, 1);
  const std::vector<T> embeddings = Drawn<T>(shape.samples * shape.embedded(), 2);
  std::vector<U> joined(shape.samples * shape.joined());
  std::vector<T> picked(shape.samples * shape.picked()), by_embeddings(embeddings.size());
  std::vector<float> sums(shape.samples), total(shape.pairs ? shape.samples * shape.width : 0), by_scaled(shape.samples * scaled);
  const dlrm::FieldsInputs<T> inputs{numerical.data(), kernel.data(), embeddings.data()};
  const dlrm::FieldsOutputs<T, U> outputs{joined.data(), sums.data(), total.data(), picked.data()};
  Fields(shape, inputs, outputs, kThreeThreads);

  const std::vector<U> by_joined = Drawn<U>(joined.size(), 3);
  const std::vector<float> by_sums = Drawn<float>(shape.samples, 4);
  const std::vector<T> by_picked = Drawn<T>(picked.size(), 5);
  const dlrm::FieldsUpstream<T, U> upstream{by_joined.data(), by_sums.data(), total.data(), by_picked.data()};
  FieldsGradient(shape, inputs, upstream, by_scaled.data(), by_embeddings.data(), kThreeThreads);

  for (int64_t sample = 0; sample < shape.samples; ++sample) {
    const auto vector = [&](int64_t i) {  // element i of the sample's vectors
      return i < scaled ? double{numerical[sample * shape.numericals + i / shape.width]} * kernel[i]
                        : At(embeddings, sample * shape.embedded() + i - scaled);
    };
    double sum = 0;
    for (int64_t i = 0; shape.pairs && i < all; ++i) {
      for (int64_t j = i % shape.width; j < i; j += shape.width) sum += vector(i) * vector(j);
    }
    for (int64_t i = 0; shape.weighs && i < shape.features; ++i) sum += At(embeddings, sample * shape.embedded() + weights + i);
    CHECK(std::abs(sums[sample] - sum) <= 1e-3);
    for (int64_t i = 0; i < all; ++i) {
      if (shape.joins) CHECK(Near(joined[sample * all + i], vector(i), 1));
      double gradient = shape.joins ? At(by_joined, sample * all + i) : 0;
      for (int64_t j = i % shape.width; shape.pairs && j < all; j += shape.width) gradient += j == i ? 0 : by_sums[sample] * vector(j);
      for (size_t pick = 0; pick < shape.picks.size(); ++pick) {
        const int64_t first = scaled + shape.picks[pick] * shape.width, at = sample * shape.picked() + pick * shape.width + i - first;
        if (i < first || i >= first + shape.width) continue;
        gradient += At(by_picked, at);
        CHECK(Same(At(picked, at), vector(i)));
      }
      if (i < scaled) CHECK(Near(by_scaled[sample * scaled + i], gradient, 100));
      if (i >= scaled) CHECK(Near(by_embeddings[sample * shape.embedded() + i - scaled], gradient, 100));
    }
    for (int64_t i = 0; shape.weighs && i < shape.features; ++i) {
      CHECK(Near(by_embeddings[sample * shape.embedded() + weights + i], by_sums[sample], 1));
    }
  }
}

template <class T>
void TestGate(int64_t size) {
  std::vector<float> inputs = Drawn<float>(size, 0), by_inputs(size), by_first(size), by_second(size);
  std::vector<std::vector<float>> logits{Drawn<float>(size, 1), Drawn<float>(size, 2)};
  logits[0][size - 1] = 500, logits[1][size - 1] = -500, logits[0][0] = kNan;
  const std::vector<T> above[] = {Drawn<T>(size, 3), Drawn<T>(size, 4)};
  std::vector<T> first(size), second(size);
  dlrm::Gate<T>(size, inputs.data(), {logits[0].data(), logits[1].data()}, {first.data(), second.data()}, kThreeThreads);
  dlrm::GateGradient<T>(size, inputs.data(), {logits[0].data(), logits[1].data()}, {above[0].data(), above[1].data()}, by_inputs.data(),
                        {by_first.data(), by_second.data()}, kThreeThreads);
  for (int64_t i = 0; i < size; ++i) {
    double by_input = 0;
    for (int stream = 0; stream < 2; ++stream) {
      const double sigmoid = 1 / (1 + std::exp(-double{logits[stream][i]}));
      CHECK(Near((stream ? second : first)[i], inputs[i] * 2 * sigmoid, 2));
      CHECK(Near((stream ? by_second : by_first)[i], At(above[stream], i) * inputs[i] * 2 * sigmoid * (1 - sigmoid), 2));
      by_input += At(above[stream], i) * 2 * sigmoid;
    }
    CHECK(Near(by_inputs[i], by_input, 4));
  }
  // An element's bits do not depend on its place: the first one's values at the last place.
  if (size < 3) return;
  inputs[size - 1] = inputs[1], logits[0][size - 1] = logits[0][1];
  std::vector<T> again(size);
  dlrm::Gate<T>(size, inputs.data(), {logits[0].data()}, {again.data()}, kThreeThreads);
  CHECK(Same(At(again, size - 1), At(first, 1)));
}

template <class T, class U>
void TestPair() {
  TestFields<T, U>({70, 4, 3, 10, true, true, true, {}});
  TestFields<T, U>({9, 0, 5, 16, true, true, false, {}});
  TestFields<T, U>({65, 2, 4, 7, false, false, true, {3, 0, 3}});
  TestFields<T, U>({1, 13, 26, 33, true, true, true, {1}});
}

}  // namespace

void TestFieldsAndGates() {
  TestPair<float, float>();
  TestPair<BFloat16, BFloat16>();
  TestPair<BFloat16, float>();
  TestPair<Float16, Float16>();
  TestPair<Float16, float>();
  for (const int64_t size : {2, 17, 256, 20001}) {
    TestGate<float>(size);
    TestGate<BFloat16>(size);
    TestGate<Float16>(size);
  }
}
