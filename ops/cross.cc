#include "cross.h"

#include <algorithm>
#include <vector>

#include "elements.h"
#include "row_tasks.h"

namespace dlrm {
namespace {

// Calls work(first, n) for a row's columns, at most kRun at a time.
template <class Work>
void ForRuns(int64_t columns, const Work& work) {
  for (int64_t first = 0; first < columns; first += kRun) work(first, std::min(kRun, columns - first));
}

template <class T>
void CrossRun(int64_t n, const T* first, const T* products, const float* bias, const T* last, T* out) {
  float x[kRun], p[kRun], y[kRun];
  WidenRow(first, n, x);
  WidenRow(products, n, p);
  WidenRow(last, n, y);
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) y[i] += x[i] * (p[i] + bias[i]);
  NarrowRow(y, n, out);
}

// The gradients of a run at element `at`, whose first column is `column`; `sum` adds up by_products.
template <class T>
void GradientRun(const CrossGradients<T>& of, int64_t at, int64_t column, int64_t n, float* __restrict sum) {
  float above[kRun], x[kRun], p[kRun], by_first[kRun] = {};
  WidenRow(of.upstream + at, n, above);
  if (of.more) {
    WidenRow(of.more + at, n, x);
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) above[i] += x[i];
    NarrowRow(above, n, of.by_last + at);
    WidenRow(of.by_last + at, n, above);
  }
  WidenRow(of.first + at, n, x);
  WidenRow(of.products + at, n, p);
  if (of.known) WidenRow(of.known + at, n, by_first);
  const float *bias = of.bias + column, itself = of.last_is_first ? 1.0f : 0.0f;
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    by_first[i] += above[i] * (p[i] + bias[i]) + itself * above[i];
    p[i] = above[i] * x[i];
    sum[i] += p[i];
  }
  NarrowRow(p, n, of.by_products + at);
  NarrowRow(by_first, n, of.by_first + at);
}

}  // namespace

template <class T>
void Cross(int64_t rows, int64_t columns, const T* first, const T* products, const float* bias, const T* last, T* out, const Threads& threads) {
  ForRows(rows, columns, threads, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      ForRuns(columns, [&](int64_t column, int64_t n) {
        const int64_t at = row * columns + column;
        CrossRun(n, first + at, products + at, bias + column, last + at, out + at);
      });
    }
  });
}

template <class T>
void CrossGradient(int64_t rows, int64_t columns, const CrossGradients<T>& of, const Threads& threads) {
  const int64_t tasks = TasksOf(rows);
  std::vector<float> sums(tasks * columns);
  ForRows(rows, columns, threads, [&](int64_t begin, int64_t end) {
    float* sum = sums.data() + begin / kRowsPerTask * columns;
    for (int64_t row = begin; row < end; ++row) {
      ForRuns(columns, [&](int64_t column, int64_t n) { GradientRun(of, row * columns + column, column, n, sum + column); });
    }
  });
  std::fill(of.by_bias, of.by_bias + columns, 0.0f);
  for (int64_t task = 0; task < tasks; ++task) {
    for (int64_t i = 0; i < columns; ++i) of.by_bias[i] += sums[task * columns + i];
  }
}

#define INSTANTIATE(T)                                                                                                     \
  template void Cross<T>(int64_t, int64_t, const T*, const T*, const float*, const T*, T*, const Threads&);               \
  template void CrossGradient<T>(int64_t, int64_t, const CrossGradients<T>&, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
