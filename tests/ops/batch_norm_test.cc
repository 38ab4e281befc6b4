// Tests of batch normalisation's passes against slow loops in double.
#include "batch_norm.h"

#include "check.h"

#include <algorithm>

namespace {

using dlrm::BFloat16;
using dlrm::Float16;

// Every third row is padding that holds numbers which must not be read.
std::vector<float> Real(int64_t rows) {
  std::vector<float> real(rows, 1.0f);
  for (int64_t row = 2; row < rows; row += 3) real[row] = 0;
  return real;
}

template <class T>
std::vector<T> Padded(std::vector<T> values, const std::vector<float>& real, int64_t columns) {
  for (size_t row = 0; row < real.size(); ++row) {
    if (real[row] == 0) std::fill_n(values.begin() + row * columns, columns, Narrowed<T>(kNan));
  }
  return values;
}

template <class T>
void TestMoments(int64_t rows, int64_t columns) {
  const std::vector<float> real = Real(rows);
  const std::vector<T> x = Padded(Drawn<T>(rows * columns, 0), real, columns);
  std::vector<double> sums(2 * columns, 7.0), alone(2 * columns), expected(2 * columns);
  dlrm::ColumnMoments(rows, columns, x.data(), real.data(), sums.data(), kThreeThreads);
  dlrm::ColumnMoments(rows, columns, x.data(), real.data(), alone.data(), dlrm::kCallingThread);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns && real[row] != 0; ++i) {
      const double value = dlrm::Widened(x[row * columns + i]);
      expected[i] += value, expected[columns + i] += value * value;
    }
  }
  for (int64_t i = 0; i < 2 * columns; ++i) CHECK(std::abs(sums[i] - expected[i]) <= 1e-12 * static_cast<double>(rows) && sums[i] == alone[i]);
}

template <class T>
void TestForward(int64_t rows, int64_t columns) {
  const std::vector<T> x = Drawn<T>(rows * columns, 1);
  std::vector<float> factors(3 * columns);
  for (int64_t i = 0; i < columns; ++i) factors[i] = 0.25f, factors[columns + i] = i % 2 ? 2.0f : -0.5f, factors[2 * columns + i] = 0.125f;
  std::vector<T> y(x.size()), dropped(x.size()), expected(x.size());
  dlrm::NormaliseRelu(rows, columns, x.data(), factors.data(), nullptr, 0, y.data(), kThreeThreads);
  for (size_t i = 0; i < x.size(); ++i) {
    const double value = (dlrm::Widened(x[i]) - 0.25) * factors[columns + i % columns] + 0.125;
    CHECK(Near(y[i], std::max(value, 0.0), 1));
  }
  // Dropout is that of the plain layer, from row 5 on.
  const dlrm::Dropout dropout{0xfedcba98, 0x60000000, 3, 100, 1.6f}, later{0xfedcba98, 0x60000000, 3, 105, 1.6f};
  dlrm::NormaliseRelu(rows, columns, x.data(), factors.data(), &dropout, 5, dropped.data(), kThreeThreads);
  expected = y;
  for (int64_t row = 0; row < rows; ++row) dlrm::DropRow(columns, later, row, expected.data() + row * columns);
  for (size_t i = 0; i < x.size(); ++i) {
    const float found = dlrm::Widened(dropped[i]), wanted = dlrm::Widened(expected[i]);
    CHECK(Same(found, wanted) && std::signbit(found) == std::signbit(wanted));
  }
}

template <class T>
void TestBackward(int64_t rows, int64_t columns, float scale) {
  const std::vector<float> real = Real(rows);
  const std::vector<T> upstream = Padded(Drawn<T>(rows * columns, 2), real, columns), y = Padded(Drawn<T>(rows * columns, 3), real, columns),
                       x = Padded(Drawn<T>(rows * columns, 4), real, columns);
  const dlrm::NormalisedRows<T> of{upstream.data(), y.data(), x.data(), real.data(), scale};
  const std::vector<double> mean(columns, 0.25), inverse(columns, 1.5);
  std::vector<float> sums(2 * columns, 7.0f), alone(2 * columns), factors;
  for (const float factor : {0.25f, 2.0f, -0.5f, 0.125f}) factors.insert(factors.end(), columns, factor);
  std::vector<T> gradient(x.size());
  dlrm::NormaliseGradientSums(rows, columns, of, mean.data(), inverse.data(), sums.data(), kThreeThreads);
  dlrm::NormaliseGradientSums(rows, columns, of, mean.data(), inverse.data(), alone.data(), dlrm::kCallingThread);
  dlrm::NormaliseGradient(rows, columns, of, factors.data(), gradient.data(), kThreeThreads);
  std::vector<double> expected(2 * columns);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) {
      const int64_t at = row * columns + i;
      if (real[row] == 0) {
        CHECK(dlrm::Widened(gradient[at]) == 0);
        continue;
      }
      const double before = dlrm::Widened(y[at]) > 0 ? dlrm::Widened(upstream[at]) * scale : 0, value = dlrm::Widened(x[at]) - 0.25;
      expected[i] += before, expected[columns + i] += before * value * 1.5;
      CHECK(Near(gradient[at], before * 2 - value * 0.5 + 0.125, 1));
    }
  }
  for (int64_t i = 0; i < 2 * columns; ++i) CHECK(Near(sums[i], expected[i], 1) && sums[i] == alone[i]);
}

template <class T>
void TestBatchNormOf() {
  const int64_t kShapes[][2] = {{0, 0}, {0, 5}, {5, 0}, {1, 1}, {65, 33}, {3, 700}, {130, 257}, {2100, 512}};
  for (const auto& shape : kShapes) {
    TestMoments<T>(shape[0], shape[1]);
    TestForward<T>(shape[0], shape[1]);
    for (const float scale : {1.0f, 1.25f}) TestBackward<T>(shape[0], shape[1], scale);
  }
}

}  // namespace

void TestBatchNorm() {
  TestBatchNormOf<float>();
  TestBatchNormOf<BFloat16>();
  TestBatchNormOf<Float16>();
}
