#include "matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "lanes.h"
#include "parallel.h"

namespace dlrm {
namespace {

// A block of sums stays in registers: with AVX-512, 12 rows x 2 vectors in 24 of 32 registers; else 6 rows x 1 vector of two registers, in 12 of 16.
#if defined(__AVX512F__)
constexpr int kRows = 12, kVectors = 2;
#else
constexpr int kRows = 6, kVectors = 1;
#endif
constexpr int64_t kPanel = kVectors * kLanes;  // columns that are stored together
constexpr int64_t kDepth = 256;                // inputs of a partial sum; adding partial sums rounds less than one long sum
constexpr int kFewRows = 2;                    // up to so many rows, reading the weights takes most of the time
constexpr int kAhead = 32;                     // inputs whose weights are then prefetched
constexpr int64_t kHugePage = 2 << 20;

inline Lanes Relu(Lanes x) {
  const Lanes zero = {};
  return x <= zero ? zero : x;  // keeps NaN
}

// The first input of the i-th of `count` partial sums.
inline int64_t Begin(int64_t inputs, int64_t count, int64_t i) { return inputs * i / count; }

// sums = x W for kR rows and a panel's columns, inputs begin..end-1.
template <int kR>
inline void Multiply(const float* x, int64_t stride, const float* panel, int64_t begin, int64_t end, Lanes (&sums)[kR][kVectors]) {
  for (int i = 0; i < kR; ++i) {
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Lanes{};
  }
  for (int64_t k = begin; k < end; ++k) {
    Lanes weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = Load(panel + k * kPanel + v * kLanes);
    if constexpr (kR <= kFewRows) PrefetchToRead(panel + (k + kAhead) * kPanel, kPanel * sizeof(float));
    for (int i = 0; i < kR; ++i) {
      for (int v = 0; v < kVectors; ++v) sums[i][v] += x[i * stride + k] * weights[v];
    }
  }
}

struct Panel {
  const float* weights;
  const float* bias;
  int64_t inputs, columns;
  bool relu;
};

template <int kR>
void Block(const Panel& panel, const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  const int64_t count = (panel.inputs + kDepth - 1) / kDepth;
  Lanes total[kR][kVectors];
  Multiply<kR>(x, x_stride, panel.weights, 0, Begin(panel.inputs, count, 1), total);
  for (int64_t part = 1; part < count; ++part) {
    // The total is stored in memory meanwhile, because the next sum takes the registers.
    float parked[kR][kPanel];
    for (int i = 0; i < kR; ++i) {
      for (int v = 0; v < kVectors; ++v) Store(total[i][v], parked[i] + v * kLanes);
    }
    Multiply<kR>(x, x_stride, panel.weights, Begin(panel.inputs, count, part), Begin(panel.inputs, count, part + 1), total);
    for (int i = 0; i < kR; ++i) {
      for (int v = 0; v < kVectors; ++v) total[i][v] += Load(parked[i] + v * kLanes);
    }
  }
  for (int i = 0; i < kR; ++i) {
    float outputs[kPanel];
    for (int v = 0; v < kVectors; ++v) {
      const Lanes sum = total[i][v] + Load(panel.bias + v * kLanes);
      Store(panel.relu ? Relu(sum) : sum, outputs + v * kLanes);
    }
    if (panel.columns == kPanel) {
      std::memcpy(y + i * y_stride, outputs, sizeof(outputs));
    } else {
      std::memcpy(y + i * y_stride, outputs, panel.columns * sizeof(float));
    }
  }
}

template <int kR>
void LastRows(int64_t rows, const Panel& panel, const float* x, int64_t x_stride, float* y, int64_t y_stride) {
  if (rows == kR) return Block<kR>(panel, x, x_stride, y, y_stride);
  if constexpr (kR > 1) LastRows<kR - 1>(rows, panel, x, x_stride, y, y_stride);
}

}  // namespace

PackedLayer::Memory PackedLayer::Allocate(int64_t size) {
  const int64_t bytes = size * static_cast<int64_t>(sizeof(float)), alignment = bytes < kHugePage ? kCacheLine : kHugePage;
  auto* memory = static_cast<float*>(std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment));
  if (!memory) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
  return Memory(memory);
}

void PackedLayer::Free::operator()(float* memory) const { std::free(memory); }

PackedLayer::PackedLayer(const float* kernel, const float* bias, int64_t inputs, int64_t outputs, bool relu)
    : inputs_(inputs), outputs_(outputs), relu_(relu) {
  const int64_t count = (outputs + kPanel - 1) / kPanel;
  panels_ = Allocate(count * inputs * kPanel);
  bias_ = Allocate(count * kPanel);
  std::memset(panels_.get(), 0, count * inputs * kPanel * sizeof(float));
  std::memset(bias_.get(), 0, count * kPanel * sizeof(float));
  if (bias) std::memcpy(bias_.get(), bias, outputs * sizeof(float));
  for (int64_t first = 0; first < outputs; first += kPanel) {
    const int64_t columns = std::min(kPanel, outputs - first);
    for (int64_t k = 0; k < inputs; ++k) {
      std::memcpy(panels_.get() + first * inputs + k * kPanel, kernel + k * outputs + first, columns * sizeof(float));
    }
  }
}

void PackedLayer::Apply(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) const {
  for (int64_t first = 0; first < outputs_; first += kPanel) {
    const Panel panel{panels_.get() + first * inputs_, bias_.get() + first, inputs_, std::min(kPanel, outputs_ - first), relu_};
    int64_t row = 0;
    for (; row + kRows <= rows; row += kRows) Block<kRows>(panel, x + row * x_stride, x_stride, y + row * y_stride + first, y_stride);
    if (row < rows) LastRows<kRows - 1>(rows - row, panel, x + row * x_stride, x_stride, y + row * y_stride + first, y_stride);
  }
}

}  // namespace dlrm
