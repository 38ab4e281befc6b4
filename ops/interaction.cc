#include "interaction.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "interaction_amx.h"

namespace dlrm {
namespace {

constexpr int kLanes = 16;
constexpr int kBlock = 4;               // vectors; a block of 4 x 4 dots takes 16 of 32 registers
constexpr int64_t kSamplesPerTask = 16;

// One register with AVX-512; the compiler makes two or four of it elsewhere, with the same results.
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

inline Lanes Load(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
inline void Store(Lanes value, float* to) { *reinterpret_cast<Lanes*>(to) = value; }

inline int RoundUp(int n, int to) { return (n + to - 1) / to * to; }

// a's and b's lanes summed in pairs at distance kStep: a's sums where bit kStep of the lane is clear, b's where it is set.
template <int kStep>
inline Lanes Fold(Lanes a, Lanes b) {
  typedef int Index __attribute__((vector_size(4 * kLanes)));
  Index low, high;
  for (int i = 0; i < kLanes; ++i) {
    const int from = i & kStep ? kLanes : 0;
    low[i] = from + (i & ~kStep);
    high[i] = from + (i | kStep);
  }
  return __builtin_shuffle(a, b, low) + __builtin_shuffle(a, b, high);
}

// Lane 4 i + j becomes the sum of the lanes of sums[i][j].
inline Lanes SumsOfLanes(const Lanes (&sums)[kBlock][kBlock]) {
  Lanes rows[kBlock];
  for (int i = 0; i < kBlock; ++i) rows[i] = Fold<2>(Fold<1>(sums[i][0], sums[i][1]), Fold<1>(sums[i][2], sums[i][3]));
  return Fold<8>(Fold<4>(rows[0], rows[1]), Fold<4>(rows[2], rows[3]));
}

// The vectors of a sample as float rows whose length is a multiple of kLanes and whose number is one of kBlock, padded with zeros.
template <class T>
class Vectors {
 public:
  explicit Vectors(const InteractionShape& shape)
      : shape_(shape), stride_(RoundUp(shape.width, kLanes)), count_(RoundUp(shape.vectors, kBlock)), values_(new float[count_ * stride_ + kLanes]()) {
    const auto misaligned = reinterpret_cast<uintptr_t>(values_.get()) % kCacheLine / sizeof(float);
    first_ = values_.get() + (misaligned ? kLanes - misaligned : 0);
  }

  void Set(const T* bottom, const T* embeddings) {
    Widen(bottom, first_);
    for (int i = 1; i < shape_.vectors; ++i) Widen(embeddings + static_cast<int64_t>(i - 1) * shape_.width, first_ + i * stride_);
  }

  const float* row(int i) const { return first_ + i * stride_; }
  int stride() const { return stride_; }
  int count() const { return count_; }

 private:
  void Widen(const T* from, float* to) const {
    for (int i = 0; i < shape_.width; ++i) to[i] = Widened(from[i]);
  }

  InteractionShape shape_;
  int stride_, count_;
  std::unique_ptr<float[]> values_;
  float* first_;
};

// sums[i][j] = or += left_i * right_j
template <bool kFirst, class Left, class Right>
inline void Multiply(const Left& left, const Right& right, Lanes (&sums)[kBlock][kBlock]) {
  Lanes rights[kBlock];
  for (int j = 0; j < kBlock; ++j) rights[j] = right(j);
  for (int i = 0; i < kBlock; ++i) {
    const auto value = left(i);
    for (int j = 0; j < kBlock; ++j) sums[i][j] = kFirst ? value * rights[j] : sums[i][j] + value * rights[j];
  }
}

// dots[i, j] = Z_i . Z_j for j <= i; dots is [count, count].
template <class T>
void Dots(const Vectors<T>& z, float* dots) {
  const int stride = z.stride();
  for (int row = 0; row < z.count(); row += kBlock) {
    for (int column = 0; column <= row; column += kBlock) {
      Lanes sums[kBlock][kBlock];
      int d = 0;
      const auto left = [&, a = z.row(row)](int i) { return Load(a + i * stride + d); };
      const auto right = [&, b = z.row(column)](int j) { return Load(b + j * stride + d); };
      Multiply<true>(left, right, sums);
      for (d = kLanes; d < stride; d += kLanes) Multiply<false>(left, right, sums);
      float block[kLanes];
      Store(SumsOfLanes(sums), block);
      for (int i = 0; i < kBlock; ++i) std::memcpy(dots + (row + i) * z.count() + column, block + i * kBlock, sizeof(Quad));
    }
  }
}

// out = S Z for rows row..row+kBlock-1 of the symmetric S, [count, count], whose blocks above the diagonal are not set; out is [kBlock, stride].
template <class T>
void Product(const float* s, int row, const Vectors<T>& z, float* out) {
  const int stride = z.stride(), count = z.count();
  for (int first = 0; first < stride; first += kBlock * kLanes) {
    // The last columns again where fewer than a block are left.
    const int d = std::max(0, std::min(first, stride - kBlock * kLanes)), columns = std::min(kBlock * kLanes, stride);
    if (columns == kBlock * kLanes) {
      Lanes sums[kBlock][kBlock];
      int k = 0;
      const auto below = [&](int i) { return s[(row + i) * count + k]; };
      const auto above = [&](int i) { return s[k * count + row + i]; };
      const auto right = [&](int j) { return Load(z.row(k) + d + j * kLanes); };
      Multiply<true>(below, right, sums);
      for (k = 1; k < row + kBlock; ++k) Multiply<false>(below, right, sums);
      for (; k < count; ++k) Multiply<false>(above, right, sums);
      for (int i = 0; i < kBlock; ++i) {
        for (int j = 0; j < kBlock; ++j) Store(sums[i][j], out + i * stride + d + j * kLanes);
      }
    } else {  // fewer than 64 columns in all
      for (int i = 0; i < kBlock; ++i) {
        for (int at = 0; at < columns; at += kLanes) {
          Lanes sum = s[(row + i) * count] * Load(z.row(0) + at);
          for (int k = 1; k < count; ++k) sum += (k < row + kBlock ? s[(row + i) * count + k] : s[k * count + row + i]) * Load(z.row(k) + at);
          Store(sum, out + i * stride + at);
        }
      }
    }
  }
}

template <class T>
inline void NarrowAll(const float* from, int n, T* to) {
  for (int i = 0; i < n; ++i) Narrow(from[i], to + i);
}

// work(first, last) for samples first..last-1, some at a time.
template <class Work>
void ForSamples(const InteractionShape& shape, const Threads& threads, const Work& work) {
  threads.run((shape.samples + kSamplesPerTask - 1) / kSamplesPerTask, [&](int64_t task) {
    const FlushDenormals flush;
    work(task * kSamplesPerTask, std::min((task + 1) * kSamplesPerTask, shape.samples));
  });
}

}  // namespace

template <class T>
void Interact(const InteractionShape& shape, const T* bottom, const T* embeddings, T* out, const Threads& threads) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (HasTiles()) return InteractByTiles(shape, bottom, embeddings, out, threads);
  }
  ForSamples(shape, threads, [&](int64_t first, int64_t last) {
    Vectors<T> z(shape);
    std::vector<float> dots(z.count() * z.count());
    for (int64_t sample = first; sample < last; ++sample) {
      z.Set(bottom + sample * shape.width, embeddings + sample * (shape.vectors - 1) * shape.width);
      Dots(z, dots.data());
      T* to = out + sample * (shape.width + shape.pairs());
      std::memcpy(to, bottom + sample * shape.width, shape.width * sizeof(T));
      to += shape.width;
      for (int i = 1; i < shape.vectors; to += i, ++i) NarrowAll(dots.data() + i * z.count(), i, to);
    }
  });
}

template <class T>
void InteractGradient(const InteractionShape& shape, const T* bottom, const T* embeddings, const T* upstream, T* bottom_gradient,
                      T* embeddings_gradient, const Threads& threads) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (HasTiles()) return InteractGradientByTiles(shape, bottom, embeddings, upstream, bottom_gradient, embeddings_gradient, threads);
  }
  ForSamples(shape, threads, [&](int64_t first, int64_t last) {
    Vectors<T> z(shape);
    std::vector<float> s(z.count() * z.count()), product(kBlock * z.stride());
    for (int64_t sample = first; sample < last; ++sample) {
      z.Set(bottom + sample * shape.width, embeddings + sample * (shape.vectors - 1) * shape.width);
      const T* given = upstream + sample * (shape.width + shape.pairs());
      const T* pair = given + shape.width;
      for (int i = 1; i < shape.vectors; pair += i, ++i) {
        for (int j = 0; j < i; ++j) s[i * z.count() + j] = Widened(pair[j]);
        for (int j = i / kBlock * kBlock; j < i; ++j) s[j * z.count() + i] = s[i * z.count() + j];
      }
      T* to = embeddings_gradient + sample * (shape.vectors - 1) * shape.width;
      for (int block = 0; block < z.count(); block += kBlock) {
        Product(s.data(), block, z, product.data());
        for (int i = block; i < std::min(block + kBlock, shape.vectors); ++i) {
          float* row = product.data() + (i - block) * z.stride();
          if (i == 0) {
            for (int d = 0; d < shape.width; ++d) row[d] += Widened(given[d]);
            NarrowAll(row, shape.width, bottom_gradient + sample * shape.width);
          } else {
            NarrowAll(row, shape.width, to + static_cast<int64_t>(i - 1) * shape.width);
          }
        }
      }
    }
  });
}

#define INSTANTIATE(T)                                                                                    \
  template void Interact<T>(const InteractionShape&, const T*, const T*, T*, const Threads&);             \
  template void InteractGradient<T>(const InteractionShape&, const T*, const T*, const T*, T*, T*, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
