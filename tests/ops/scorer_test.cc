// Tests of the scorer: its layers against sums in double, and whole models, whose memory accesses a sanitizer checks. The models' scores are
// compared in tests/model/test_native_scorer.py.
#include "scorer.h"

#include <cstring>
#include <thread>

#include "check.h"
#include "matrix.h"
#include "tiles.h"

namespace {

double Rounded(float x) {
  dlrm::BFloat16 value;
  dlrm::Narrow(x, &value);
  return dlrm::Widened(value);
}

void TestLayer(int64_t inputs, int64_t outputs, bool relu, bool bfloat16) {
  const std::vector<float> kernel = Drawn<float>(inputs * outputs, 1), bias = Drawn<float>(outputs, 2);
  const dlrm::PackedLayer layer(kernel.data(), relu ? bias.data() : nullptr, inputs, outputs, relu, bfloat16);
  const auto used = [&](float x) { return bfloat16 ? Rounded(x) : x; };
  std::vector<float> alone;
  for (const int64_t rows : {1, 2, 3, 11, 12, 13, 30, 34, 55}) {
    const int64_t x_stride = inputs + 3, y_stride = outputs + 1;
    std::vector<float> x = Drawn<float>(rows * x_stride - 3, 3), y(rows * y_stride, 7.0f);
    x[(rows - 1) * x_stride] = kNan;
    std::vector<dlrm::BFloat16> rounded(bfloat16 ? dlrm::PackedLayer::RoundedSize(rows, inputs) : 0);
    layer.Apply(x.data(), x_stride, rows, y.data(), y_stride, rounded.data());
#ifdef DLRM_TILES
    std::vector<float> by_few(y.size(), 7.0f);
    dlrm::tile_use = dlrm::TileUse::kFew;
    layer.Apply(x.data(), x_stride, rows, by_few.data(), y_stride, rounded.data());
    dlrm::tile_use = dlrm::TileUse::kAll;
    CHECK(std::memcmp(y.data(), by_few.data(), y.size() * sizeof(float)) == 0);
#endif
    if (rows == 2) alone.assign(y.begin(), y.begin() + outputs);
    CHECK(alone.empty() || std::memcmp(alone.data(), y.data(), outputs * sizeof(float)) == 0);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < outputs; ++j) {
        double sum = relu ? bias[j] : 0;
        for (int64_t k = 0; k < inputs; ++k) sum += static_cast<double>(used(x[i * x_stride + k])) * used(kernel[k * outputs + j]);
        CHECK(Near(y[i * y_stride + j], relu && sum <= 0 ? 0 : sum, inputs));
      }
      CHECK(y[i * y_stride + outputs] == 7.0f);
    }
  }
}

constexpr int64_t kTableRows = 10;

// A table in chunks of 4 rows and 3 columns; chunks of int8 rows have all columns.
struct Table {
  Table(int64_t width, dlrm::RowKind kind, int hotness) : chunk_width(kind == dlrm::kInt8Rows ? width : 3), scales(Drawn<float>(2 * kTableRows, 5)) {
    const int64_t bytes = kind == dlrm::kFloat32Rows ? 4 : kind == dlrm::kInt8Rows ? 1 : 2;
    for (int64_t i = 0; i < 3 * ((width + chunk_width - 1) / chunk_width); ++i) {
      std::vector<char> chunk(4 * chunk_width * bytes, 0);
      for (int64_t at = 0; at < 4 * chunk_width; ++at) {
        const float value = static_cast<float>(i + at);
        if (bytes == 1) chunk[at] = static_cast<char>(at);
        if (kind == dlrm::kFloat32Rows) std::memcpy(&chunk[4 * at], &value, 4);
      }
      chunks.push_back(chunk);
    }
    for (const auto& chunk : chunks) pointers.push_back(chunk.data());
    feature = {pointers.data(), scales.data(), kTableRows, width, 4, chunk_width, kind, hotness, hotness % 2};
  }

  int64_t chunk_width;
  std::vector<float> scales;
  std::vector<std::vector<char>> chunks;
  std::vector<const void*> pointers;
  dlrm::ScorerFeature feature;
};

void TestModel(dlrm::Interactions interaction, int64_t numerical, int64_t width, bool bfloat16) {
  std::vector<Table> tables;
  tables.reserve(4);
  for (const auto kind : {dlrm::kFloat32Rows, dlrm::kBFloat16Rows, dlrm::kFloat16Rows, dlrm::kInt8Rows}) {
    tables.emplace_back(width, kind, tables.size() == 1 ? 1 : 3);
  }
  std::vector<dlrm::ScorerFeature> features;
  for (const Table& table : tables) features.push_back(table.feature);
  const int64_t vectors = 4 + (numerical > 0), dots = vectors * (vectors - 1) / 2;
  const int64_t joined = interaction == dlrm::kDot ? (numerical ? width : 0) + dots : vectors * width;
  std::vector<std::vector<int64_t>> sizes;
  if (numerical) sizes.push_back({numerical, width});
  if (interaction == dlrm::kCross) sizes.insert(sizes.end(), {{joined, 2}, {2, joined}});
  sizes.insert(sizes.end(), {{joined, 70}, {70, 1}});
  std::vector<std::vector<float>> kernels;
  std::vector<dlrm::ScorerLayer> layers;
  for (const auto& size : sizes) kernels.push_back(Drawn<float>(size[0] * size[1], 9));
  for (size_t i = 0; i < sizes.size(); ++i) layers.push_back({kernels[i].data(), nullptr, sizes[i][0], sizes[i][1], i + 1 < sizes.size()});
  dlrm::ScorerShape shape{};
  shape.numerical = numerical, shape.features = 4, shape.bottom = numerical > 0, shape.cross = interaction == dlrm::kCross ? 2 : 0, shape.top = 2;
  shape.interaction = interaction, shape.bfloat16 = bfloat16;
  const dlrm::Scorer scorer(shape, features.data(), layers.data(), 3), alone(shape, features.data(), layers.data(), 1);
  for (const int64_t samples : {0, 1, 5, 130, 3000}) {
    const std::vector<float> values = Drawn<float>(samples * numerical, 4);
    std::vector<int32_t> ids;
    ids.reserve(samples * 10);
    for (int64_t i = 0; i < samples * 10; ++i) ids.push_back(i % 10 == 3 ? i / 10 % 10 : (i * 7) % 11 - 1);
    std::vector<float> logits(samples), others(samples);
    CHECK(scorer.Score(samples, values.data(), ids.data(), logits.data()) == -1);
    CHECK(alone.Score(samples, values.data(), ids.data(), others.data()) == -1);
    for (int64_t i = 0; i < samples; ++i) CHECK(Same(logits[i], others[i]) && std::isfinite(logits[i]));
    for (const int64_t place : {0, 3, 9}) {
      if (samples == 0) continue;
      std::vector<int32_t> bad = ids;
      bad[10 * (samples - 1) + place] = place == 3 ? -1 : 10;
      CHECK(scorer.Score(samples, values.data(), bad.data(), logits.data()) == 10 * (samples - 1) + place);
    }
  }
}

// One sample of a model whose layers helpers divide, again and again: by one caller, and by two, who send each other's helpers away.
void TestHelped() {
  Table table(2, dlrm::kFloat32Rows, 1);
  const int64_t wide = 640;
  const std::vector<float> first = Drawn<float>(2 * wide, 1), second = Drawn<float>(wide * wide, 2), third = Drawn<float>(wide, 3);
  const dlrm::ScorerLayer layers[] = {{first.data(), nullptr, 2, wide, 1}, {second.data(), nullptr, wide, wide, 1}, {third.data(), nullptr, wide, 1, 0}};
  dlrm::ScorerShape shape{};
  shape.features = 1, shape.top = 3, shape.interaction = dlrm::kConcatenation;
  const dlrm::Scorer helped(shape, &table.feature, layers, 3), alone(shape, &table.feature, layers, 1);
  const auto call = [&](int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      const int64_t samples = 1 + turn % 3;
      const int32_t ids[] = {turn % 10, (turn + 1) % 10, (turn + 2) % 10};
      float expected[3], found[3];
      CHECK(alone.Score(samples, nullptr, ids, expected) == -1 && helped.Score(samples, nullptr, ids, found) == -1);
      for (int64_t i = 0; i < samples; ++i) CHECK(Same(expected[i], found[i]));
    }
  };
  call(400);
  std::thread other(call, 200);
  call(200);
  other.join();
}

}  // namespace

void TestScorer() {
  TestHelped();
  for (const bool relu : {false, true}) {
    for (const int64_t inputs : {1, 13, 256, 257, 700}) {
      for (const int64_t outputs : {1, 16, 33}) {
        for (const bool bfloat16 : {false, true}) TestLayer(inputs, outputs, relu, bfloat16);
      }
    }
  }
  for (const auto interaction : {dlrm::kDot, dlrm::kConcatenation, dlrm::kCross}) {
    for (const int64_t width : {1, 7}) {
      for (const bool bfloat16 : {false, true}) {
        TestModel(interaction, 0, width, bfloat16);
        TestModel(interaction, 5, width, bfloat16);
      }
    }
  }
}
