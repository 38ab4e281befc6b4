// Tests of the products by matrix tiles against sums in double: the processor's tiles and emulated ones.
#include "products.h"

#include <cstring>

#include "check.h"
#include "emulated_tiles.h"
#include "interaction_amx.h"
#include "tiles.h"

namespace {

using dlrm::BFloat16;

struct alignas(64) Line {
  char bytes[64];
};

// Rows, depth and columns: no multiples of a tile, more than one thread's share, 1 of everything, and no rows.
struct Shape {
  int64_t rows, depth, columns;
};
const Shape kShapes[] = {{0, 40, 20}, {1, 1, 1}, {3, 13, 40}, {16, 32, 16}, {33, 65, 17}, {70, 31, 100}, {300, 96, 70}};

double Used(float x, bool float32) { return float32 ? x : dlrm::Widened(Narrowed<BFloat16>(x)); }

// The values of TileUse, for compilers whose target has no tiles. With `kAlternating` the way changes from task to task, and from chunk to chunk.
enum Way { kMeasured, kAll, kFew, kAlternating };
const Way kWays[] = {kAll, kFew, kAlternating, kMeasured};

void UseTiles(Way way, bool by_emulation) {
  if (by_emulation) return emulated::UseTiles(way);
#ifdef DLRM_TILES
  dlrm::tile_use = static_cast<dlrm::TileUse>(way);
#endif
}

template <class T>
void TestMultiply(const Shape& shape, bool transposed, bool with_bias, bool relu, bool packs_itself, bool by_emulation) {
  constexpr bool kFloat32 = std::is_same_v<T, float>;
  const auto [rows, depth, columns] = shape;
  const std::vector<T> x = Drawn<T>(rows * depth, 1);
  const std::vector<float> matrix = Drawn<float>(depth * columns, 2), drawn = Drawn<float>(columns, 3);
  const float* bias = with_bias ? drawn.data() : nullptr;
  std::vector<T> y(rows * columns), others(rows * columns);
  std::vector<Line> packed(dlrm::PackedSize<T>(depth, columns) * sizeof(BFloat16) / sizeof(Line));
  auto* of_matrix = reinterpret_cast<BFloat16*>(packed.data());
  if (!by_emulation) dlrm::Pack<T>(depth, columns, matrix.data(), transposed, of_matrix, kThreeThreads);
  for (const Way way : kWays) {
    UseTiles(way, by_emulation);
    T* to = (way == kAll ? y : others).data();
    if (by_emulation) {
      emulated::Multiply(kFloat32, packs_itself, rows, depth, columns, x.data(), matrix.data(), transposed, bias, relu, to);
    } else {
      const BFloat16* given = packs_itself ? nullptr : of_matrix;
      dlrm::Multiply<T>({rows, depth, columns, x.data(), given, bias, relu, to, matrix.data(), transposed}, kThreeThreads);
    }
    CHECK(way == kAll || y.empty() || std::memcmp(y.data(), others.data(), y.size() * sizeof(T)) == 0);
  }
  if (!by_emulation && rows > 0) {
    std::vector<T> last(columns);  // the last row alone has the same bits
    dlrm::Multiply<T>({1, depth, columns, x.data() + (rows - 1) * depth, of_matrix, bias, relu, last.data()}, kThreeThreads);
    CHECK(std::memcmp(last.data(), y.data() + (rows - 1) * columns, columns * sizeof(T)) == 0);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      double sum = bias ? bias[j] : 0;
      for (int64_t k = 0; k < depth; ++k) sum += dlrm::Widened(x[i * depth + k]) * Used(matrix[transposed ? j * depth + k : k * columns + j], kFloat32);
      CHECK(Near(y[i * columns + j], relu && sum <= 0 ? 0 : sum, depth));
    }
  }
}

template <class T>
void TestSums(int64_t slices, const Shape& shape, bool by_emulation) {
  constexpr bool kFloat32 = std::is_same_v<T, float>;
  const auto [samples, inputs, outputs] = shape;
  const std::vector<T> x = Drawn<T>(slices * samples * inputs, 1), upstream = Drawn<T>(slices * samples * outputs, 2);
  std::vector<float> gradient(inputs * outputs), others(inputs * outputs);
  for (const Way way : kWays) {
    UseTiles(way, by_emulation);
    float* to = (way == kAll ? gradient : others).data();
    if (by_emulation) {
      emulated::SumProducts(kFloat32, slices, samples, inputs, outputs, x.data(), upstream.data(), to);
    } else {
      dlrm::SumProducts<T>({slices, samples, inputs, outputs, x.data(), upstream.data(), to}, kThreeThreads);
    }
    CHECK(way == kAll || std::memcmp(gradient.data(), others.data(), gradient.size() * sizeof(float)) == 0);
  }
  for (int64_t i = 0; i < inputs; ++i) {
    for (int64_t j = 0; j < outputs; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < slices * samples; ++k) {
        sum += static_cast<double>(dlrm::Widened(x[k * inputs + i])) * dlrm::Widened(upstream[k * outputs + j]);
      }
      CHECK(Near(gradient[i * outputs + j], sum, slices * samples));
    }
  }
  if (by_emulation || slices == 1) return;
  // The slices' own sums, added in pairs, have the same bits.
  std::vector<std::vector<float>> parts(slices, std::vector<float>(gradient.size()));
  for (int64_t slice = 0; slice < slices; ++slice) {
    const int64_t sample = slice * samples;
    dlrm::SumProducts<T>({1, samples, inputs, outputs, x.data() + sample * inputs, upstream.data() + sample * outputs, parts[slice].data()},
                         dlrm::kCallingThread);
  }
  for (int64_t step = 1; step < slices; step *= 2) {
    for (int64_t i = 0; i + step < slices; i += 2 * step) {
      for (size_t n = 0; n < gradient.size(); ++n) parts[i][n] += parts[i + step][n];
    }
  }
  CHECK(std::memcmp(gradient.data(), parts[0].data(), gradient.size() * sizeof(float)) == 0);
}

template <class T>
void TestAll(bool by_emulation) {
  for (const bool packs_itself : {false, true}) {
    TestMultiply<T>({3, 0, 5}, false, true, false, packs_itself, by_emulation);
    for (const Shape& shape : kShapes) {
      for (const bool transposed : {false, true}) {
        for (const bool relu : {false, true}) TestMultiply<T>(shape, transposed, relu || transposed, relu, packs_itself, by_emulation);
      }
    }
  }
  for (const Shape& shape : kShapes) {
    for (const int64_t slices : {1, 2, 5, 8}) TestSums<T>(slices, shape, by_emulation);
  }
  TestSums<T>(1, {8300, 20, 40}, by_emulation);  // in several chunks
}

// Numbers of which no piece may be lost: of all sizes, beside each other.
void TestSizes() {
  std::vector<float> x;
  for (int exponent = -60; exponent <= 60; ++exponent) x.push_back(std::ldexp(1.7182818f, exponent));
  const int64_t rows = static_cast<int64_t>(x.size());
  const float matrix = 1.2345678f;
  std::vector<Line> packed(dlrm::PackedSize<float>(1, 1) * sizeof(BFloat16) / sizeof(Line));
  auto* of_matrix = reinterpret_cast<BFloat16*>(packed.data());
  dlrm::Pack<float>(1, 1, &matrix, false, of_matrix, dlrm::kCallingThread);
  std::vector<float> y(rows);
  dlrm::Multiply<float>({rows, 1, 1, x.data(), of_matrix, nullptr, false, y.data()}, dlrm::kCallingThread);
  for (int64_t i = 0; i < rows; ++i) CHECK(std::abs(y[i] / (static_cast<double>(x[i]) * matrix) - 1) < 0x1p-23);
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    dlrm::Multiply<float>({1, 1, 1, &bad, of_matrix, nullptr, true, y.data()}, dlrm::kCallingThread);
    CHECK(!std::isfinite(y[0]));
  }
}

}  // namespace

void TestProducts() {
  if (dlrm::HasTiles()) {
    TestAll<float>(false);
    TestAll<BFloat16>(false);
    TestSizes();
  }
  if (emulated::HasTiles()) {
    TestAll<float>(true);
    TestAll<BFloat16>(true);
  }
}
