// Helpers of the kernels' tests. The tests use no TensorFlow, so that sanitizers check all code: scripts/sanitize, ops/build --compilers.
#ifndef DLRM_TESTS_OPS_CHECK_H_
#define DLRM_TESTS_OPS_CHECK_H_

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "elements.h"
#include "parallel.h"

inline int failures = 0;

#define CHECK(condition)                                                                           \
  do {                                                                                             \
    if (!(condition) && ++failures <= 20) std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition); \
  } while (false)

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

// Three threads, each of which takes the next piece of work.
inline const dlrm::Threads kThreeThreads{3, [](int64_t count, const std::function<void(int64_t)>& work) {
                                           std::atomic<int64_t> next{0};
                                           std::vector<std::thread> threads;
                                           for (int i = 0; i < 3; ++i) {
                                             threads.emplace_back([&] {
                                               for (int64_t task; (task = next++) < count;) work(task);
                                             });
                                           }
                                           for (std::thread& thread : threads) thread.join();
                                         }};

inline bool Same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

template <class T>
T Narrowed(float x) {
  T out;
  dlrm::Narrow(x, &out);
  return out;
}

// Draws numbers of about 1; one in five is zero. The vector has no spare capacity, so that a sanitizer sees accesses beyond its end.
template <class T>
std::vector<T> Drawn(int64_t size, int seed) {
  std::mt19937 bits(seed);
  std::vector<T> values;
  values.reserve(size);
  for (int64_t i = 0; i < size; ++i) values.push_back(Narrowed<T>(bits() % 5 == 0 ? 0.0f : static_cast<int32_t>(bits()) * 0x1p-30f));
  return values;
}

template <class T>
constexpr double kRounding = std::is_same_v<T, float> ? 0x1p-22 : std::is_same_v<T, dlrm::BFloat16> ? 0x1p-8 : 0x1p-11;

// Returns true if a value is as close as a sum of so many terms of about 1 in float is, once rounded to T.
template <class T>
bool Near(T found, double expected, int64_t terms) {
  const double value = dlrm::Widened(found);
  return Same(value, expected) || std::abs(value - expected) <= kRounding<T> * std::abs(expected) + static_cast<double>(terms) * 0x1p-18;
}

void TestElements();
void TestPace();
void TestRows();
void TestDense();
void TestDenseUpdates();
void TestBatchNorm();
void TestColumns();
void TestInteraction();
void TestProducts();
void TestFieldsAndGates();
void TestFusions();
void TestCrossLayers();
void TestScorer();
void TestPlaceMap();
void TestRowNumbers();

#endif  // DLRM_TESTS_OPS_CHECK_H_
