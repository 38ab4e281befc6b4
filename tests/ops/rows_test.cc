// Groups of ids, lookup and update against loops that say what they do.
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

void TestGroups() {
  for (const int n : {0, 1, 7, 100, 5000}) {
    for (const int64_t rows : {1, 40, 100000}) {  // by a table of all rows, and by hashing
      const std::vector<int32_t> ids = DrawnIds(n, rows, n);
      std::map<int32_t, std::vector<int32_t>> expected;
      for (int i = 0; i < n; ++i) expected[ids[i]].push_back(i);
      Groups groups;
      CHECK(groups.Build(ids.data(), n, rows) == -1);
      CHECK(groups.size() == static_cast<int>(expected.size()));
      for (int group = 0; group < groups.size(); ++group) {
        CHECK(std::vector<int32_t>(groups.positions() + groups.begin(group), groups.positions() + groups.end(group)) == expected[groups.id(group)]);
      }
    }
  }
}

// A table may have more rows than 32 bits count, and an id is below zero then as well.
void TestBounds() {
  const int64_t kRows[] = {30, int64_t{1} << 31, int64_t{1} << 32, (int64_t{1} << 32) + 1, int64_t{1} << 40};
  for (const int64_t rows : kRows) {
    for (const int32_t bad : {-1, -30, std::numeric_limits<int32_t>::min()}) {
      const std::vector<int32_t> ids = {0, 29, bad, 3};
      CHECK(Groups().Build(ids.data(), 4, rows) == 2);
      const float table[30] = {};
      std::vector<float> out(4);
      const dlrm::BadId found = dlrm::LookUpRows<float>({{table, rows, 1, 0, ids.data()}}, 4, 1, out.data(), kThreeThreads);
      CHECK(found.source == 0 && found.position == 2);
    }
  }
  const std::vector<int32_t> largest = {std::numeric_limits<int32_t>::max()};
  CHECK(Groups().Build(largest.data(), 1, std::numeric_limits<int32_t>::max()) == 0);
  CHECK(Groups().Build(largest.data(), 1, int64_t{1} << 31) == -1);
  CHECK(Groups().Build(largest.data(), 1, 0) == 0);
}

template <class V>
void TestLookup(int64_t batch) {
  const int kWidths[] = {128, 1, 21, 0, 128};
  constexpr int kRows = 9;
  std::vector<std::vector<float>> tables;
  std::vector<std::vector<int32_t>> ids;
  std::vector<dlrm::Source> sources;
  int64_t length = 0;
  for (int i = 0; i < 5; ++i) {
    tables.push_back(Drawn<float>(kRows * kWidths[i], i));
    ids.push_back(DrawnIds(batch, kRows, i));
    sources.push_back({tables[i].data(), kRows, kWidths[i], length, ids[i].data()});
    length += kWidths[i];
  }
  sources.push_back({tables[0].data(), kRows, 128, length, ids[1].data()});  // a table read twice
  length += 128;
  std::vector<V> out(batch * length);
  CHECK(dlrm::LookUpRows(sources, batch, length, out.data(), kThreeThreads).source == -1);
  for (int64_t i = 0; i < batch; ++i) {
    for (const dlrm::Source& source : sources) {
      for (int k = 0; k < source.width; ++k) {
        const V expected = Narrowed<V>(source.table[source.ids[i] * source.width + k]);
        CHECK(dlrm::Widened(out[i * length + source.column + k]) == dlrm::Widened(expected));
      }
    }
  }
}

// The rules as their papers have them, a row at a time in double: weights, then slots; `sum` is the row's gradient.
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
      w -= rate * g / std::sqrt((*first)[k] + c[2]);
    }
  }
  if (by.rule == "rowwise_adagrad" && !sum.empty()) (*first)[0] += squares / sum.size();
}

template <class G>
void TestUpdate(const dlrm::Optimizer& by, int64_t batch) {
  const int kWidths[] = {128, 1, 300, 0};
  constexpr int kRows = 11;
  const dlrm::RuleFacts& facts = *dlrm::FactsOf(by.rule);
  std::vector<std::vector<float>> tables, slots[2];
  std::vector<std::vector<int32_t>> ids;
  std::vector<dlrm::Shard> shards;
  std::vector<Groups> groups(4);
  int64_t length = 0;
  for (int i = 0; i < 4; ++i) {
    tables.push_back(Drawn<float>(kRows * kWidths[i], i));
    for (int k = 0; k < 2; ++k) slots[k].push_back(std::vector<float>(facts.row_slot[k] ? kRows : tables[i].size(), k ? 0.25f : 0.5f));
    ids.push_back(DrawnIds(batch, kRows, i));
    CHECK(groups[i].Build(ids[i].data(), static_cast<int>(batch), kRows) == -1);
    float* const first = facts.slots > 0 ? slots[0][i].data() : nullptr;
    float* const second = facts.slots > 1 ? slots[1][i].data() : nullptr;
    shards.push_back({tables[i].data(), {first, second}, kRows, kWidths[i], i, length});
    length += kWidths[i];
  }
  const std::vector<G> gradients = Drawn<G>(batch * length, 7);
  std::vector<const G*> samples;
  for (int64_t i = 0; i < batch; ++i) samples.push_back(gradients.data() + i * length);
  const auto before = tables;
  dlrm::Optimizer used = by;
  for (int p = 0; p < 4; ++p) {
    if (by.rule == "rowwise_adagrad") used.constants[1] = static_cast<float>(kWidths[p]);
    dlrm::UpdateRows<G>({shards[p]}, groups, samples, used, kThreeThreads);
    for (int row = 0; row < kRows; ++row) {
      const int width = kWidths[p];
      std::vector<double> sum(width), weights(width), first(std::max(width, 1), 0.5), second(std::max(width, 1), 0.25);
      bool named = false;
      for (int64_t i = 0; i < batch; ++i) {
        if (ids[p][i] != row) continue;
        for (int k = 0; k < width; ++k) sum[k] += dlrm::Widened(samples[i][shards[p].column + k]) / by.loss_scale;
        named = true;
      }
      for (int k = 0; k < width; ++k) weights[k] = before[p][row * width + k];
      if (named) Apply(by, sum, &weights, &first, &second);
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
    TestLookup<T>(batch);
    TestUpdate<T>({"sgd", {0.5f}, {}, 1}, batch);
    TestUpdate<T>({"momentum", {0.5f}, {0.9f}, 1}, batch);
    TestUpdate<T>({"adagrad", {0.5f}, {1e-6f}, 1024}, batch);
    TestUpdate<T>({"rowwise_adagrad", {0.5f}, {1e-6f, 1}, 1}, batch);
    TestUpdate<T>({"adam", {0.5f}, {0.9f, 0.1f, 0.99f, 0.01f, 1e-6f}, 3}, batch);
    TestUpdate<T>({"ftrl", {0.5f}, {0.5f, 0.1f}, 1}, batch);
    TestUpdate<T>({"rmsprop", {0.5f, 9.25f}, {0.9f, 0.1f, 1e-6f}, 1}, batch);
  }
}

}  // namespace

void TestRows() {
  TestGroups();
  TestBounds();
  TestRowsOf<float>();
  TestRowsOf<BFloat16>();
  TestRowsOf<Float16>();
}
