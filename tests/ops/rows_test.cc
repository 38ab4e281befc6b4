// Tests of groups of ids, lookups and updates against plain loops.
#include <map>

#include "check.h"
#include "row_lookup.h"
#include "row_update.h"

namespace {

using dlrm::BFloat16;
using dlrm::Float16;
using dlrm::Groups;

std::vector<int32_t> DrawnIds(int64_t size, int64_t rows, int seed) {
  std::mt19937 bits(seed);
  std::vector<int32_t> ids;
  ids.reserve(size);
  for (int64_t i = 0; i < size; ++i) ids.push_back(static_cast<int32_t>(bits() % 3 ? bits() % rows : rows / 2));
  return ids;
}

// Draws the ids of a feature. If its hotness is above 1, a third of the ids are absent, and the first sample has none.
std::vector<int32_t> DrawnIds(int hotness, int64_t batch, int64_t rows, int seed) {
  std::vector<int32_t> ids = DrawnIds(hotness * batch, rows, seed);
  std::mt19937 bits(seed + 1);
  for (int64_t i = 0; hotness > 1 && i < hotness * batch; ++i) {
    if (bits() % 3 == 0 || i % batch == 0) ids[i] = dlrm::kNoId;
  }
  return ids;
}

void TestGroups() {
  struct Features {
    std::vector<int> hotness;
    int64_t batch;
  };
  const std::vector<Features> cases = {{{}, 5}, {{1}, 0}, {{1}, 1}, {{1}, 7}, {{1}, 5000}, {{3}, 0}, {{2}, 1}, {{5, 1, 2}, 100}, {{7, 1}, 9000}};
  for (const Features& of : cases) {
    for (const int64_t rows : {int64_t{1}, int64_t{40}, int64_t{100000}, int64_t{1} << 31}) {  // groups by an array over all keys, and by hashing
      std::vector<std::vector<int32_t>> ids;
      dlrm::TableIds table = {{}, rows};
      std::map<int32_t, std::vector<int32_t>> expected;
      for (size_t f = 0; f < of.hotness.size(); ++f) {
        ids.push_back(DrawnIds(of.hotness[f], of.batch, rows, static_cast<int>(f)));
        table.features.push_back({ids.back().data(), of.hotness[f]});
        for (int64_t i = 0; i < static_cast<int64_t>(ids[f].size()); ++i) {
          const int64_t position = (static_cast<int64_t>(f) << dlrm::SampleBits(of.batch)) + i % of.batch;
          if (ids[f][i] >= 0) expected[ids[f][i]].push_back(static_cast<int32_t>(position));
        }
      }
      std::vector<std::vector<Groups>> found;
      CHECK(dlrm::GroupIds({table, table}, of.batch, kThreeThreads, &found).id == nullptr);
      CHECK(found.size() == 2);
      for (const auto& parts : found) {
        size_t size = 0;
        for (const Groups& groups : parts) {
          for (int group = 0; group < groups.size(); ++group) {
            const std::vector<int32_t> positions(groups.positions() + groups.begin(group), groups.positions() + groups.end(group));
            CHECK(positions == expected[groups.id(group)]);
          }
          size += groups.size();
        }
        CHECK(size == expected.size());
      }
    }
  }
}

void TestCounting() {
  CHECK(dlrm::SampleBits(1) == 0 && dlrm::SampleBits(2) == 1 && dlrm::SampleBits(3) == 2 && dlrm::SampleBits(8192) == 13);
  const int32_t* const none = nullptr;
  CHECK(dlrm::Countable({{none, 1}}, (int64_t{1} << 30) - 1) && !dlrm::Countable({{none, 1}}, int64_t{1} << 30));
  CHECK(dlrm::Countable({{none, 100}}, 10000000) && !dlrm::Countable({{none, 100}}, 11000000));
  const std::vector<dlrm::FeatureIds> three(3, {none, 1}), four(4, {none, 1});
  CHECK(dlrm::Countable(three, 1 << 28) && !dlrm::Countable(four, 1 << 28));
  const std::vector<int32_t> ids = {-1, 3, -1, 0, 2, -1};
  CHECK(dlrm::CountIds({ids.data(), 2}, 3, kThreeThreads) == (std::vector<float>{1, 2, 0}));
}

// Checks the bounds of ids: a negative id is an error even if the table has more rows than 32 bits count.
void TestBounds() {
  const int64_t kRows[] = {30, int64_t{1} << 31, int64_t{1} << 32, (int64_t{1} << 32) + 1, int64_t{1} << 40};
  std::vector<std::vector<Groups>> groups;
  for (const int64_t rows : kRows) {
    for (const int32_t bad : {-1, -30, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
      for (const int hotness : {1, 2}) {
        const bool none = bad >= 0 ? bad < rows : hotness == 2 && bad == -1;
        const std::vector<int32_t> ids = {0, 29, bad, 3};
        const dlrm::BadId grouped = dlrm::GroupIds({{{{ids.data(), hotness}}, rows}}, 4 / hotness, kThreeThreads, &groups);
        CHECK(grouped.id == (none ? nullptr : ids.data() + 2) && grouped.rows == (none ? 0 : rows));
        if (bad >= 0 && none) continue;  // the id is valid, but the table here is too small to look it up in
        const float table[30] = {};
        std::vector<float> out(4);
        const dlrm::Source source = {table, rows, 1, 0, {ids.data(), hotness}, false};
        const dlrm::BadId found = dlrm::LookUpRows<float>({source}, 4 / hotness, 1, out.data(), kThreeThreads);
        CHECK(found.id == grouped.id && found.rows == grouped.rows);
      }
    }
  }
  const std::vector<int32_t> largest = {std::numeric_limits<int32_t>::max()};
  const auto passes = [&](int64_t rows) { return dlrm::GroupIds({{{{largest.data(), 1}}, rows}}, 1, kThreeThreads, &groups).id == nullptr; };
  CHECK(!passes(std::numeric_limits<int32_t>::max()) && passes(int64_t{1} << 31) && !passes(0));
  const std::vector<int32_t> none = {-1, -1};  // absent ids in a table without rows
  float out = 1;
  CHECK(dlrm::LookUpRows<float>({{nullptr, 0, 1, 0, {none.data(), 2}, true}}, 1, 1, &out, kThreeThreads).id == nullptr && out == 0);
}

template <class V>
void TestLookup(const std::vector<int>& widths, int64_t batch) {
  constexpr int kRows = 9;
  const int kHotness[] = {1, 3, 1, 2, 40};
  std::vector<std::vector<float>> tables;
  std::vector<std::vector<int32_t>> ids;
  std::vector<dlrm::Source> sources;
  int64_t length = 0;
  const int count = static_cast<int>(widths.size());
  for (int i = 0; i < count; ++i) {
    const int hotness = kHotness[i % 5];
    tables.push_back(Drawn<float>(kRows * widths[i], i));
    ids.push_back(DrawnIds(hotness, batch, kRows, i));
    sources.push_back({tables[i].data(), kRows, widths[i], length, {ids[i].data(), hotness}, i % 2 == 0});
    length += widths[i];
  }
  sources.push_back({tables[0].data(), kRows, widths[0], length, {ids[1].data(), 3}, false});  // a table read twice
  length += widths[0];
  std::vector<V> out(batch * length);
  CHECK(dlrm::LookUpRows(sources, batch, length, out.data(), kThreeThreads).id == nullptr);
  for (int64_t i = 0; i < batch; ++i) {
    for (const dlrm::Source& source : sources) {
      for (int k = 0; k < source.width; ++k) {
        float sum = 0;
        int there = 0;
        for (int j = 0; j < source.ids.hotness; ++j) {
          const int32_t id = source.ids.ids[j * batch + i];
          if (id < 0) continue;
          sum += source.table[id * source.width + k];
          ++there;
        }
        const V expected = Narrowed<V>(source.mean ? sum / static_cast<float>(std::max(there, 1)) : sum);
        CHECK(dlrm::Widened(out[i * length + source.column + k]) == dlrm::Widened(expected));
      }
    }
  }
}

// Updates one row by a rule as its paper defines it, in double: weights, then slots; `sum` is the row's gradient.
void Apply(const dlrm::Optimizer& by, const std::vector<double>& sum, std::vector<double>* row, std::vector<double>* first, std::vector<double>* second) {
  const auto& c = by.constants;
  const double rate = by.scalars[0];
  double squares = 0;
  for (const double g : sum) squares += g * g;
  for (size_t k = 0; k < sum.size(); ++k) {
    const double g = sum[k];
    double& w = (*row)[k];
    if (by.rule == "sgd") {
      w -= g * rate;
    } else if (by.rule == "momentum") {
      (*first)[k] = c[0] * (*first)[k] - rate * g;
      w += (*first)[k];
    } else if (by.rule == "adagrad") {
      (*first)[k] += g * g;
      w -= rate * g / std::sqrt((*first)[k] + c[0]);
    } else if (by.rule == "rowwise_adagrad") {
      w -= rate * g / std::sqrt((*first)[0] + squares / sum.size() + c[0]);
    } else if (by.rule == "adam") {
      (*first)[k] = c[0] * (*first)[k] + c[1] * g;
      (*second)[k] = c[2] * (*second)[k] + c[3] * g * g;
      w -= rate * (*first)[k] / (std::sqrt((*second)[k]) + c[4]);
    } else if (by.rule == "ftrl") {
      const double total = (*first)[k] + g * g, z = (*second)[k] + g - (std::sqrt(total) - std::sqrt((*first)[k])) / rate * w;
      (*first)[k] = total;
      (*second)[k] = z;
      w = std::abs(z) <= c[0] ? 0 : ((z > 0 ? c[0] : -c[0]) - z) / (std::sqrt(total) / rate + c[1]);
    } else if (by.rule == "rmsprop") {
      (*first)[k] = std::pow(double{c[0]}, by.scalars[1] - (*second)[0]) * (*first)[k] + c[1] * g * g;
      w -= rate * g / (std::sqrt((*first)[k] + c[2]) + c[3]);
    }
  }
  if (by.rule == "rowwise_adagrad" && !sum.empty()) (*first)[0] += squares / sum.size();
}

template <class G>
void TestUpdate(const dlrm::Optimizer& by, int64_t batch) {
  // A feature's table and hotness; `mean` is true if its vector is a mean.
  struct Feature {
    int table, hotness;
    bool mean;
  };
  const Feature kFeatures[] = {{0, 1, false}, {1, 4, true}, {2, 1, false}, {3, 2, false}, {4, 3, true}, {4, 1, false}, {5, 2, false},
                                {7, 40, true}, {7, 30, false}};  // the last table's gradients are copied in large batches
  const int kWidths[] = {128, 1, 300, 0, 21, 64, 128, 128};  // the last table but one has no feature
  constexpr int kTables = 8, kRows = 11;
  const dlrm::RuleFacts& facts = *dlrm::FactsOf(by.rule);
  std::vector<std::vector<float>> tables, slots[2], counts;
  std::vector<std::vector<int32_t>> ids;
  std::vector<dlrm::Shard> shards;
  std::vector<dlrm::TableIds> to_group(kTables, {{}, kRows});
  for (int i = 0; i < kTables; ++i) {
    tables.push_back(Drawn<float>(kRows * kWidths[i], i));
    for (int k = 0; k < 2; ++k) slots[k].push_back(std::vector<float>(facts.row_slot[k] ? kRows : tables[i].size(), k ? 0.25f : 0.5f));
    float* const first = facts.slots > 0 ? slots[0][i].data() : nullptr;
    float* const second = facts.slots > 1 ? slots[1][i].data() : nullptr;
    shards.push_back({tables[i].data(), {first, second}, kRows, kWidths[i], i, {}});
  }
  int64_t length = 0;
  for (const Feature& feature : kFeatures) {
    ids.push_back(DrawnIds(feature.hotness, batch, kRows, static_cast<int>(ids.size())));
    const dlrm::FeatureIds own = {ids.back().data(), feature.hotness};
    counts.push_back(dlrm::CountIds(own, batch, kThreeThreads));
    to_group[feature.table].features.push_back(own);
    shards[feature.table].uses.push_back({length, feature.mean ? counts.back().data() : nullptr});
    length += kWidths[feature.table];
  }
  std::vector<std::vector<Groups>> groups;
  CHECK(dlrm::GroupIds(to_group, batch, kThreeThreads, &groups).id == nullptr);
  const std::vector<G> gradients = Drawn<G>(batch * length, 7);
  std::vector<const G*> samples;
  for (int64_t i = 0; i < batch; ++i) samples.push_back(gradients.data() + i * length);
  const auto before = tables;
  dlrm::Optimizer used = by;
  for (int p = 0; p < kTables; ++p) {
    if (by.rule == "rowwise_adagrad") used.constants[1] = static_cast<float>(kWidths[p]);
    dlrm::UpdateRows<G>({shards[p]}, groups, samples, used, kThreeThreads);
    for (int row = 0; row < kRows; ++row) {
      const int width = kWidths[p];
      std::vector<double> weights(width), first(std::max(width, 1), 0.5), second(std::max(width, 1), 0.25);
      std::vector<float> sum(width);
      bool named = false;
      size_t use = 0;
      for (size_t f = 0; f < ids.size(); ++f) {
        if (kFeatures[f].table != p) continue;
        const int64_t column = shards[p].uses[use++].column;
        for (int64_t at = 0; at < static_cast<int64_t>(ids[f].size()); ++at) {
          if (ids[f][at] != row) continue;
          const int64_t i = at % batch;
          const float by_count = kFeatures[f].mean ? counts[f][i] : 1;
          for (int k = 0; k < width; ++k) sum[k] += dlrm::Widened(samples[i][column + k]) / by.loss_scale / by_count;
          named = true;
        }
      }
      for (int k = 0; k < width; ++k) weights[k] = before[p][row * width + k];
      for (int k = 0; k < width && by.rule == "sgd"; ++k) CHECK(tables[p][row * width + k] == before[p][row * width + k] - sum[k] * by.scalars[0]);
      if (named) Apply(by, {sum.begin(), sum.end()}, &weights, &first, &second);
      for (int k = 0; k < width; ++k) CHECK(std::abs(tables[p][row * width + k] - weights[k]) <= 1e-4 * (1 + std::abs(weights[k])));
      for (int s = 0; s < facts.slots && width > 0; ++s) {
        const std::vector<double>& expected = s ? second : first;
        if (by.rule == "rmsprop" && s == 1) {
          CHECK(slots[s][p][row] == (named ? by.scalars[1] : 0.25f));
        } else if (facts.row_slot[s]) {
          CHECK(std::abs(slots[s][p][row] - expected[0]) <= 1e-4 * (1 + std::abs(expected[0])));
        } else {
          for (int k = 0; k < width; ++k) CHECK(std::abs(slots[s][p][row * width + k] - expected[k]) <= 1e-4 * (1 + std::abs(expected[k])));
        }
      }
    }
  }
}

template <class T>
void TestRowsOf() {
  for (const int64_t batch : {0, 1, 33, 700}) {
    TestLookup<T>({128, 1, 21, 0, 128, 64, 32, 16, 300}, batch);
    TestUpdate<T>({"sgd", {0.5f}, {}, 1}, batch);
    TestUpdate<T>({"momentum", {0.5f}, {0.9f}, 1}, batch);
    TestUpdate<T>({"adagrad", {0.5f}, {1e-6f}, 1024}, batch);
    TestUpdate<T>({"rowwise_adagrad", {0.5f}, {1e-6f, 1}, 1}, batch);
    TestUpdate<T>({"adam", {0.5f}, {0.9f, 0.1f, 0.99f, 0.01f, 1e-6f}, 3}, batch);
    TestUpdate<T>({"ftrl", {0.5f}, {0.5f, 0.1f}, 1}, batch);
    TestUpdate<T>({"rmsprop", {0.5f, 9.25f}, {0.9f, 0.1f, 1e-6f, 0}, 1}, batch);
    TestUpdate<T>({"rmsprop", {0.5f, 9.25f}, {0.9f, 0.1f, 0, 1e-6f}, 1}, batch);
  }
  TestUpdate<T>({"sgd", {0.5f}, {}, 3}, 4200);  // gradients are copied in batches of 4096 samples or more
  TestUpdate<T>({"rowwise_adagrad", {0.5f}, {1e-6f, 1}, 1024}, 4200);
}

}  // namespace

void TestRows() {
  TestGroups();
  TestCounting();
  TestBounds();
  std::vector<int> widths;
  for (int width = 1; width <= 200; ++width) widths.push_back(width);
  TestLookup<float>(widths, 3);
  TestRowsOf<float>();
  TestRowsOf<BFloat16>();
  TestRowsOf<Float16>();
}
