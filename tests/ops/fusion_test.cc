// Tests of the fusion of FinalMLP's streams, against sums in double.
#include "fusion.h"

#include "check.h"

namespace {

template <class T>
void TestFusion(int64_t slices, int64_t samples, int64_t heads, int64_t left, int64_t right) {
  const int64_t all = slices * samples, of_x = heads * left, of_z = heads * right;
  const std::vector<T> x = Drawn<T>(all * of_x, 0), z = Drawn<T>(all * of_z, 1), kernels = Drawn<T>(of_x * right, 2);
  const std::vector<float> linear = Drawn<float>(of_x + of_z, 3), upstream = Drawn<float>(all, 4);
  dlrm::Fusion<T> fusion{all, heads, left, right, x.data(), z.data(), {}, linear.data()};
  for (int64_t head = 0; head < heads; ++head) fusion.kernels.push_back(kernels.data() + head * left * right);
  std::vector<float> logits(all, kNan), by_kernels(of_x * right, kNan), by_linear(of_x + of_z, kNan), by_bias(1, kNan);
  std::vector<T> by_x(x.size()), by_z(z.size());
  dlrm::Fuse(fusion, 0.25f, logits.data(), kThreeThreads);
  dlrm::FusionGradients<T> gradients{by_x.data(), by_z.data(), {}, by_linear.data(), by_bias.data()};
  for (int64_t head = 0; head < heads; ++head) gradients.by_kernels.push_back(by_kernels.data() + head * left * right);
  dlrm::FuseGradient(fusion, upstream.data(), slices, gradients, kThreeThreads);

  const double terms = static_cast<double>(of_x * right + of_x + of_z);
  std::vector<double> of_kernels(by_kernels.size()), of_linear(by_linear.size());
  double of_bias = 0;
  for (int64_t i = 0; i < all; ++i) {
    const auto at_x = [&](int64_t k) { return static_cast<double>(dlrm::Widened(x[i * of_x + k])); };
    const auto at_z = [&](int64_t c) { return static_cast<double>(dlrm::Widened(z[i * of_z + c])); };
    const auto weight = [&](int64_t k, int64_t c) { return static_cast<double>(dlrm::Widened(kernels[k * right + c])); };
    const double above = upstream[i];
    double logit = 0.25;
    for (int64_t k = 0; k < of_x; ++k) {
      double product = linear[k];
      for (int64_t c = 0; c < right; ++c) {
        product += weight(k, c) * at_z(k / left * right + c);
        of_kernels[k * right + c] += above * at_x(k) * at_z(k / left * right + c);
      }
      logit += at_x(k) * product;
      of_linear[k] += above * at_x(k);
      CHECK(Near(by_x[i * of_x + k], above * product, right + 1));
    }
    for (int64_t c = 0; c < of_z; ++c) {
      double product = linear[of_x + c];
      for (int64_t k = 0; k < left; ++k) product += weight(c / right * left + k, c % right) * at_x(c / right * left + k);
      logit += at_z(c) * linear[of_x + c];
      of_linear[of_x + c] += above * at_z(c);
      CHECK(Near(by_z[i * of_z + c], above * product, left + 1));
    }
    CHECK(Near(logits[i], logit, terms));
    of_bias += above;
  }
  for (size_t i = 0; i < by_kernels.size(); ++i) CHECK(Near(by_kernels[i], of_kernels[i], all + 1));
  for (size_t i = 0; i < by_linear.size(); ++i) CHECK(Near(by_linear[i], of_linear[i], all + 1));
  CHECK(Near(by_bias[0], of_bias, all + 1));
}

template <class T>
void TestAll() {
  TestFusion<T>(1, 0, 2, 3, 4);
  TestFusion<T>(3, 1, 1, 1, 1);
  TestFusion<T>(1, 67, 3, 5, 17);
  TestFusion<T>(4, 300, 2, 50, 33);  // by several threads
}

}  // namespace

void TestFusions() {
  TestAll<float>();
  TestAll<dlrm::BFloat16>();
  TestAll<dlrm::Float16>();
}
