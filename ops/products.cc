#include "products.h"

#include <algorithm>

#include "tile_sums.h"

namespace dlrm {

#ifdef DLRM_TILES
namespace {

constexpr int64_t kBlocksAtOnce = 4;          // blocks of rows for which a panel of the matrix is read once from memory
constexpr int64_t kPackedAtOnce = 512 << 10;  // elements of packed samples that stay in the second-level cache
constexpr int64_t kMostPacked = 8 << 20;      // elements of all slices' packed samples that a task keeps, if it can
constexpr int64_t kSide = 16;                 // panels on each side that a task multiplies
constexpr int64_t kPanelsAtOnce = 2;          // panels that are packed where they are multiplied: their rows fill whole lines of the cache
constexpr int64_t kTasksPerThread = 4;

// Sums of a block and where they go: y = sums, or with the bias and the ReLU, of the rows and columns that there are.
template <class T>
class Result {
 public:
  // What `Write` has not yet written is lost. The bias may be null.
  void Start(int64_t rows, int64_t columns, const float* bias, bool relu, T* y, int64_t stride) {
    rows_ = rows;
    written_ = 0;
    relu_ = relu;
    y_ = y;
    stride_ = stride;
    for (int64_t half = 0; half < 2; ++half) {
      masks_[half] = FirstOf(columns - half * kTileLanes);
      bias_[half] = bias ? _mm512_maskz_loadu_ps(masks_[half], bias + half * kTileLanes) : _mm512_set1_ps(-0.0f);  // -0: x + -0 is x
    }
  }

  float* sums() { return sums_; }

  // Writes the rows before `last` that are not yet written.
  void Write(int64_t last) {
    for (last = std::min(last, rows_); written_ < last; ++written_) {
      for (int64_t half = 0; half < 2; ++half) {
        __m512 x = _mm512_add_ps(_mm512_load_ps(sums_ + written_ * kBlock + half * kTileLanes), bias_[half]);
        if (relu_) x = _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LE_OQ), _mm512_setzero_ps());
        T* to = y_ + written_ * stride_ + half * kTileLanes;
        if constexpr (std::is_same_v<T, float>) {
          _mm512_mask_storeu_ps(to, masks_[half], x);
        } else {
          _mm256_mask_storeu_epi16(to, masks_[half], reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
        }
      }
    }
  }

 private:
  alignas(64) float sums_[kSums];
  int64_t rows_ = 0, written_ = 0, stride_ = 0;
  bool relu_ = false;
  T* y_ = nullptr;
  __mmask16 masks_[2];
  __m512 bias_[2];
};

// The results of consecutive blocks: those of a block are written while the tiles compute the next ones.
template <class T>
class Results {
 public:
  ~Results() { of_last().Write(kBlock); }

  // Computes a block: `add` is given the work beside its `steps` steps, and where to store the sums. Other arguments as in Result.
  template <class Add>
  void Next(int64_t steps, const Add& add, int64_t rows, int64_t columns, const float* bias, bool relu, T* y, int64_t stride) {
    const int64_t at_once = Ceiling(kBlock, std::max<int64_t>(steps, 1));
    Result<T>& last = of_last();
    add([&](int64_t step) { last.Write((step + 1) * at_once); }, results_[current_ ^ 1].sums());
    last.Write(kBlock);
    current_ ^= 1;
    of_last().Start(rows, columns, bias, relu, y, stride);
  }

 private:
  Result<T>& of_last() { return results_[current_]; }
  Result<T> results_[2];
  int current_ = 0;
};

// Cuts `count` units of work into equal parts for the threads, and calls work(first, last) for each.
template <class Work>
void InParts(int64_t count, const Threads& threads, const Work& work) {
  const int64_t parts = std::min<int64_t>(count, threads.count * kTasksPerThread);
  threads.run(parts, [&](int64_t part) {
    const FlushDenormals flush;
    work(count * part / parts, count * (part + 1) / parts);
  });
}

// The sum of at least two slices' sums by the balanced tree; these are changed.
inline void AddSlices(int64_t slices, float* of_slices, float* sums) {
  int64_t step = 1;
  const auto add = [&](const float* left, float* to) {
    for (int64_t n = 0; n < kSums; n += kTileLanes) {
      _mm512_store_ps(to + n, _mm512_add_ps(_mm512_load_ps(left + n), _mm512_load_ps(left + step * kSums + n)));
    }
  };
  for (; 2 * step < slices; step *= 2) {
    for (int64_t i = 0; i + step < slices; i += 2 * step) add(of_slices + i * kSums, of_slices + i * kSums);
  }
  add(of_slices, sums);
}

// The panels that a task multiplies, of a matrix [samples, columns].
template <class T>
struct Panels {
  Panels(const T* values, int64_t columns, int64_t panels, int64_t part, int64_t parts)
      : columns(columns),
        first(panels * part / parts),
        count(panels * (part + 1) / parts - first),
        values_(values + first * kBlock),
        width_(std::min(columns - first * kBlock, count * kBlock)) {}

  // Packs steps of so many samples, those that there are, from `sample` on: [panel, step].
  void Pack(int64_t sample, int64_t samples, int64_t steps, BFloat16* to) const {
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t at = step * kTileElements;
      PackPairs<kPieces<T>>(values_ + (sample + at) * columns, columns, samples - at, width_, steps * kPieces<T> * kPair, to + step * kPieces<T> * kPair);
    }
  }

  const int64_t columns, first, count;

 private:
  const T* values_;
  int64_t width_;
};

}  // namespace

// Panels of 32 columns, of the right matrix; a panel has the same number of steps as a block of the left one.
template <class T>
int64_t PackedSize(int64_t depth, int64_t columns) {
  return Ceiling(columns, kBlock) * Ceiling(depth, kTileElements) * kPieces<T> * kPair;
}

// Some panels of a matrix, as `Pack` packs it.
template <class T, class From>
void PackPanels(int64_t depth, int64_t columns, const From* matrix, bool transposed, int64_t begin, int64_t end, BFloat16* to) {
  const int64_t steps = Ceiling(depth, kTileElements), size = kPieces<T> * kPair, first = begin * kBlock, last = std::min(end * kBlock, columns);
  for (int64_t panel = begin; transposed && panel < end; ++panel, to += steps * size) {
    PackRows<kPieces<T>>(matrix + panel * kBlock * depth, depth, columns - panel * kBlock, depth, to);
    Transpose(2 * kPieces<T> * steps, to);
  }
  for (int64_t step = 0; !transposed && step < steps; ++step, to += size) {
    const int64_t row = step * kTileElements;
    PackPairs<kPieces<T>>(matrix + row * columns + first, columns, depth - row, last - first, steps * size, to);
  }
}

template <class T, class From>
void Pack(int64_t depth, int64_t columns, const From* matrix, bool transposed, BFloat16* packed, const Threads& threads) {
  const int64_t panels = Ceiling(columns, kBlock), panel_size = PackedSize<T>(depth, kBlock);
  InParts(panels, threads, [&](int64_t begin, int64_t end) {
    PackPanels<T>(depth, columns, matrix, transposed, begin, end, packed + begin * panel_size);
  });
}

template <class T>
void Multiply(const Product<T>& of, const Threads& threads) {
  if (of.rows == 0) return;
  const int64_t panels = Ceiling(of.columns, kBlock), steps = Ceiling(of.depth, kTileElements), panel_size = steps * kPieces<T> * kPair;
  const int64_t blocks = Ceiling(of.rows, kBlock), at_once = of.packed ? std::clamp<int64_t>(blocks / threads.count, 1, kBlocksAtOnce) : blocks;
  const int64_t groups = Ceiling(blocks, at_once);
  const auto pack = [&](int64_t first, int64_t last, BFloat16* to) {
    for (int64_t row = first * kBlock; row < std::min(last * kBlock, of.rows); row += kBlock, to += panel_size) {
      PackRows<kPieces<T>>(of.x + row * of.depth, of.depth, of.rows - row, of.depth, to);
    }
  };
  // Where the rows do not suffice for all threads, these divide the panels, and the rows are packed before.
  const int64_t divided = groups >= threads.count ? 1 : std::min(panels, Ceiling(threads.count * kTasksPerThread, groups));
  static thread_local Buffer<BFloat16> of_all;
  BFloat16* all = divided > 1 ? of_all.Of(blocks * panel_size) : nullptr;
  if (all) InParts(blocks, threads, [&](int64_t first, int64_t last) { pack(first, last, all + first * panel_size); });
  threads.run(groups * divided, [&](int64_t task) {
    const FlushDenormals flush;
    const Tiles tiles;
    const int64_t first = task / divided * at_once, last = std::min(first + at_once, blocks), part = task % divided;
    static thread_local Buffer<BFloat16> of_rows, of_panels;
    BFloat16* rows = all ? all + first * panel_size : of_rows.Of(at_once * panel_size);
    if (!all) pack(first, last, rows);
    Results<T> results;
    const bool few = UseFewTiles();
    const int64_t begin = panels * part / divided, end = panels * (part + 1) / divided;
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t column = panel * kBlock, turn = (panel - begin) % kPanelsAtOnce;
      const BFloat16* right = of.packed + panel * panel_size;
      if (!of.packed) {
        BFloat16* some = of_panels.Of(kPanelsAtOnce * panel_size);
        if (turn == 0) PackPanels<T>(of.depth, of.columns, of.matrix, of.transposed, panel, std::min(panel + kPanelsAtOnce, end), some);
        right = some + turn * panel_size;
      }
      for (int64_t block = first; block < last; ++block) {
        const int64_t row = block * kBlock;
        const auto add = [&](const auto& beside, float* sums) {
          SumBlock<kPieces<T>>(few, of.rows - row, of.columns - column, rows + (block - first) * panel_size, right, steps, beside, nullptr, sums);
        };
        results.Next(steps, add, std::min(kBlock, of.rows - row), of.columns - column, of.bias ? of.bias + column : nullptr, of.relu,
                     of.y + row * of.columns + column, of.columns);
      }
    }
  });
}

template <class T>
void SumProducts(const KernelGradient<T>& of, const Threads& threads) {
  if (of.samples == 0) return std::fill(of.gradient, of.gradient + of.inputs * of.outputs, 0.0f);
  constexpr int64_t kSize = kPieces<T> * kPair;
  const int64_t left_panels = Ceiling(of.inputs, kBlock), right_panels = Ceiling(of.outputs, kBlock), all_steps = Ceiling(of.samples, kTileElements);
  // A task packs its own panels. The left ones take longer, so they are divided first.
  int64_t lefts = Ceiling(left_panels, kSide), rights = Ceiling(right_panels, kSide);
  while (lefts * rights < threads.count && lefts < left_panels) ++lefts;
  while (lefts * rights < threads.count && rights < right_panels) ++rights;
  const auto packed_by_task = [&] { return (Ceiling(left_panels, lefts) + Ceiling(right_panels, rights)) * all_steps * of.slices * kSize; };
  while (of.slices > 1 && packed_by_task() > kMostPacked && lefts < left_panels) ++lefts;
  while (of.slices > 1 && packed_by_task() > kMostPacked && rights < right_panels) ++rights;
  threads.run(lefts * rights, [&](int64_t task) {
    const FlushDenormals flush;
    const Tiles tiles;
    const int64_t i = task / rights, j = task % rights;
    const Panels<T> left(of.x, of.inputs, left_panels, i, lefts), right(of.upstream, of.outputs, right_panels, j, rights);
    const int64_t fitting = kPackedAtOnce / (kSize * (left.count + right.count)), blocks = left.count * right.count;
    const int64_t at_once = of.slices > 1 ? all_steps : std::clamp<int64_t>(fitting, 1, all_steps), packed = of.slices * at_once;
    static thread_local Buffer<BFloat16> of_left, of_right;
    static thread_local Buffer<float> of_sums;
    BFloat16 *packed_left = of_left.Of(left.count * packed * kSize), *packed_right = of_right.Of(right.count * packed * kSize);
    float* partial = of_sums.Of((of.slices > 1 ? of.slices : blocks) * kSums);
    Results<float> results;
    for (int64_t begin = 0; begin < all_steps; begin += at_once) {
      const int64_t steps = std::min(at_once, all_steps - begin), samples = of.samples - begin * kTileElements;
      for (int64_t slice = 0; slice < of.slices; ++slice) {
        const int64_t sample = slice * of.samples + begin * kTileElements;
        BFloat16* to = packed_left + slice * left.count * steps * kSize;
        left.Pack(sample, samples, steps, to);
        Transpose(2 * kPieces<T> * left.count * steps, to);
        right.Pack(sample, samples, steps, packed_right + slice * right.count * steps * kSize);
      }
      const bool few = UseFewTiles();
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t row = block / right.count, column = block % right.count;
        const int64_t input = (left.first + row) * kBlock, output = (right.first + column) * kBlock;
        const BFloat16 *from = packed_left + row * steps * kSize, *by = packed_right + column * steps * kSize;
        float* before = partial + (of.slices > 1 ? 0 : block * kSums);
        const auto add = [&](const auto& beside, float* sums) {
          const auto sum = [&](int64_t slice, const auto& work, const float* first, float* to) {
            SumBlock<kPieces<T>>(few, of.inputs - input, of.outputs - output, from + slice * left.count * steps * kSize,
                                 by + slice * right.count * steps * kSize, steps, work, first, to);
          };
          if (of.slices == 1) return sum(0, beside, begin > 0 ? before : nullptr, sums);
          for (int64_t slice = 0; slice < of.slices; ++slice) {
            sum(slice, [&](int64_t step) { beside(slice * steps + step); }, nullptr, partial + slice * kSums);
          }
          AddSlices(of.slices, partial, sums);
        };
        if (begin + steps == all_steps) {
          results.Next(of.slices * steps, add, std::min(kBlock, of.inputs - input), of.outputs - output, nullptr, false,
                       of.gradient + input * of.outputs + output, of.outputs);
        } else {
          add([](int64_t) {}, before);
        }
      }
    }
  });
}

#else

template <class T>
int64_t PackedSize(int64_t, int64_t) { return 0; }
template <class T, class From>
void Pack(int64_t, int64_t, const From*, bool, BFloat16*, const Threads&) {}
template <class T>
void Multiply(const Product<T>&, const Threads&) {}
template <class T>
void SumProducts(const KernelGradient<T>&, const Threads&) {}

#endif

#define INSTANTIATE(T)                                          \
  template int64_t PackedSize<T>(int64_t, int64_t);             \
  template void Multiply<T>(const Product<T>&, const Threads&); \
  template void SumProducts<T>(const KernelGradient<T>&, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
#undef INSTANTIATE
template void Pack<float>(int64_t, int64_t, const float*, bool, BFloat16*, const Threads&);
template void Pack<BFloat16>(int64_t, int64_t, const float*, bool, BFloat16*, const Threads&);

}  // namespace dlrm
