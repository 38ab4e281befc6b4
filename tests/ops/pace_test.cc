// Tests of the choice between two ways, which is given the time of each turn.
#include "pace.h"

#include "check.h"

namespace {

// Times of two ways. Way 1 takes its first turn after way 0 `slow` times as long: its helpers went to sleep.
struct Times {
  float of[2];
  float slow = 1;
};

// Takes turns; returns how many of the last `count` took way 1.
int TakeTurns(dlrm::Pace* pace, const Times& times, int all, int count) {
  int last = -1, found = 0;
  for (int turn = 0; turn < all; ++turn) {
    const int way = pace->Next();
    pace->Took(way, times.of[way] * (way == 1 && last == 0 ? times.slow : 1.0f));
    if (turn >= all - count) found += way;
    last = way;
  }
  return found;
}

void TestBothAreTriedAtTheStart() {
  dlrm::Pace pace;
  CHECK(TakeTurns(&pace, {{1, 1}}, dlrm::Pace::kFirst, dlrm::Pace::kFirst) == dlrm::Pace::kFirst / 2);
}

void TestFasterWayIsTaken() {
  for (const float slow : {1.0f, 1.9f, 30.0f}) {
    dlrm::Pace first, second;
    CHECK(TakeTurns(&first, {{3, 2}, slow}, 5000, 4000) > 3900);
    CHECK(TakeTurns(&second, {{2, 3}, slow}, 5000, 4000) < 100);
  }
}

// After a time in which way 1 was slow, it is found again, though its helpers sleep when it is tried.
void TestReturns() {
  for (const int disturbed : {100, 20000}) {
    dlrm::Pace pace;
    TakeTurns(&pace, {{150, 90}, 1.9f}, 20000, 0);
    CHECK(TakeTurns(&pace, {{150, 250}, 1.9f}, disturbed, 1) == 0);
    CHECK(TakeTurns(&pace, {{150, 90}, 1.9f}, 2 * dlrm::Pace::kLatest, 100) > 90);
  }
}

// Where way 1 is hopeless, a trial of it ends with its first turn.
void TestHopelessWay() {
  dlrm::Pace pace;
  TakeTurns(&pace, {{1, 5}}, dlrm::Pace::kFirst, 0);
  int last = 0, in_row = 0, most = 0, all = 0;
  for (int turn = 0; turn < 5000; ++turn) {
    const int way = pace.Next();
    pace.Took(way, way == 1 ? 5 : 1);
    in_row = way == 1 ? (last == 1 ? in_row + 1 : 1) : 0;
    most = std::max(most, in_row), all += way, last = way;
  }
  CHECK(most == 1 && all > 0 && all < 12);
}

}  // namespace

void TestPace() {
  TestBothAreTriedAtTheStart();
  TestFasterWayIsTaken();
  TestReturns();
  TestHopelessWay();
}
