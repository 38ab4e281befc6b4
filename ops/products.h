// The matrix products of a dense layer's training step by the processor's matrix tiles (Intel AMX), which multiply bfloat16 numbers.
//
// float32 numbers are multiplied as the sum of three bfloat16 numbers each, x = x1 + x2 + x3, which is exact: x1 is x rounded, x2 the rest rounded, x3
// the rest of it. x y is then the sum of the six products x_i y_j with i + j <= 4, added in float32. What is left out is below 2^-24 of |x y|, less than
// a float32 product's own rounding (Henry, Tang and Heinecke, "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision
// Computations", arXiv:1904.06376). Infinity, and numbers that bfloat16 rounds to it (from 3.39e38 on), become NaN. Parts of numbers and of products
// below 2^-126 count as zero, so products below 2^-102 are less exact.
//
// An output's bits depend on its own row and column only: not on the number of rows, nor on the threads. Call these functions only if HasTiles().
#ifndef DLRM_OPS_PRODUCTS_H_
#define DLRM_OPS_PRODUCTS_H_

#include <cstdint>

#include "elements.h"
#include "parallel.h"

namespace dlrm {

// A matrix as `Multiply` reads it, prepared once for many products: [depth, columns], or the transposed one of [columns, depth]. T: the type of the numbers
// that it multiplies; in bfloat16 float32 numbers are rounded.
template <class T>
int64_t PackedSize(int64_t depth, int64_t columns);
template <class T, class From>
void Pack(int64_t depth, int64_t columns, const From* matrix, bool transposed, BFloat16* packed, const Threads& threads);

// y = x M, or relu(x M + bias): x [rows, depth], M [depth, columns], y [rows, columns]. The bias [columns] may be null. M is packed, or, for products
// with a few rows, as `Pack` takes it: then each panel is packed where it is multiplied, and stays in the cache. The bits are the same.
template <class T>
struct Product {
  int64_t rows, depth, columns;
  const T* x;
  const BFloat16* packed;
  const float* bias;
  bool relu;  // keeps NaN
  T* y;
  const float* matrix = nullptr;  // read where `packed` is null
  bool transposed = false;        // of `matrix`
};
template <class T>
void Multiply(const Product<T>& product, const Threads& threads);

// gradient [inputs, outputs] = x^T upstream, x [slices * samples, inputs], upstream [slices * samples, outputs]: a sum for each slice over its samples in
// a fixed order, then the sum of the slices by the balanced tree ((0 + 1) + (2 + 3)) + ...
template <class T>
struct KernelGradient {
  int64_t slices, samples, inputs, outputs;
  const T *x, *upstream;
  float* gradient;
};
template <class T>
void SumProducts(const KernelGradient<T>& sum, const Threads& threads);

}  // namespace dlrm

#endif  // DLRM_OPS_PRODUCTS_H_
