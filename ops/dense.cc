#include "dense.h"

#include <algorithm>
#include <vector>

#include "philox.h"
#include "row_tasks.h"

namespace dlrm {
namespace {

constexpr int64_t kElementsPerTask = 16384;
constexpr int64_t kChunk = 256;  // elements of each part that are summed at once, so that they stay in the first-level cache

// gradient = upstream where y > 0, and sum += gradient. Elsewhere TensorFlow multiplies upstream by zero, which gives NaN for NaN and infinity. So
// does x - x, which is never -0.
void AddRow(int64_t columns, const float* upstream, const float* y, float* gradient, float* __restrict sum) {
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < columns; ++i) {
    const float kept = y[i] > 0 ? upstream[i] : upstream[i] - upstream[i];
    gradient[i] = kept;
    sum[i] += kept;
  }
}

template <class T>
constexpr int16_t kInfinity = std::is_same_v<T, BFloat16> ? 0x7f80 : 0x7c00;

// Values of both 16-bit types have the same order as their bits taken as integers, with NaN above infinity. The code uses integers and two loops
// because compilers vectorise these.
template <class T>
void AddRow(int64_t columns, const T* upstream, const T* y, T* gradient, float* __restrict sum) {
  const auto* from = reinterpret_cast<const int16_t*>(upstream);
  const auto* mask = reinterpret_cast<const int16_t*>(y);
  auto* to = reinterpret_cast<int16_t*>(gradient);
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < columns; ++i) {
    const int16_t by_zero = (from[i] & 0x7fff) >= kInfinity<T> ? int16_t{0x7fff} : int16_t{0};  // a NaN, or zero
    to[i] = mask[i] > 0 && mask[i] <= kInfinity<T> ? from[i] : by_zero;
  }
  ForFloats(gradient, columns, [sum](const auto* values, int64_t first, int64_t n) {
    float* __restrict to = sum + first;
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) to[i] += Widened(values[i]);
  });
}

template <class T>
void BiasReluRow(int64_t columns, const T* x, const float* bias, T* y) {
  ForFloats(x, columns, [&](const auto* values, int64_t first, int64_t n) {
    const float* __restrict from = bias + first;
    if constexpr (std::is_same_v<T, Float16>) {
      float sums[kRun];
      for (int64_t i = 0; i < n; ++i) sums[i] = Relu(values[i] + from[i]);
      NarrowRow(sums, n, y + first);
    } else {
      DLRM_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) Narrow(Relu(Widened(values[i]) + from[i]), y + i);
    }
  });
}

template <class T>
float Rounded(float x) {
  T rounded;
  Narrow(x, &rounded);
  return Widened(rounded);
}

// y[i] = x[i] * scale, rounded, for at most kRun elements; `y` may be `x`.
template <class T>
void ScaleRow(int64_t n, const T* x, float scale, T* y) {
  float values[kRun];
  WidenRow(x, n, values);
  for (int64_t i = 0; i < n; ++i) values[i] *= scale;
  NarrowRow(values, n, y);
}

// An unsigned integer type through which an element's bits may be read and written in place.
template <class T>
struct Bits {
  typedef uint16_t Type __attribute__((may_alias));
};
template <>
struct Bits<float> {
  typedef uint32_t Type __attribute__((may_alias));
};
template <class T>
using BitsOfType = typename Bits<T>::Type;
template <class T>
constexpr uint32_t kMinusZero = uint32_t{1} << (8 * sizeof(T) - 1);

// Applies dropout to n elements of a row, at most kRun; the generator's count `first` gives the random bits of the first ones.
template <class T>
void DropRun(int64_t n, const Dropout& dropout, uint64_t first, T* y) {
  static_assert(kRun % (kPhiloxWords * kPhiloxCounts) == 0);
  uint32_t words[kRun];
  PhiloxWords(dropout.key, dropout.stream, first, (n + kPhiloxWords - 1) / kPhiloxWords, words);
  ScaleRow(n, y, Rounded<T>(dropout.scale), y);
  auto* bits = reinterpret_cast<BitsOfType<T>*>(y);
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) bits[i] = words[i] >= dropout.threshold ? bits[i] : static_cast<BitsOfType<T>>(kMinusZero<T>);
}

// gradient = upstream * scale, and 0 where y is -0, which marks a dropped unit.
template <class T>
void ScaleKept(int64_t columns, const T* upstream, const T* y, float scale, T* gradient) {
  for (int64_t first = 0; first < columns; first += kRun) {
    const int64_t n = std::min(kRun, columns - first);
    ScaleRow(n, upstream + first, scale, gradient + first);
    const auto* outputs = reinterpret_cast<const BitsOfType<T>*>(y + first);
    auto* bits = reinterpret_cast<BitsOfType<T>*>(gradient + first);
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) bits[i] = outputs[i] == kMinusZero<T> ? 0 : bits[i];
  }
}

}  // namespace

template <class T>
void BiasRelu(int64_t rows, int64_t columns, const T* x, const float* bias, T* y, const Threads& threads) {
  ForRows(rows, columns, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) BiasReluRow(columns, x + row * columns, bias, y + row * columns);
  });
}

template <class T>
void BiasReluDropout(int64_t rows, int64_t columns, const T* x, const float* bias, const Dropout& dropout, T* y, const Threads& threads) {
  ForRows(rows, columns, threads, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      T* to = y + row * columns;
      BiasReluRow(columns, x + row * columns, bias, to);
      DropRow(columns, dropout, row, to);
    }
  });
}

template <class T>
void DropRow(int64_t columns, const Dropout& dropout, int64_t row, T* y) {
  const uint64_t counts = (columns + kPhiloxWords - 1) / kPhiloxWords, count = (dropout.first_row + row) * counts;
  for (int64_t i = 0; i < columns; i += kRun) DropRun(std::min(kRun, columns - i), dropout, count + i / kPhiloxWords, y + i);
}

template <class T>
void ReluGradient(int64_t slices, int64_t rows, int64_t columns, const T* upstream, const T* y, float scale, T* gradient, float* bias_gradient,
                  const Threads& threads) {
  const float factor = Rounded<T>(scale);
  const int64_t of_slice = rows / slices, tasks = TasksOf(of_slice);
  std::vector<float> sums(std::max<int64_t>(slices * tasks, 1) * columns);
  const Threads& used = rows * columns <= kAlone ? kCallingThread : threads;
  used.run(slices * tasks, [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t start = task / tasks * of_slice, first = task % tasks * kRowsPerTask;
    for (int64_t row = start + first; row < start + std::min(first + kRowsPerTask, of_slice); ++row) {
      const T *from = upstream + row * columns, *outputs = y + row * columns;
      T* to = gradient + row * columns;
      if (scale != 1) ScaleKept(columns, from, outputs, factor, to);
      AddRow(columns, scale != 1 ? to : from, outputs, to, sums.data() + task * columns);
    }
  });
  const auto add = [&](int64_t to, int64_t from) {
    for (int64_t i = 0; i < columns; ++i) sums[to * columns + i] += sums[from * columns + i];
  };
  for (int64_t task = 0; task < slices * tasks; ++task) {
    if (task % tasks) add(task - task % tasks, task);
  }
  for (int64_t step = 1; step < slices; step *= 2) {
    for (int64_t slice = 0; slice + step < slices; slice += 2 * step) add(slice * tasks, (slice + step) * tasks);
  }
  std::copy(sums.begin(), sums.begin() + columns, bias_gradient);
}

template <class T>
void NarrowAll(int64_t size, const float* x, T* out, const Threads& threads) {
  const Threads& used = size <= kAlone ? kCallingThread : threads;
  used.run((size + kElementsPerTask - 1) / kElementsPerTask, [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t first = task * kElementsPerTask;
    NarrowRow(x + first, std::min(kElementsPerTask, size - first), out + first);
  });
}

template <class T>
void SumInPairs(int64_t size, const std::vector<const T*>& parts, float* out, const Threads& threads) {
  threads.run((size + kElementsPerTask - 1) / kElementsPerTask, [&](int64_t task) {
    const FlushDenormals flush;
    std::vector<float> values(parts.size() * kChunk);
    const int64_t last = std::min(size, (task + 1) * kElementsPerTask);
    for (int64_t first = task * kElementsPerTask; first < last; first += kChunk) {
      const int64_t n = std::min(kChunk, last - first);
      for (size_t part = 0; part < parts.size(); ++part) {
        WidenRow(parts[part] + first, n, values.data() + part * kChunk);
      }
      for (size_t step = 1; step < parts.size(); step *= 2) {
        for (size_t part = 0; part + step < parts.size(); part += 2 * step) {
          float* __restrict left = values.data() + part * kChunk;
          const float* __restrict right = left + step * kChunk;
          for (int64_t i = 0; i < kChunk; ++i) left[i] += right[i];
        }
      }
      std::copy(values.data(), values.data() + n, out + first);
    }
  });
}

#define INSTANTIATE(T)                                                                                                \
  template void BiasRelu<T>(int64_t, int64_t, const T*, const float*, T*, const Threads&);                            \
  template void BiasReluDropout<T>(int64_t, int64_t, const T*, const float*, const Dropout&, T*, const Threads&);     \
  template void DropRow<T>(int64_t, const Dropout&, int64_t, T*);                                                     \
  template void ReluGradient<T>(int64_t, int64_t, int64_t, const T*, const T*, float, T*, float*, const Threads&);    \
  template void NarrowAll<T>(int64_t, const float*, T*, const Threads&);                                              \
  template void SumInPairs<T>(int64_t, const std::vector<const T*>&, float*, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
