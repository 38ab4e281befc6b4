#include "interaction_amx.h"

#include "tiles.h"

#ifdef DLRM_TILES
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <vector>
#endif

namespace dlrm {

#ifdef DLRM_TILES
namespace {

constexpr int64_t kSamplesPerTask = 32;

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

template <class T>
class Aligned {
 public:
  explicit Aligned(int64_t size) : memory_(size * sizeof(T) / 64 + 1) {}
  T* data() { return reinterpret_cast<T*>(memory_.data()); }

 private:
  struct alignas(64) Line {
    char bytes[64] = {};
  };
  std::vector<Line> memory_;
};

inline void NarrowMasked(const float* from, int64_t n, BFloat16* to) {
  for (int64_t i = 0; i < n; i += kTileLanes) {
    const __mmask16 mask = n - i >= kTileLanes ? 0xffff : (1u << (n - i)) - 1;
    _mm256_mask_storeu_epi16(to + i, mask, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(from + i))));
  }
}

// The vectors of a sample as rows of whole tiles, padded with zeros.
class Vectors {
 public:
  explicit Vectors(const InteractionShape& shape)
      : shape_(shape), count_(RoundUp(shape.vectors, kTileElements)), stride_(RoundUp(shape.width, kTileElements)), values_(count_ * stride_) {}

  void Set(int64_t sample, const BFloat16* bottom, const BFloat16* embeddings) {
    std::memcpy(row(0), bottom + sample * shape_.width, shape_.width * sizeof(BFloat16));
    const BFloat16* from = embeddings + sample * (shape_.vectors - 1) * shape_.width;
    for (int64_t i = 1; i < shape_.vectors; ++i) std::memcpy(row(i), from + (i - 1) * shape_.width, shape_.width * sizeof(BFloat16));
  }

  BFloat16* row(int64_t i) { return values_.data() + i * stride_; }
  int64_t count() const { return count_; }    // number of rows, a multiple of kTileElements
  int64_t stride() const { return stride_; }  // a multiple of kTileElements

 private:
  InteractionShape shape_;
  int64_t count_, stride_;
  Aligned<BFloat16> values_;
};

// to[k][n] = from[n][k] for the 16 x 16 pairs of elements of a tile.
inline void TransposePairs(const BFloat16* from, int64_t stride, BFloat16* to) {
  __m512i rows[kTileRows];
  for (int i = 0; i < kTileRows; ++i) rows[i] = _mm512_load_si512(from + i * stride);
  ExchangeRowsAndColumns(rows);
  for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(to + i * kTileElements, rows[i]);
}

// to[n] = the pair (a[n], b[n]).
inline void Interleave(const BFloat16* a, const BFloat16* b, int64_t n, BFloat16* to) {
  for (int64_t i = 0; i < n; i += kTileLanes) {
    const __m512i low = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(a + i)));
    const __m512i high = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(b + i)));
    _mm512_store_si512(to + 2 * i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
}

template <class Work>
void ForSamples(const InteractionShape& shape, const Threads& threads, const Work& work) {
  threads.run((shape.samples + kSamplesPerTask - 1) / kSamplesPerTask, [&](int64_t task) {
    const FlushDenormals flush;
    const Tiles tiles;
    work(task * kSamplesPerTask, std::min((task + 1) * kSamplesPerTask, shape.samples));
  });
}

}  // namespace

bool HasTiles() {
  constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool has = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return has;
}

void InteractByTiles(const InteractionShape& shape, const BFloat16* bottom, const BFloat16* embeddings, BFloat16* out, const Threads& threads) {
  ForSamples(shape, threads, [&](int64_t first, int64_t last) {
    Vectors z(shape);
    const int64_t stride = z.stride(), chunks = stride / kTileElements, count = RoundUp(shape.vectors, kTileRows);
    Aligned<BFloat16> transposed(count * stride);
    Aligned<float> dots(count * count);
    for (int64_t sample = first; sample < last; ++sample) {
      z.Set(sample, bottom, embeddings);
      for (int64_t row = 0; row < count; row += kTileRows) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
          TransposePairs(z.row(row) + chunk * kTileElements, stride, transposed.data() + (row * chunks + chunk * kTileRows) * kTileElements);
        }
        for (int64_t column = 0; column <= row; column += kTileRows) {
          _tile_zero(0);
          for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            _tile_loadd(1, z.row(row) + chunk * kTileElements, stride * sizeof(BFloat16));
            _tile_loadd(2, transposed.data() + (column * chunks + chunk * kTileRows) * kTileElements, kTileElements * sizeof(BFloat16));
            _tile_dpbf16ps(0, 1, 2);
          }
          _tile_stored(0, dots.data() + row * count + column, count * sizeof(float));
        }
      }
      BFloat16* to = out + sample * (shape.width + shape.pairs());
      std::memcpy(to, z.row(0), shape.width * sizeof(BFloat16));
      to += shape.width;
      for (int64_t i = 1; i < shape.vectors; to += i, ++i) NarrowMasked(dots.data() + i * count, i, to);
    }
  });
}

void InteractGradientByTiles(const InteractionShape& shape, const BFloat16* bottom, const BFloat16* embeddings, const BFloat16* upstream,
                             BFloat16* bottom_gradient, BFloat16* embeddings_gradient, const Threads& threads) {
  ForSamples(shape, threads, [&](int64_t first, int64_t last) {
    Vectors z(shape);
    const int64_t stride = z.stride(), count = z.count();
    Aligned<BFloat16> symmetric(count * count), pairs(count * stride);
    Aligned<float> product(kTileRows * stride);
    for (int64_t sample = first; sample < last; ++sample) {
      z.Set(sample, bottom, embeddings);
      const BFloat16* given = upstream + sample * (shape.width + shape.pairs());
      const BFloat16* pair = given + shape.width;
      BFloat16* s = symmetric.data();
      for (int64_t i = 1; i < shape.vectors; pair += i, ++i) {
        std::memcpy(s + i * count, pair, i * sizeof(BFloat16));
        for (int j = 0; j < i; ++j) s[j * count + i] = pair[j];
      }
      for (int64_t i = 0; i < RoundUp(shape.vectors, 2); i += 2) Interleave(z.row(i), z.row(i + 1), stride, pairs.data() + i * stride);
      BFloat16* to = embeddings_gradient + sample * (shape.vectors - 1) * shape.width;
      for (int64_t row = 0; row < shape.vectors; row += kTileRows) {
        for (int64_t column = 0; column < shape.width; column += kTileLanes) {
          _tile_zero(0);
          for (int64_t k = 0; k < count; k += kTileElements) {
            _tile_loadd(1, s + row * count + k, count * sizeof(BFloat16));
            _tile_loadd(2, pairs.data() + k * stride + 2 * column, 2 * stride * sizeof(BFloat16));
            _tile_dpbf16ps(0, 1, 2);
          }
          _tile_stored(0, product.data() + column, stride * sizeof(float));
        }
        for (int64_t i = row; i < std::min<int64_t>(row + kTileRows, shape.vectors); ++i) {
          float* values = product.data() + (i - row) * stride;
          if (i == 0) {
            for (int d = 0; d < shape.width; ++d) values[d] += Widened(given[d]);
            NarrowMasked(values, shape.width, bottom_gradient + sample * shape.width);
          } else {
            NarrowMasked(values, shape.width, to + (i - 1) * shape.width);
          }
        }
      }
    }
  });
}

#else

bool HasTiles() { return false; }
void InteractByTiles(const InteractionShape&, const BFloat16*, const BFloat16*, BFloat16*, const Threads&) {}
void InteractGradientByTiles(const InteractionShape&, const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*, BFloat16*, const Threads&) {}

#endif

}  // namespace dlrm
