// Tests of the dense layers' passes, and of the order of columns in the workers' exchange.
#include "check.h"
#include "columns.h"
#include "dense.h"
#include "dense_update.h"

#include <algorithm>

namespace {

using dlrm::BFloat16;
using dlrm::Float16;

const float kSpecial[] = {kNan, -kNan, kInfinity, -kInfinity, 0.0f, -0.0f, 1.0f, -2.0f, 65536.0f, 6e-8f};

// Returns one word of the generator for given key, stream and count, computed with 64-bit products.
uint32_t Word(uint32_t key, uint64_t stream, uint64_t count, int word) {
  uint32_t state[4] = {static_cast<uint32_t>(count), static_cast<uint32_t>(count >> 32), static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  uint32_t keys[2] = {key, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * state[0], right = uint64_t{0xCD9E8D57} * state[2];
    const uint32_t next[4] = {static_cast<uint32_t>(right >> 32) ^ state[1] ^ keys[0], static_cast<uint32_t>(right),
                              static_cast<uint32_t>(left >> 32) ^ state[3] ^ keys[1], static_cast<uint32_t>(left)};
    std::copy(next, next + 4, state);
    keys[0] += 0x9E3779B9, keys[1] += 0xBB67AE85;
  }
  return state[word];
}

// `y` is relu(x + 1/4).
template <class T>
void TestDropout(int64_t rows, int64_t columns, const std::vector<T>& x, const std::vector<T>& y, const std::vector<T>& upstream) {
  const dlrm::Dropout dropout{0xfedcba98, 0x60000000, 0x123456789, 0xfffffff0, 1.6f};
  const std::vector<float> bias(columns, 0.25f);
  std::vector<T> dropped(x.size()), gradient(x.size());
  std::vector<float> by_bias(columns);
  dlrm::BiasReluDropout(rows, columns, x.data(), bias.data(), dropout, dropped.data(), kThreeThreads);
  dlrm::ReluGradient(1, rows, columns, upstream.data(), dropped.data(), dropout.scale, gradient.data(), by_bias.data(), kThreeThreads);
  const float scale = dlrm::Widened(Narrowed<T>(1.6f));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < columns; ++i) {
      const int64_t at = row * columns + i;
      const bool kept = Word(dropout.key, dropout.stream, (dropout.first_row + row) * ((columns + 3) / 4) + i / 4, i % 4) >= dropout.threshold;
      const float value = dlrm::Widened(dropped[at]), scaled = dlrm::Widened(Narrowed<T>(dlrm::Widened(upstream[at]) * scale));
      CHECK(kept ? Same(value, dlrm::Widened(Narrowed<T>(dlrm::Widened(y[at]) * scale))) : value == 0 && std::signbit(value));
      CHECK(!kept || value != 0 || !std::signbit(value));
      CHECK(Same(dlrm::Widened(gradient[at]), kept ? scaled * (dlrm::Widened(y[at]) > 0) : 0.0f));
    }
  }
}

template <class T>
void TestLayer(int64_t rows, int64_t columns) {
  std::vector<T> x = Drawn<T>(rows * columns, 0), upstream = Drawn<T>(rows * columns, 1);
  for (size_t i = 0; i < x.size(); i += 3) x[i] = Narrowed<T>(kSpecial[i / 3 % 10]), upstream[i] = Narrowed<T>(kSpecial[i / 30 % 10]);
  const std::vector<float> bias(columns, 0.25f);
  std::vector<T> y(x.size()), gradient(x.size());
  std::vector<float> by_bias(columns, 7.0f);
  dlrm::BiasRelu(rows, columns, x.data(), bias.data(), y.data(), kThreeThreads);
  dlrm::ReluGradient(1, rows, columns, upstream.data(), y.data(), 1, gradient.data(), by_bias.data(), kThreeThreads);
  std::vector<double> sums(columns);
  for (size_t i = 0; i < x.size(); ++i) {
    const float sum = dlrm::Widened(x[i]) + 0.25f, given = dlrm::Widened(upstream[i]);
    CHECK(Same(dlrm::Widened(y[i]), dlrm::Widened(Narrowed<T>(std::isnan(sum) ? sum : std::max(sum, 0.0f)))));
    const float kept = given * (dlrm::Widened(y[i]) > 0);
    CHECK(Same(dlrm::Widened(gradient[i]), kept));
    CHECK(dlrm::Widened(y[i]) > 0 || std::isnan(kept) || !std::signbit(dlrm::Widened(gradient[i])));
    sums[i % columns] += kept;
  }
  for (int64_t i = 0; i < columns; ++i) CHECK(Near(by_bias[i], sums[i], rows));

  TestDropout<T>(rows, columns, x, y, upstream);
  std::vector<T> in_place = x;
  dlrm::BiasRelu(rows, columns, in_place.data(), bias.data(), in_place.data(), kThreeThreads);
  for (size_t i = 0; i < x.size(); ++i) CHECK(Same(dlrm::Widened(in_place[i]), dlrm::Widened(y[i])));
}

template <class T>
void TestSums(int64_t size, int count) {
  std::vector<std::vector<T>> parts;
  std::vector<const T*> first;
  for (int i = 0; i < count; ++i) parts.push_back(Drawn<T>(size, i));
  for (const auto& part : parts) first.push_back(part.data());
  std::vector<float> out(size);
  dlrm::SumInPairs(size, first, out.data(), kThreeThreads);
  for (int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (const auto& part : parts) sum += dlrm::Widened(part[i]);
    CHECK(Near(out[i], sum, count));
  }
}

template <class T>
void TestDenseOf() {
  const int64_t kShapes[][2] = {{0, 0}, {0, 5}, {5, 0}, {1, 1}, {65, 33}, {3, 700}, {130, 257}, {2100, 512}};
  for (const auto& shape : kShapes) TestLayer<T>(shape[0], shape[1]);
  for (const int count : {1, 2, 3, 8}) {
    for (const int64_t size : {0, 1, 255, 16384 + 257}) TestSums<T>(size, count);
  }
}

}  // namespace

void TestDense() {
  TestDenseOf<float>();
  TestDenseOf<BFloat16>();
  TestDenseOf<Float16>();
}

// Updates weights both in place and into other memory, whatever the number of tasks; the numbers are such that nothing is rounded.
void TestDenseUpdates() {
  for (const int64_t count : {0, 1, 17, 100003}) {
    std::vector<float> gradient(count), old(count), slot(count, 2.0f);
    for (int64_t i = 0; i < count; ++i) old[i] = static_cast<float>(i), gradient[i] = static_cast<float>(i % 7);
    std::vector<float> in_place = old, of_place = slot, after(count), slot_after(count);
    const auto run = [&](const char* rule, std::vector<float> constants) {
      in_place = old, of_place = slot;
      dlrm::UpdateDense({{count, gradient.data(), {old.data(), after.data()}, {{slot.data(), slot_after.data()}}},
                         {count, gradient.data(), {in_place.data(), in_place.data()}, {{of_place.data(), of_place.data()}}}},
                        {rule, {0.5f}, std::move(constants), 1}, kThreeThreads);
      CHECK(in_place == after);
    };
    run("sgd", {});
    for (int64_t i = 0; i < count; ++i) CHECK(after[i] == i - 0.5f * (i % 7) && old[i] == i);
    run("momentum", {0.25f});
    for (int64_t i = 0; i < count; ++i) CHECK(slot_after[i] == 0.5f - 0.5f * (i % 7) && after[i] == i + slot_after[i] && of_place[i] == slot_after[i]);
    run("rmsprop", {2.0f, 0.0f, 0.0f, 0.0f});
    for (int64_t i = 0; i < count; ++i) CHECK(slot_after[i] == 4 && after[i] == i - 0.25f * (i % 7) && slot[i] == 2);
  }
  CHECK(dlrm::DenseFactsOf("ftrl") == nullptr && dlrm::DenseFactsOf("adam")->slots == 2);
}

void TestColumns() {
  for (const int64_t samples : {0, 1, 200}) {
    // Two blocks of 6 and 4 bytes per sample: bytes 4 to 10 and 0 to 4 of its 12 bytes; bytes 10 and 11 stay unchanged.
    std::vector<char> blocks(10 * samples), vectors(12 * samples, 'x'), back(10 * samples);
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<char>(i * 7);
    const auto segments = [samples](std::vector<char>& flat) -> std::vector<dlrm::Segment> {
      return {{flat.data(), 6, 4, 6}, {flat.data() + 6 * samples, 4, 0, 4}};
    };
    dlrm::BlocksToSamples(segments(blocks), samples, vectors.data(), 12, kThreeThreads);
    std::vector<const char*> starts;
    for (int64_t i = 0; i < samples; ++i) {
      starts.push_back(vectors.data() + 12 * i);
      for (int k = 0; k < 12; ++k) {
        CHECK(starts[i][k] == (k < 4 ? blocks[6 * samples + 4 * i + k] : k < 10 ? blocks[6 * i + k - 4] : 'x'));
      }
    }
    dlrm::SamplesToBlocks(segments(back), starts, kThreeThreads);
    CHECK(back == blocks);
  }
}
