#include "emulated_tiles.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__linux__)
#include <immintrin.h>

#include <cstring>

namespace emulated {
namespace {

constexpr int kRows = 16, kLanes = 16;

thread_local float tiles[8][kRows][kLanes];

void Zero(int tile) { std::memset(tiles[tile], 0, sizeof(tiles[tile])); }

void Load(int tile, const void* from, int64_t stride) {
  for (int i = 0; i < kRows; ++i) std::memcpy(tiles[tile][i], static_cast<const char*>(from) + i * stride, sizeof(tiles[tile][i]));
}

void StoreTile(int tile, void* to, int64_t stride) {
  for (int i = 0; i < kRows; ++i) std::memcpy(static_cast<char*>(to) + i * stride, tiles[tile][i], sizeof(tiles[tile][i]));
}

float Element(float pair, int which) {
  uint32_t bits;
  std::memcpy(&bits, &pair, 4);
  bits = which ? bits & 0xffff0000 : bits << 16;
  std::memcpy(&pair, &bits, 4);
  return pair;
}

// Sums the products of the first and of the second numbers of the pairs apart, as the instruction does, then adds both sums.
void MultiplyPairs(int sums, int left, int right) {
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kLanes; ++j) {
      float both[2] = {};
      for (int k = 0; k < kLanes; ++k) {
        for (int which = 0; which < 2; ++which) both[which] += Element(tiles[left][i][k], which) * Element(tiles[right][k][j], which);
      }
      tiles[sums][i][j] += both[0] + both[1];
    }
  }
}

}  // namespace
}  // namespace emulated

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_dpbf16ps
#undef _tile_storeconfig
#undef _tile_loadconfig
#define _tile_zero(tile) ::emulated::Zero(tile)
#define _tile_loadd(tile, from, stride) ::emulated::Load(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) ::emulated::Load(tile, from, stride)
#define _tile_stored(tile, to, stride) ::emulated::StoreTile(tile, to, stride)
#define _tile_dpbf16ps(sums, left, right) ::emulated::MultiplyPairs(sums, left, right)
#define _tile_storeconfig(to) std::memset(to, 0, 64)
#define _tile_loadconfig(from) static_cast<void>(from)
#ifndef __AMX_BF16__
#define __AMX_BF16__ 1
#endif
#define dlrm dlrm_by_emulated_tiles  // a second copy of the code, apart from the library's own
#include "interaction_amx.cc"
#include "products.cc"

namespace emulated {

bool HasTiles() { return true; }

void UseTiles(int way) { dlrm::tile_use = static_cast<dlrm::TileUse>(way); }

void Interact(int64_t samples, int vectors, int width, const uint16_t* bottom, const uint16_t* embeddings, uint16_t* out) {
  using T = dlrm::BFloat16;
  dlrm::InteractByTiles({samples, vectors, width}, reinterpret_cast<const T*>(bottom), reinterpret_cast<const T*>(embeddings),
                        reinterpret_cast<T*>(out), dlrm::kCallingThread);
}

void InteractGradient(int64_t samples, int vectors, int width, const uint16_t* bottom, const uint16_t* embeddings, const uint16_t* upstream,
                      uint16_t* bottom_gradient, uint16_t* embeddings_gradient) {
  using T = dlrm::BFloat16;
  dlrm::InteractGradientByTiles({samples, vectors, width}, reinterpret_cast<const T*>(bottom), reinterpret_cast<const T*>(embeddings),
                                reinterpret_cast<const T*>(upstream), reinterpret_cast<T*>(bottom_gradient), reinterpret_cast<T*>(embeddings_gradient),
                                dlrm::kCallingThread);
}

namespace {

template <class T>
void MultiplyBy(bool packs_itself, int64_t rows, int64_t depth, int64_t columns, const void* x, const float* matrix, bool transposed, const float* bias,
                bool relu, void* y) {
  struct alignas(64) Line {
    char bytes[64];
  };
  std::vector<Line> packed(dlrm::PackedSize<T>(depth, columns) * sizeof(dlrm::BFloat16) / sizeof(Line));
  auto* of_matrix = reinterpret_cast<dlrm::BFloat16*>(packed.data());
  dlrm::Pack<T>(depth, columns, matrix, transposed, of_matrix, dlrm::kCallingThread);
  dlrm::Product<T> product = {rows, depth, columns, static_cast<const T*>(x), of_matrix, bias, relu, static_cast<T*>(y), matrix, transposed};
  if (packs_itself) product.packed = nullptr;
  dlrm::Multiply<T>(product, dlrm::kCallingThread);
}

template <class T>
void Sum(int64_t slices, int64_t samples, int64_t inputs, int64_t outputs, const void* x, const void* upstream, float* gradient) {
  dlrm::SumProducts<T>({slices, samples, inputs, outputs, static_cast<const T*>(x), static_cast<const T*>(upstream), gradient}, dlrm::kCallingThread);
}

}  // namespace

void Multiply(bool float32, bool packs_itself, int64_t rows, int64_t depth, int64_t columns, const void* x, const float* matrix, bool transposed,
              const float* bias, bool relu, void* y) {
  const auto multiply = float32 ? MultiplyBy<float> : MultiplyBy<dlrm::BFloat16>;
  multiply(packs_itself, rows, depth, columns, x, matrix, transposed, bias, relu, y);
}

void SumProducts(bool float32, int64_t slices, int64_t samples, int64_t inputs, int64_t outputs, const void* x, const void* upstream, float* gradient) {
  const auto sum = float32 ? Sum<float> : Sum<dlrm::BFloat16>;
  sum(slices, samples, inputs, outputs, x, upstream, gradient);
}

}  // namespace emulated

#else

namespace emulated {

bool HasTiles() { return false; }
void UseTiles(int) {}
void Interact(int64_t, int, int, const uint16_t*, const uint16_t*, uint16_t*) {}
void InteractGradient(int64_t, int, int, const uint16_t*, const uint16_t*, const uint16_t*, uint16_t*, uint16_t*) {}
void Multiply(bool, bool, int64_t, int64_t, int64_t, const void*, const float*, bool, const float*, bool, void*) {}
void SumProducts(bool, int64_t, int64_t, int64_t, int64_t, const void*, const void*, float*) {}

}  // namespace emulated

#endif
