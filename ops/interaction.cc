#include "interaction.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "interaction_amx.h"
#include "lanes.h"

namespace dlrm {
namespace {

constexpr int kBlock = 4;               // vectors of a block; its 4 x 4 dot products take 16 of 32 registers
constexpr int64_t kSamplesPerTask = 16;

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <int kStep, int... kLane>
inline Lanes Fold(Lanes a, Lanes b, std::integer_sequence<int, kLane...>) {
  return Shuffle<((kLane & kStep ? kLanes : 0) + (kLane & ~kStep))...>(a, b) + Shuffle<((kLane & kStep ? kLanes : 0) + (kLane | kStep))...>(a, b);
}

// Sums the lanes of a and of b in pairs at distance kStep; a's sums go to lanes whose number has bit kStep clear, b's to the others.
template <int kStep>
inline Lanes Fold(Lanes a, Lanes b) {
  return Fold<kStep>(a, b, std::make_integer_sequence<int, kLanes>());
}

// Lane 4 i + j of the result is the sum of the lanes of sums[i][j].
inline Lanes SumsOfLanes(const Lanes (&sums)[kBlock][kBlock]) {
  Lanes rows[kBlock];
  for (int i = 0; i < kBlock; ++i) rows[i] = Fold<2>(Fold<1>(sums[i][0], sums[i][1]), Fold<1>(sums[i][2], sums[i][3]));
  return Fold<8>(Fold<4>(rows[0], rows[1]), Fold<4>(rows[2], rows[3]));
}

// The vectors of a sample as float rows, padded with zeros; their length is a multiple of kLanes, their number a multiple of kBlock.
template <class T>
class Vectors {
 public:
  explicit Vectors(const InteractionShape& shape)
      : shape_(shape), stride_(RoundUp(shape.width, kLanes)), count_(RoundUp(shape.vectors, kBlock)), values_(new float[count_ * stride_ + kLanes]()) {
    const auto misaligned = reinterpret_cast<uintptr_t>(values_.get()) % kCacheLine / sizeof(float);
    first_ = values_.get() + (misaligned ? kLanes - misaligned : 0);
  }

  void Set(const T* bottom, const T* embeddings) {
    WidenRow(bottom, shape_.width, first_);
    for (int64_t i = 1; i < shape_.vectors; ++i) WidenRow(embeddings + (i - 1) * shape_.width, shape_.width, first_ + i * stride_);
  }

  const float* row(int64_t i) const { return first_ + i * stride_; }
  int64_t stride() const { return stride_; }
  int64_t count() const { return count_; }

 private:
  InteractionShape shape_;
  int64_t stride_, count_;
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
  const int64_t stride = z.stride();
  for (int64_t row = 0; row < z.count(); row += kBlock) {
    for (int64_t column = 0; column <= row; column += kBlock) {
      Lanes sums[kBlock][kBlock];
      int64_t d = 0;
      const auto left = [&, a = z.row(row)](int i) { return Load(a + i * stride + d); };
      const auto right = [&, b = z.row(column)](int j) { return Load(b + j * stride + d); };
      Multiply<true>(left, right, sums);
      for (d = kLanes; d < stride; d += kLanes) Multiply<false>(left, right, sums);
      float block[kLanes];
      Store(SumsOfLanes(sums), block);
      for (int i = 0; i < kBlock; ++i) std::memcpy(dots + (row + i) * z.count() + column, block + i * kBlock, kBlock * sizeof(float));
    }
  }
}

// out = S Z for rows row..row+kBlock-1 of the symmetric S, [count, count]; S's blocks above the diagonal are not read. out is [kBlock, stride].
template <class T>
void Product(const float* s, int64_t row, const Vectors<T>& z, float* out) {
  constexpr int64_t kColumns = kBlock * kLanes;
  const int64_t stride = z.stride(), count = z.count();
  for (int64_t first = 0; first < stride; first += kColumns) {
    // If fewer columns than a block are left, the last block overlaps the one before.
    const int64_t d = std::max<int64_t>(0, std::min(first, stride - kColumns)), columns = std::min(kColumns, stride);
    if (columns == kColumns) {
      Lanes sums[kBlock][kBlock];
      int64_t k = 0;
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
        for (int64_t at = 0; at < columns; at += kLanes) {
          Lanes sum = s[(row + i) * count] * Load(z.row(0) + at);
          for (int64_t k = 1; k < count; ++k) sum += (k < row + kBlock ? s[(row + i) * count + k] : s[k * count + row + i]) * Load(z.row(k) + at);
          Store(sum, out + i * stride + at);
        }
      }
    }
  }
}

// Calls work(first, last) for samples first..last-1, kSamplesPerTask samples at a time.
template <class Work>
void ForSamples(const InteractionShape& shape, const Threads& threads, const Work& work) {
  threads.run((shape.samples + kSamplesPerTask - 1) / kSamplesPerTask, [&](int64_t task) {
    const FlushDenormals flush;
    work(task * kSamplesPerTask, std::min((task + 1) * kSamplesPerTask, shape.samples));
  });
}

}  // namespace

template <class T>
void Interact(const InteractionShape& shape, const T* bottom, const T* embeddings, T* out, bool tiles, const Threads& threads) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (tiles && HasTiles()) return InteractByTiles(shape, bottom, embeddings, out, threads);
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
      for (int64_t i = 1; i < shape.vectors; to += i, ++i) NarrowRow(dots.data() + i * z.count(), i, to);
    }
  });
}

template <class T>
void InteractGradient(const InteractionShape& shape, const T* bottom, const T* embeddings, const T* upstream, T* bottom_gradient,
                      T* embeddings_gradient, bool tiles, const Threads& threads) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (tiles && HasTiles()) return InteractGradientByTiles(shape, bottom, embeddings, upstream, bottom_gradient, embeddings_gradient, threads);
  }
  ForSamples(shape, threads, [&](int64_t first, int64_t last) {
    Vectors<T> z(shape);
    std::vector<float> s(z.count() * z.count()), product(kBlock * z.stride());
    for (int64_t sample = first; sample < last; ++sample) {
      z.Set(bottom + sample * shape.width, embeddings + sample * (shape.vectors - 1) * shape.width);
      const T* given = upstream + sample * (shape.width + shape.pairs());
      const T* pair = given + shape.width;
      for (int64_t i = 1; i < shape.vectors; pair += i, ++i) {
        WidenRow(pair, i, s.data() + i * z.count());
        for (int64_t j = i / kBlock * kBlock; j < i; ++j) s[j * z.count() + i] = s[i * z.count() + j];
      }
      T* to = embeddings_gradient + sample * (shape.vectors - 1) * shape.width;
      for (int64_t block = 0; block < z.count(); block += kBlock) {
        Product(s.data(), block, z, product.data());
        for (int64_t i = block; i < std::min<int64_t>(block + kBlock, shape.vectors); ++i) {
          float* row = product.data() + (i - block) * z.stride();
          if (i == 0) {
            ForFloats(given, shape.width, [row](const auto* values, int64_t at, int64_t n) {
              for (int64_t d = 0; d < n; ++d) row[at + d] += Widened(values[d]);
            });
            NarrowRow(row, shape.width, bottom_gradient + sample * shape.width);
          } else {
            NarrowRow(row, shape.width, to + (i - 1) * shape.width);
          }
        }
      }
    }
  });
}

#define INSTANTIATE(T)                                                                                    \
  template void Interact<T>(const InteractionShape&, const T*, const T*, T*, bool, const Threads&);       \
  template void InteractGradient<T>(const InteractionShape&, const T*, const T*, const T*, T*, T*, bool, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
