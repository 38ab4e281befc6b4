#include "fusion.h"

#include <algorithm>

#include "elements.h"
#include "matrix.h"
#include "row_tasks.h"

namespace dlrm {
namespace {

constexpr int64_t kFew = 1 << 20;  // up to so many products of one pass over all samples, one thread works alone

template <class T>
const Threads& Used(const Fusion<T>& of, const Threads& threads) {
  return of.samples * of.heads * of.left * of.right <= kFew ? kCallingThread : threads;
}

// Rows in float32, consecutive.
template <class T>
void Widen(const T* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  for (int64_t row = 0; row < rows; ++row) WidenRow(from + row * stride, columns, to + row * columns);
}

// The heads' kernels, or the transposed ones, for products with rows.
template <class T>
std::vector<PackedLayer> Packed(const Fusion<T>& of, bool transposed) {
  std::vector<PackedLayer> packed;
  std::vector<float> kernel(of.left * of.right), exchanged(kernel.size());
  for (const T* head : of.kernels) {
    WidenRow(head, of.left * of.right, kernel.data());
    for (int64_t i = 0; transposed && i < of.left; ++i) {
      for (int64_t j = 0; j < of.right; ++j) exchanged[j * of.left + i] = kernel[i * of.right + j];
    }
    const int64_t inputs = transposed ? of.right : of.left, outputs = transposed ? of.left : of.right;
    packed.emplace_back((transposed ? exchanged : kernel).data(), nullptr, inputs, outputs, false);
  }
  return packed;
}

// y = x W for the rows of all heads: x [rows, heads * inputs], y [rows, heads * outputs].
void Multiply(const std::vector<PackedLayer>& layers, const float* x, int64_t rows, float* y) {
  const int64_t heads = static_cast<int64_t>(layers.size()), inputs = layers[0].inputs(), outputs = layers[0].outputs();
  for (int64_t head = 0; head < heads; ++head) layers[head].Apply(x + head * inputs, heads * inputs, rows, y + head * outputs, heads * outputs);
}

// The sum of the products of n pairs, in an order that depends on n only.
inline float Dot(const float* x, const float* y, int64_t n) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {}, total = 0;
  int64_t i = 0;
  for (; i + kSums <= n; i += kSums) {
    for (int64_t j = 0; j < kSums; ++j) sums[j] += x[i + j] * y[i + j];
  }
  for (int64_t j = 0; i + j < n; ++j) sums[j] += x[i + j] * y[i + j];
  for (const float sum : sums) total += sum;
  return total;
}

// The gradients of a head's weights from the samples of a slice: of W_h [left, right], of its columns of x, of its columns of z, and the sum of upstream.
template <class T>
void SumSlice(const Fusion<T>& of, const float* upstream, int64_t head, int64_t first, int64_t samples, float* sums) {
  float *by_left = sums + of.left * of.right, *by_right = by_left + of.left, *total = by_right + of.right;
  if (samples == 0) return std::fill(sums, total + 1, 0.0f);
  std::vector<float> z(samples * of.right), x(of.left * samples), row(of.left);  // x: [left, samples], times upstream
  Widen(of.z + first * of.heads * of.right + head * of.right, of.heads * of.right, samples, of.right, z.data());
  std::fill(by_right, total, 0.0f);
  *total = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const float above = upstream[first + i];
    WidenRow(of.x + ((first + i) * of.heads + head) * of.left, of.left, row.data());
    for (int64_t k = 0; k < of.left; ++k) x[k * samples + i] = above * row[k];
    for (int64_t c = 0; c < of.right; ++c) by_right[c] += above * z[i * of.right + c];
    *total += above;
  }
  for (int64_t k = 0; k < of.left; ++k) {
    float sum = 0;
    for (int64_t i = 0; i < samples; ++i) sum += x[k * samples + i];
    by_left[k] = sum;
  }
  PackedLayer(z.data(), nullptr, samples, of.right, false).Apply(x.data(), samples, of.left, sums, of.right);
}

}  // namespace

template <class T>
void Fuse(const Fusion<T>& of, float bias, float* logits, const Threads& threads) {
  const int64_t left = of.heads * of.left, right = of.heads * of.right;
  const std::vector<PackedLayer> layers = Packed(of, false);
  Used(of, threads).run(TasksOf(of.samples), [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t first = task * kRowsPerTask, rows = std::min(of.samples - first, kRowsPerTask);
    std::vector<float> x(rows * left), z(rows * right), products(rows * right);
    Widen(of.x + first * left, left, rows, left, x.data());
    Widen(of.z + first * right, right, rows, right, z.data());
    Multiply(layers, x.data(), rows, products.data());
    for (int64_t i = 0; i < rows; ++i) {
      const float of_linear = Dot(x.data() + i * left, of.linear, left) + Dot(z.data() + i * right, of.linear + left, right);
      logits[first + i] = of_linear + bias + Dot(products.data() + i * right, z.data() + i * right, right);
    }
  });
}

template <class T>
void FuseGradient(const Fusion<T>& of, const float* upstream, int64_t slices, const FusionGradients<T>& gradients, const Threads& threads) {
  const int64_t left = of.heads * of.left, right = of.heads * of.right;
  const std::vector<PackedLayer> layers = Packed(of, false), transposed = Packed(of, true);
  const Threads& used = Used(of, threads);
  // out = upstream (inputs W + linear), rows of `columns`.
  const auto by_rows = [&](const std::vector<PackedLayer>& kernels, const float* inputs, int64_t first, int64_t rows, int64_t columns,
                           const float* linear, T* out) {
    std::vector<float> products(rows * columns);
    Multiply(kernels, inputs, rows, products.data());
    for (int64_t i = 0; i < rows; ++i) {
      float* row = products.data() + i * columns;
      const float above = upstream[first + i];
      for (int64_t c = 0; c < columns; ++c) row[c] = above * (row[c] + linear[c]);
      NarrowRow(row, columns, out + (first + i) * columns);
    }
  };
  used.run(TasksOf(of.samples), [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t first = task * kRowsPerTask, rows = std::min(of.samples - first, kRowsPerTask);
    std::vector<float> inputs(rows * std::max(left, right));
    Widen(of.x + first * left, left, rows, left, inputs.data());
    by_rows(layers, inputs.data(), first, rows, right, of.linear + left, gradients.by_z);
    Widen(of.z + first * right, right, rows, right, inputs.data());
    by_rows(transposed, inputs.data(), first, rows, left, of.linear, gradients.by_x);
  });
  const int64_t samples = of.samples / slices, size = of.left * of.right + of.left + of.right + 1;
  used.run(of.heads, [&](int64_t head) {
    const FlushDenormals flush;
    std::vector<float> sums(slices * size);
    for (int64_t slice = 0; slice < slices; ++slice) SumSlice(of, upstream, head, slice * samples, samples, sums.data() + slice * size);
    for (int64_t step = 1; step < slices; step *= 2) {
      for (int64_t i = 0; i + step < slices; i += 2 * step) {
        float *to = sums.data() + i * size, *from = to + step * size;
        for (int64_t n = 0; n < size; ++n) to[n] += from[n];
      }
    }
    const float *by_left = sums.data() + of.left * of.right, *by_right = by_left + of.left;
    std::copy_n(sums.data(), of.left * of.right, gradients.by_kernels[head]);
    std::copy_n(by_left, of.left, gradients.by_linear + head * of.left);
    std::copy_n(by_right, of.right, gradients.by_linear + left + head * of.right);
    if (head == 0) *gradients.by_bias = by_right[of.right];
  });
}

#define INSTANTIATE(T)                                                                                                        \
  template void Fuse<T>(const Fusion<T>&, float, float*, const Threads&);                                                     \
  template void FuseGradient<T>(const Fusion<T>&, const float*, int64_t, const FusionGradients<T>&, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
