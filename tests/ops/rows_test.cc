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

// SGD, Adagrad and Adam as their papers have them, a row at a time.
void Apply(const dlrm::Optimizer& by, float sum, float* row, float* first, float* second) {
  if (by.rule == dlrm::Rule::kSgd) {
    *row -= sum * by.rate;
  } else if (by.rule == dlrm::Rule::kAdagrad) {
    *first += sum * sum;
    *row -= by.rate * sum / std::sqrt(*first + by.constants[0]);
  } else {
    *first = by.constants[0] * *first + by.constants[1] * sum;
    *second = by.constants[2] * *second + by.constants[3] * (sum * sum);
    *row -= by.rate * *first / (std::sqrt(*second) + by.constants[4]);
  }
}

template <class G>
void TestUpdate(const dlrm::Optimizer& by, int64_t batch) {
  const int kWidths[] = {128, 1, 300, 0};
  constexpr int kRows = 11;
  std::vector<std::vector<float>> tables, firsts, seconds;
  std::vector<std::vector<int32_t>> ids;
  std::vector<dlrm::Piece> pieces;
  std::vector<Groups> groups(4);
  int64_t length = 0;
  for (int i = 0; i < 4; ++i) {
    tables.push_back(Drawn<float>(kRows * kWidths[i], i));
    firsts.push_back(std::vector<float>(tables[i].size(), 0.5f));
    seconds.push_back(std::vector<float>(tables[i].size(), 0.25f));
    ids.push_back(DrawnIds(batch, kRows, i));
    CHECK(groups[i].Build(ids[i].data(), static_cast<int>(batch), kRows) == -1);
    const int slots = SlotsOf(by.rule);
    pieces.push_back({tables[i].data(), {slots > 0 ? firsts[i].data() : nullptr, slots > 1 ? seconds[i].data() : nullptr}, kRows, kWidths[i], i, length});
    length += kWidths[i];
  }
  const std::vector<G> gradients = Drawn<G>(batch * length, 7);
  std::vector<const G*> samples;
  for (int64_t i = 0; i < batch; ++i) samples.push_back(gradients.data() + i * length);
  auto expected = tables;
  for (int p = 0; p < 4; ++p) {
    for (int row = 0; row < kRows; ++row) {
      for (int k = 0; k < kWidths[p]; ++k) {
        float sum = 0, first = 0.5f, second = 0.25f;
        bool named = false;
        for (int64_t i = 0; i < batch; ++i) {
          if (ids[p][i] != row) continue;
          sum += dlrm::Widened(samples[i][pieces[p].column + k]) / by.loss_scale;
          named = true;
        }
        if (named) Apply(by, sum, &expected[p][row * kWidths[p] + k], &first, &second);
      }
    }
  }
  dlrm::UpdateRows(pieces, groups, samples, by, kThreeThreads);
  for (int p = 0; p < 4; ++p) {
    for (size_t i = 0; i < expected[p].size(); ++i) CHECK(std::abs(tables[p][i] - expected[p][i]) <= 1e-5f * (1 + std::abs(expected[p][i])));
  }
}

template <class T>
void TestRowsOf() {
  for (const int64_t batch : {0, 1, 33, 700}) {
    TestLookup<T>(batch);
    TestUpdate<T>({dlrm::Rule::kSgd, 0.5f, {}, 1}, batch);
    TestUpdate<T>({dlrm::Rule::kAdagrad, 0.5f, {1e-6f}, 1024}, batch);
    TestUpdate<T>({dlrm::Rule::kAdam, 0.5f, {0.9f, 0.1f, 0.99f, 0.01f, 1e-6f}, 3}, batch);
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
