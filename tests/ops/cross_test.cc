// Tests of the elementwise part of cross layers, against sums in double.
#include "cross.h"

#include "check.h"

namespace {

template <class T>
double At(const std::vector<T>& values, int64_t i) {
  return dlrm::Widened(values[i]);
}

template <class T>
void TestCross(int64_t rows, int64_t columns, bool more, bool known, bool last_is_first) {
  const int64_t size = rows * columns;
  const std::vector<T> first = Drawn<T>(size, 0), products = Drawn<T>(size, 1), last = Drawn<T>(size, 2);
  const std::vector<float> bias = Drawn<float>(columns, 3);
  std::vector<T> out(size);
  dlrm::Cross(rows, columns, first.data(), products.data(), bias.data(), last.data(), out.data(), kThreeThreads);
  for (int64_t i = 0; i < size; ++i) CHECK(Near(out[i], At(first, i) * (At(products, i) + bias[i % columns]) + At(last, i), 4));

  const std::vector<T> upstream = Drawn<T>(size, 4);
  std::vector<T> by_last = Drawn<T>(size, 5), by_products = products, by_first = Drawn<T>(size, 6);  // those that replace their inputs
  const std::vector<T> second = by_last, sum = by_first;
  std::vector<float> by_bias(columns, kNan);
  const dlrm::CrossGradients<T> of{upstream.data(), more ? by_last.data() : nullptr,  first.data(),   by_products.data(),
                                   bias.data(),     known ? by_first.data() : nullptr, last_is_first, more ? by_last.data() : nullptr,
                                   by_products.data(), by_first.data(),                by_bias.data()};
  dlrm::CrossGradient(rows, columns, of, kThreeThreads);
  std::vector<double> sums(columns);
  for (int64_t i = 0; i < size; ++i) {
    if (more) CHECK(Near(by_last[i], At(upstream, i) + At(second, i), 2));
    const double above = more ? At(by_last, i) : At(upstream, i), by_product = above * At(first, i);
    CHECK(Near(by_products[i], by_product, 2));
    CHECK(Near(by_first[i], (known ? At(sum, i) : 0) + above * (At(products, i) + bias[i % columns]) + (last_is_first ? above : 0), 8));
    sums[i % columns] += by_product;
  }
  for (int64_t i = 0; i < columns; ++i) CHECK(Near(by_bias[i], sums[i], rows));
}

template <class T>
void TestAll() {
  for (const bool one : {false, true}) {
    for (const bool two : {false, true}) {
      for (const bool three : {false, true}) TestCross<T>(67, 300, one, two, three);
    }
  }
  TestCross<T>(0, 3, false, false, false);
  TestCross<T>(1, 1, true, true, true);
  TestCross<T>(600, 2000, true, true, false);  // by several threads
}

}  // namespace

void TestCrossLayers() {
  TestAll<float>();
  TestAll<dlrm::BFloat16>();
  TestAll<dlrm::Float16>();
}
