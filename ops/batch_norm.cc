#include "batch_norm.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "elements.h"
#include "row_tasks.h"

namespace dlrm {
namespace {

// Calls work(first, n) for runs of at most kRun columns.
template <class Work>
void ForRuns(int64_t columns, const Work& work) {
  for (int64_t first = 0; first < columns; first += kRun) work(first, std::min(kRun, columns - first));
}

// Returns n elements as floats: the elements themselves, or copies in the buffer.
inline const float* Floats(const float* from, int64_t, float*) { return from; }
template <class T>
const float* Floats(const T* from, int64_t n, float* buffer) {
  WidenRow(from, n, buffer);
  return buffer;
}

inline void Put(const float* from, int64_t n, float* to) {
  if (from != to) std::copy(from, from + n, to);
}
template <class T>
void Put(const float* from, int64_t n, T* to) {
  NarrowRow(from, n, to);
}

// Sums each task's rows, then the tasks in their order: add(row, sums of its task).
template <class Add>
std::vector<double> SumOverRows(int64_t rows, int64_t columns, const Threads& threads, const float* weights, const Add& add) {
  const int64_t tasks = TasksOf(rows), length = 2 * columns;
  std::vector<double> sums(std::max<int64_t>(tasks, 1) * length);
  ForRows(rows, columns, threads, [&](int64_t first, int64_t last) {
    double* sum = sums.data() + first / kRowsPerTask * length;
    for (int64_t row = first; row < last; ++row) {
      if (weights[row] != 0) add(row, sum);
    }
  });
  for (int64_t task = 1; task < tasks; ++task) {
    for (int64_t i = 0; i < length; ++i) sums[i] += sums[task * length + i];
  }
  sums.resize(length);
  return sums;
}

// to[i] = the gradient before the ReLU for n columns of a row. As in `ReluGradient`, infinity and NaN give NaN where y is 0.
template <class T>
void BeforeRelu(const NormalisedRows<T>& of, int64_t at, int64_t n, float* __restrict to) {
  float upstream_buffer[kRun], y_buffer[kRun];
  const float *upstream = Floats(of.upstream + at, n, upstream_buffer), *y = Floats(of.y + at, n, y_buffer);
  const float scale = of.dropout_scale;
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) to[i] = y[i] > 0 ? upstream[i] * scale : upstream[i] - upstream[i];
}

}  // namespace

template <class T>
void ColumnMoments(int64_t rows, int64_t columns, const T* x, const float* weights, double* sums, const Threads& threads) {
  const std::vector<double> found = SumOverRows(rows, columns, threads, weights, [&](int64_t row, double* sum) {
    const double weight = weights[row];
    ForRuns(columns, [&](int64_t first, int64_t n) {
      float buffer[kRun];
      const float* values = Floats(x + row * columns + first, n, buffer);
      double *__restrict total = sum + first, *__restrict squares = sum + columns + first;
      DLRM_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        const double value = values[i], weighted = weight * value;
        total[i] += weighted;
        squares[i] += weighted * value;
      }
    });
  });
  std::copy(found.begin(), found.end(), sums);
}

template <class T>
void NormaliseRelu(int64_t rows, int64_t columns, const T* x, const float* factors, const Dropout* dropout, int64_t first_row, T* y, const Threads& threads) {
  ForRows(rows, columns, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      T* to = y + row * columns;
      ForRuns(columns, [&](int64_t begin, int64_t n) {
        float buffer[kRun], results[kRun];
        const float* values = Floats(x + row * columns + begin, n, buffer);
        const float *mean = factors + begin, *scale = mean + columns, *shift = scale + columns;
        float* out = results;
        if constexpr (std::is_same_v<T, float>) out = to + begin;
        DLRM_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) out[i] = Relu((values[i] - mean[i]) * scale[i] + shift[i]);
        Put(out, n, to + begin);
      });
      if (dropout) DropRow(columns, *dropout, first_row + row, to);
    }
  });
}

template <class T>
void NormaliseGradientSums(int64_t rows, int64_t columns, const NormalisedRows<T>& of, const double* mean, const double* inverse, float* sums,
                           const Threads& threads) {
  const std::vector<double> found = SumOverRows(rows, columns, threads, of.weights, [&](int64_t row, double* sum) {
    ForRuns(columns, [&](int64_t first, int64_t n) {
      float gradient[kRun], buffer[kRun];
      const int64_t at = row * columns + first;
      BeforeRelu(of, at, n, gradient);
      const float* values = Floats(of.x + at, n, buffer);
      double *__restrict total = sum + first, *__restrict products = sum + columns + first;
      DLRM_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) {
        const double value = gradient[i];
        total[i] += value;
        products[i] += value * static_cast<double>(values[i]);
      }
    });
  });
  for (int64_t i = 0; i < columns; ++i) {
    sums[i] = static_cast<float>(found[i]);
    sums[columns + i] = static_cast<float>((found[columns + i] - mean[i] * found[i]) * inverse[i]);
  }
}

template <class T>
void NormaliseGradient(int64_t rows, int64_t columns, const NormalisedRows<T>& of, const float* factors, T* gradient, const Threads& threads) {
  ForRows(rows, columns, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      ForRuns(columns, [&](int64_t begin, int64_t n) {
        float results[kRun] = {}, buffer[kRun];
        const int64_t at = row * columns + begin;
        if (const float weight = of.weights[row]; weight != 0) {
          BeforeRelu(of, at, n, results);
          const float* values = Floats(of.x + at, n, buffer);
          const float *mean = factors + begin, *by_gradient = mean + columns, *by_input = by_gradient + columns, *constant = by_input + columns;
          DLRM_INDEPENDENT
          for (int64_t i = 0; i < n; ++i) results[i] = results[i] * by_gradient[i] + weight * ((values[i] - mean[i]) * by_input[i] + constant[i]);
        }
        Put(results, n, gradient + at);
      });
    }
  });
}

#define INSTANTIATE(T)                                                                                                                           \
  template void ColumnMoments<T>(int64_t, int64_t, const T*, const float*, double*, const Threads&);                                             \
  template void NormaliseRelu<T>(int64_t, int64_t, const T*, const float*, const Dropout*, int64_t, T*, const Threads&);           \
  template void NormaliseGradientSums<T>(int64_t, int64_t, const NormalisedRows<T>&, const double*, const double*, float*, const Threads&);      \
  template void NormaliseGradient<T>(int64_t, int64_t, const NormalisedRows<T>&, const float*, T*, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
