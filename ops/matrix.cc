#include "matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "interaction_amx.h"
#include "lanes.h"
#include "matrix_amx.h"

namespace dlrm {
namespace {

// A block of sums stays in registers: with AVX-512, 12 rows x 2 vectors in 24 of 32 registers; else 6 rows x 1 vector of two registers, in 12 of 16.
#if defined(__AVX512F__)
constexpr int kRows = 12, kVectors = 2;
#else
constexpr int kRows = 6, kVectors = 1;
#endif
constexpr int64_t kPanel = kVectors * kLanes;  // columns that are stored together
constexpr int64_t kDepth = 256;                // inputs or pairs of a partial sum; adding partial sums rounds less than one long sum
constexpr int kFewRows = 2;                    // up to so many rows, reading the weights takes most of the time
constexpr int kAhead = 32;                     // inputs or pairs whose weights are then prefetched
constexpr int64_t kPart = 32 << 10;            // the fewest bytes of a task: reading them takes longer than two messages between threads
constexpr int64_t kPartsOfThread = 8;          // so that a thread which begins late leaves more of them to the others

// The distance between rounded rows, an even number; padded, so that rows do not share lines of the first-level cache.
inline int64_t RoundedStride(int64_t inputs) { return (inputs + 2 * kLanes - 1) / (2 * kLanes) * 2 * kLanes + 2 * kLanes; }

// The first of the i-th of `count` nearly equal parts of `size`.
inline int64_t Begin(int64_t size, int64_t count, int64_t i) { return size * i / count; }

inline void AddProducts(float x, Lanes weights, Lanes* sum) { *sum += x * weights; }

// Adds the products of two inputs, the first one in the low half of a word.
inline void AddProducts(uint32_t x, Lanes weights, Lanes* sum) {
#if defined(__AVX512BF16__)
  *sum = (Lanes)_mm512_dpbf16_ps((__m512)*sum, (__m512bh)_mm512_set1_epi32(static_cast<int>(x)), (__m512bh)weights);
#else
  typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
  const Words words = (Words)weights;
  *sum += FloatOf(x << 16) * (Lanes)(words << 16);
  *sum += FloatOf(x & 0xffff0000u) * (Lanes)(words & 0xffff0000u);
#endif
}

// An input, or in bfloat16 the k-th pair of inputs.
inline float Input(const float* x, int64_t k) { return x[k]; }
inline uint32_t Input(const BFloat16* x, int64_t k) {
  uint32_t pair;
  std::memcpy(&pair, x + 2 * k, sizeof(pair));
  return pair;
}

// sums = x W for kR rows and a panel's columns, inputs or pairs begin..end-1.
template <int kR, bool kPrefetch, class X>
inline void Multiply(const X* x, int64_t stride, const float* panel, int64_t begin, int64_t end, Lanes (&sums)[kR][kVectors]) {
  for (int i = 0; i < kR; ++i) {
    for (int v = 0; v < kVectors; ++v) sums[i][v] = Lanes{};
  }
  for (int64_t k = begin; k < end; ++k) {
    Lanes weights[kVectors];
    for (int v = 0; v < kVectors; ++v) weights[v] = Load(panel + k * kPanel + v * kLanes);
    if constexpr (kPrefetch) PrefetchToRead(panel + (k + kAhead) * kPanel, kPanel * sizeof(float));
    for (int i = 0; i < kR; ++i) {
      for (int v = 0; v < kVectors; ++v) AddProducts(Input(x + i * stride, k), weights[v], &sums[i][v]);
    }
  }
}

struct Panel {
  const float* weights;
  const float* bias;
  int64_t depth, columns;
  bool relu;
};

template <int kR, bool kPrefetch = false, class X>
void Block(const Panel& panel, const X* x, int64_t x_stride, float* y, int64_t y_stride) {
  const int64_t count = (panel.depth + kDepth - 1) / kDepth;
  Lanes total[kR][kVectors];
  Multiply<kR, kPrefetch>(x, x_stride, panel.weights, 0, Begin(panel.depth, count, 1), total);
  for (int64_t part = 1; part < count; ++part) {
    // The total is stored in memory meanwhile, because the next sum takes the registers.
    float parked[kR][kPanel];
    for (int i = 0; i < kR; ++i) {
      for (int v = 0; v < kVectors; ++v) Store(total[i][v], parked[i] + v * kLanes);
    }
    Multiply<kR, kPrefetch>(x, x_stride, panel.weights, Begin(panel.depth, count, part), Begin(panel.depth, count, part + 1), total);
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

// Whether weights are prefetched: AMD's processors read them faster, by a quarter from the third-level cache, if they find their way alone.
bool Prefetches() {
#if defined(__x86_64__)
  static const bool prefetches = !__builtin_cpu_is("amd");
  return prefetches;
#else
  return true;
#endif
}

template <int kR, class X>
void LastRows(int64_t rows, const Panel& panel, const X* x, int64_t x_stride, float* y, int64_t y_stride) {
  if constexpr (kR <= kFewRows) {
    if (rows == kR && Prefetches()) return Block<kR, true>(panel, x, x_stride, y, y_stride);
  }
  if (rows == kR) return Block<kR>(panel, x, x_stride, y, y_stride);
  if constexpr (kR > 1) LastRows<kR - 1>(rows, panel, x, x_stride, y, y_stride);
}

template <class X>
void Rows(const Panel& panel, const X* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride) {
  int64_t row = 0;
  for (; row + kRows <= rows; row += kRows) Block<kRows>(panel, x + row * x_stride, x_stride, y + row * y_stride, y_stride);
  if (row < rows) LastRows<kRows - 1>(rows - row, panel, x + row * x_stride, x_stride, y + row * y_stride, y_stride);
}

// Rounds a row, and fills it with zeros to `depth` pairs.
void RoundRow(const float* x, int64_t inputs, int64_t depth, BFloat16* to) {
  NarrowRow(x, inputs, to);
  std::memset(to + inputs, 0, (2 * depth - inputs) * sizeof(BFloat16));
}

// Whether products in bfloat16 use the processor's matrix tiles: where there are any, and DLRM_AMX is not 0.
bool UsesTiles() {
  static const bool uses = [] {
    const char* value = std::getenv("DLRM_AMX");
    return (!value || std::strcmp(value, "0") != 0) && HasTiles();
  }();
  return uses;
}

}  // namespace

PackedLayer::PackedLayer(const float* kernel, const float* bias, int64_t inputs, int64_t outputs, bool relu, bool bfloat16)
    : inputs_(inputs),
      outputs_(outputs),
      depth_(bfloat16 ? (inputs + 1) / 2 : inputs),
      relu_(relu),
      bfloat16_(bfloat16),
      tiles_(bfloat16 && kPanel == 2 * kLanes && UsesTiles()) {
  if (tiles_) depth_ = (depth_ + kPairsOfTile - 1) / kPairsOfTile * kPairsOfTile;
  const int64_t count = (outputs + kPanel - 1) / kPanel, step = bfloat16 ? 2 : 1;
  panels_ = Allocate<float>(count * depth_ * kPanel);
  bias_ = Allocate<float>(count * kPanel);
  std::memset(panels_.get(), 0, count * depth_ * kPanel * sizeof(float));
  std::memset(bias_.get(), 0, count * kPanel * sizeof(float));
  if (bias) std::memcpy(bias_.get(), bias, outputs * sizeof(float));
  for (int64_t first = 0; first < outputs; first += kPanel) {
    const int64_t columns = std::min(kPanel, outputs - first);
    for (int64_t k = 0; k < inputs; ++k) {
      const float* from = kernel + k * outputs + first;
      float* to = panels_.get() + first * depth_ + k / step * kPanel;
      if (bfloat16) {
        for (int64_t i = 0; i < columns; ++i) {
          BFloat16 weight;
          Narrow(from[i], &weight);
          std::memcpy(reinterpret_cast<char*>(to + i) + k % 2 * sizeof(weight), &weight, sizeof(weight));
        }
      } else {
        std::memcpy(to, from, columns * sizeof(float));
      }
    }
  }
}

int64_t PackedLayer::bytes() const { return (outputs_ + kPanel - 1) / kPanel * depth_ * kPanel * static_cast<int64_t>(sizeof(float)); }

int64_t PackedLayer::RoundedSize(int64_t rows, int64_t inputs) { return rows * RoundedStride(inputs); }

void PackedLayer::Apply(const float* x, int64_t x_stride, int64_t rows, float* y, int64_t y_stride, BFloat16* rounded, const Threads& threads) const {
  const int64_t stride = RoundedStride(inputs_), panels = (outputs_ + kPanel - 1) / kPanel;
  for (int64_t row = 0; bfloat16_ && row < rows; ++row) RoundRow(x + row * x_stride, inputs_, depth_, rounded + row * stride);
  const auto multiply = [&](int64_t begin, int64_t end) {
    if (tiles_) {
      const int64_t first = begin * kPanel;
      const TilePanels some{panels_.get() + first * depth_, bias_.get() + first, depth_, std::min(end * kPanel, outputs_) - first, relu_};
      return MultiplyByTiles(some, rounded, stride, rows, y + first, y_stride);
    }
    for (int64_t first = begin * kPanel; first < std::min(end * kPanel, outputs_); first += kPanel) {
      const Panel panel{panels_.get() + first * depth_, bias_.get() + first, depth_, std::min(kPanel, outputs_ - first), relu_};
      if (bfloat16_) {
        Rows(panel, static_cast<const BFloat16*>(rounded), stride, rows, y + first, y_stride);
      } else {
        Rows(panel, x, x_stride, rows, y + first, y_stride);
      }
    }
  };
  const int64_t parts = threads.count > 1 && bytes() >= kDivided ? std::min({panels, bytes() / kPart, kPartsOfThread * threads.count}) : 1;
  if (parts < 2) return multiply(0, panels);
  threads.run(parts, [&](int64_t part) {
    const FlushDenormals flush;
    multiply(Begin(panels, parts, part), Begin(panels, parts, part + 1));
  });
}

}  // namespace dlrm
