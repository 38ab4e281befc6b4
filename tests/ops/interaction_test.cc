// Tests of the interaction and its gradient against their definition: the generic code, the processor's tiles and emulated tiles.
#include "interaction.h"

#include "check.h"
#include "emulated_tiles.h"
#include "interaction_amx.h"

namespace {

using dlrm::BFloat16;
using dlrm::Float16;

template <class T>
struct Values {
  dlrm::InteractionShape shape;
  std::vector<T> bottom, embeddings, upstream, out, bottom_gradient, embeddings_gradient;

  explicit Values(const dlrm::InteractionShape& given) : shape(given) {
    const int64_t both = shape.width + shape.pairs();
    bottom = Drawn<T>(shape.samples * shape.width, 0);
    embeddings = Drawn<T>(shape.samples * (shape.vectors - 1) * shape.width, 1);
    upstream = Drawn<T>(shape.samples * both, 2);
    out.resize(upstream.size());
    bottom_gradient.resize(bottom.size());
    embeddings_gradient.resize(embeddings.size());
  }

  // Element d of vector i of a sample.
  double Z(int64_t sample, int64_t i, int64_t d) const {
    return dlrm::Widened(i == 0 ? bottom[sample * shape.width + d] : embeddings[(sample * (shape.vectors - 1) + i - 1) * shape.width + d]);
  }

  void CheckSample(int64_t sample) const {
    const int64_t width = shape.width, start = sample * (width + shape.pairs());
    for (int64_t d = 0; d < width; ++d) CHECK(Same(dlrm::Widened(out[start + d]), Z(sample, 0, d)));
    int64_t pair = start + width;
    std::vector<double> gradient(shape.vectors * width);
    for (int64_t d = 0; d < width; ++d) gradient[d] = dlrm::Widened(upstream[start + d]);
    for (int64_t i = 1; i < shape.vectors; ++i) {
      for (int64_t j = 0; j < i; ++j, ++pair) {
        double dot = 0;
        for (int64_t d = 0; d < width; ++d) {
          dot += Z(sample, i, d) * Z(sample, j, d);
          gradient[i * width + d] += dlrm::Widened(upstream[pair]) * Z(sample, j, d);
          gradient[j * width + d] += dlrm::Widened(upstream[pair]) * Z(sample, i, d);
        }
        CHECK(Near(out[pair], dot, width));
      }
    }
    for (int64_t i = 0; i < shape.vectors; ++i) {
      for (int64_t d = 0; d < width; ++d) {
        const T found = i == 0 ? bottom_gradient[sample * width + d] : embeddings_gradient[(sample * (shape.vectors - 1) + i - 1) * width + d];
        CHECK(Near(found, gradient[i * width + d], shape.vectors));
      }
    }
  }

  void Check() const {
    for (int64_t sample = 0; sample < shape.samples; ++sample) CheckSample(sample);
  }
};

// Sizes that are no multiple of a vector register, more rows and columns than one tile, 1 of everything, and no samples.
const dlrm::InteractionShape kShapes[] = {{0, 27, 128}, {1, 1, 1},  {1, 2, 1},  {3, 27, 128}, {70, 27, 128}, {5, 16, 16},
                                          {5, 17, 40},  {7, 32, 33}, {4, 41, 128}, {2, 70, 20},  {9, 3, 500},   {2, 5, 64}};

template <class T>
void TestGeneric() {
  for (const auto& shape : kShapes) {
    for (const bool tiles : {false, true}) {
      Values<T> v(shape);
      dlrm::Interact(shape, v.bottom.data(), v.embeddings.data(), v.out.data(), tiles, kThreeThreads);
      dlrm::InteractGradient(shape, v.bottom.data(), v.embeddings.data(), v.upstream.data(), v.bottom_gradient.data(), v.embeddings_gradient.data(),
                             tiles, kThreeThreads);
      v.Check();
    }
  }
}

uint16_t* Bits(std::vector<BFloat16>& values) { return reinterpret_cast<uint16_t*>(values.data()); }

void TestEmulated() {
  for (const auto& shape : kShapes) {
    Values<BFloat16> v(shape);
    emulated::Interact(shape.samples, shape.vectors, shape.width, Bits(v.bottom), Bits(v.embeddings), Bits(v.out));
    emulated::InteractGradient(shape.samples, shape.vectors, shape.width, Bits(v.bottom), Bits(v.embeddings), Bits(v.upstream),
                               Bits(v.bottom_gradient), Bits(v.embeddings_gradient));
    v.Check();
  }
}

}  // namespace

void TestInteraction() {
  TestGeneric<float>();
  TestGeneric<BFloat16>();
  TestGeneric<Float16>();
  std::printf("matrix tiles: %s\n", dlrm::HasTiles() ? "the processor's and emulated" : emulated::HasTiles() ? "emulated" : "not tested, this processor cannot");
  if (emulated::HasTiles()) TestEmulated();
}
