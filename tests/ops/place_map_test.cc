// Tests of the map of places against an ordered list, and of two threads that use one map.
#include "place_map.h"

#include <algorithm>
#include <array>

#include "check.h"

namespace {

using Ids = std::vector<int32_t>;

// The slow, obvious map: ids in the order of their places.
struct Listed {
  Ids ids;

  int32_t Find(int32_t id) const {
    const auto found = std::find(ids.begin(), ids.end(), id);
    return found == ids.end() ? dlrm::kNoPlace : static_cast<int32_t>(found - ids.begin());
  }
  int32_t FindOrAdd(int32_t id) {
    if (Find(id) == dlrm::kNoPlace) ids.push_back(id);
    return Find(id);
  }
};

Ids DrawnIds(int64_t n, int64_t rows, std::mt19937* bits) {
  Ids ids(n);
  for (int32_t& id : ids) id = static_cast<int32_t>((*bits)() % (rows + 1)) - 1;
  return ids;
}

// A batch whose rows are a stride apart; beyond them nothing may be written.
struct Batch {
  Batch(int64_t rows, int64_t columns, int64_t table_rows, std::mt19937* bits)
      : rows(rows), columns(columns), ids(DrawnIds(rows * (columns + 3), table_rows, bits)), places(rows * (columns + 1), -7) {}

  dlrm::PlacedIds Placed() { return {ids.data(), places.data(), rows, columns, columns + 3, columns + 1}; }
  template <class Expected>
  void Check(Expected expected) const {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < columns; ++i) {
        const int32_t id = ids[row * (columns + 3) + i];
        CHECK(places[row * (columns + 1) + i] == (id < 0 ? -1 : expected(id)));
      }
      CHECK(places[row * (columns + 1) + columns] == -7);
    }
  }

  int64_t rows, columns;
  Ids ids, places;
};

Ids IdsOf(const dlrm::PlaceMap& map, int64_t first) {
  Ids ids(map.Size() - first);
  CHECK(map.Ids(first, map.Size() + 5, ids.data()) == static_cast<int64_t>(ids.size()));
  return ids;
}

void TestDrawn(int64_t table_rows, int64_t columns) {
  std::mt19937 bits(static_cast<unsigned>(table_rows + columns));
  dlrm::PlaceMap map(table_rows, table_rows % 3);
  Listed slow;
  for (int step = 0; step < 30; ++step) {
    Batch batch(1 + step % 3, columns, table_rows, &bits);
    const int32_t known = static_cast<int32_t>(bits() % (slow.ids.size() + 2));
    Ids absent(batch.rows * columns);
    int64_t count = -1;
    CHECK(map.Find(batch.Placed(), known, 1000, absent.data(), &count) == -1);
    Listed others;
    batch.Check([&](int32_t id) {
      const int32_t place = slow.Find(id);
      return place != dlrm::kNoPlace && place < known ? place : 1000 + others.FindOrAdd(id);
    });
    CHECK(Ids(absent.begin(), absent.begin() + count) == others.ids && IdsOf(map, 0) == slow.ids);

    CHECK(map.Plan(batch.Placed()) == -1);
    batch.Check([&](int32_t id) { return slow.FindOrAdd(id); });
    const int64_t first = static_cast<int64_t>(slow.ids.size()) / 3;
    CHECK(map.Size() == static_cast<int64_t>(slow.ids.size()) && IdsOf(map, first) == Ids(slow.ids.begin() + first, slow.ids.end()));

    if (step % 4 == 3) {
      map.Truncate(slow.ids.size() + 1);
      slow.ids.resize(step % 8 == 3 ? first : first * 2);
      map.Truncate(slow.ids.size());
      CHECK(IdsOf(map, 0) == slow.ids);
    }
  }
}

void TestBadIds() {
  dlrm::PlaceMap map(10, 0);
  std::array<int32_t, 6> ids = {3, 9, 0, -1, 3, 4}, places;
  CHECK(map.Plan({ids.data(), places.data(), 1, 3, 3, 3}) == -1);
  for (const int32_t bad : {-2, 10, INT32_MIN, INT32_MAX}) {
    ids[4] = ids[5] = bad;
    int64_t count;
    std::array<int32_t, 6> absent;
    CHECK(map.Plan({ids.data(), places.data(), 2, 3, 3, 3}) == 4);
    CHECK(map.Find({ids.data(), places.data(), 3, 2, 2, 2}, 10, 10, absent.data(), &count) == 4);
    CHECK(IdsOf(map, 0) == (Ids{3, 9, 0}));
  }
  int64_t count = -1;
  CHECK(map.Plan({nullptr, nullptr, 0, 0, 0, 0}) == -1 && map.Find({nullptr, nullptr, 3, 0, 0, 0}, 1, 1, nullptr, &count) == -1 && count == 0);
}

void TestInPlace() {
  dlrm::PlaceMap map(100, 0);
  Ids ids = {7, -1, 99, 7, 0}, absent(5);
  CHECK(map.Plan({ids.data(), ids.data(), 1, 5, 5, 5}) == -1 && ids == (Ids{0, -1, 1, 0, 2}));
  ids = {99, 50, -1, 0, 50};
  int64_t count;
  CHECK(map.Find({ids.data(), ids.data(), 1, 5, 5, 5}, 2, 40, absent.data(), &count) == -1 && ids == (Ids{1, 40, -1, 41, 40}));
  CHECK(count == 2 && absent[0] == 50 && absent[1] == 0);
}

// One thread plans while the other finds the rows that are known, which never change.
void TestTwoThreads() {
  std::mt19937 bits(1);
  constexpr int64_t kRows = 100000, kColumns = 500;
  dlrm::PlaceMap map(kRows, 0);
  Batch known(1, kColumns, kRows, &bits);
  map.Plan(known.Placed());
  const int32_t size = static_cast<int32_t>(map.Size());
  std::vector<Batch> planned;
  for (int i = 0; i < 100; ++i) planned.emplace_back(1, kColumns, kRows, &bits);
  std::thread planner([&] {
    for (Batch& batch : planned) map.Plan(batch.Placed());
  });
  for (int i = 0; i < 100; ++i) {
    Ids ids = known.ids, places(kColumns), absent(kColumns);
    for (int64_t j = 0; j < kColumns; j += 2) ids[j] = planned[i].ids[j];
    int64_t count;
    CHECK(map.Find({ids.data(), places.data(), 1, kColumns, kColumns, kColumns}, size, size, absent.data(), &count) == -1);
    for (int64_t j = 1; j < kColumns; j += 2) CHECK(places[j] == known.places[j]);
    for (int64_t j = 0; j < count; ++j) CHECK(std::find(known.ids.begin(), known.ids.begin() + kColumns, absent[j]) == known.ids.begin() + kColumns);
  }
  planner.join();
  const Ids ids = IdsOf(map, 0);
  Ids sorted = ids;
  std::sort(sorted.begin(), sorted.end());
  CHECK(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
  for (const Batch& batch : planned) {
    for (int64_t j = 0; j < kColumns; ++j) CHECK(batch.ids[j] < 0 ? batch.places[j] == -1 : ids[batch.places[j]] == batch.ids[j]);
  }
}

}  // namespace

void TestPlaceMap() {
  for (const int64_t rows : {int64_t{1}, int64_t{7}, int64_t{1000}, int64_t{0x7fffffff}}) {
    for (const int64_t columns : {0, 1, 63, 64, 200}) TestDrawn(rows, columns);
  }
  TestBadIds();
  TestInPlace();
  TestTwoThreads();
}
