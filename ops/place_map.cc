#include "place_map.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "ids.h"
#include "parallel.h"

namespace dlrm {
namespace {

constexpr int64_t kBlock = 64;                // ids whose slots are fetched at once
constexpr int64_t kFew = int64_t{1} << 20;    // slots; up to here maps double, for time counts more than memory
constexpr int64_t kLarge = int64_t{4} << 20;  // bytes for which large pages pay

// Asks for large pages, because with small ones most of a random access is the search for its page.
void UseLargePages(void* memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
  if (bytes < kLarge) return;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), start = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (start + page - 1) / page * page, last = (start + static_cast<uintptr_t>(bytes)) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // advice: the map works without
#endif
}

}  // namespace

void NumberedIds::Reserve(int64_t more) {
  const int64_t wanted = (size() + more) * 4 / 3 + 1;
  if (wanted > count_) Resize(std::max(wanted, count_ + count_ / (count_ < kFew ? 1 : 4)));
}

void NumberedIds::Resize(int64_t count) {
  const int64_t bytes = count * static_cast<int64_t>(sizeof(Slot));
  std::unique_ptr<Slot[], Freed> old(static_cast<Slot*>(std::calloc(count, sizeof(Slot))));
  if (!old) throw std::bad_alloc();
  UseLargePages(old.get(), bytes);
  slots_.swap(old);
  const int64_t before = count_;
  count_ = count;
  for (int64_t begin = 0; begin < before; begin += kBlock) {
    Slot used[kBlock];  // found without branches, which would be hard to predict
    int64_t n = 0;
    for (int64_t i = begin; i < std::min(begin + kBlock, before); ++i) {
      used[n] = old[i];
      n += old[i].next != 0;
    }
    for (int64_t i = 0; i < n; ++i) {
      int64_t slot = Home(used[i].id);
      while (slots_[slot].next) slot = After(slot);
      slots_[slot] = used[i];
    }
  }
}

void NumberedIds::Homes(const int32_t* ids, int64_t n, int64_t* homes) const {
  for (int64_t i = 0; i < n; ++i) homes[i] = Home(ids[i]);
  for (int64_t i = 0; i < n; ++i) PrefetchToWrite(&slots_[homes[i]], sizeof(Slot));
}

int32_t NumberedIds::Find(int32_t id, int64_t home) const {
  int64_t slot = home;
  while (slots_[slot].next && slots_[slot].id != id) slot = After(slot);
  return slots_[slot].next - 1;
}

int32_t NumberedIds::FindOrAdd(int32_t id, int64_t home) {
  int64_t slot = home;
  while (slots_[slot].next && slots_[slot].id != id) slot = After(slot);
  if (!slots_[slot].next) {
    ids_.push_back(id);
    slots_[slot] = {id, static_cast<int32_t>(ids_.size())};
  }
  return slots_[slot].next - 1;
}

void NumberedIds::Truncate(int64_t count) {
  while (size() > count) {
    const int64_t n = std::min(kBlock, size() - count);
    int64_t homes[kBlock];
    Homes(&ids_[size() - n], n, homes);
    for (int64_t i = 0; i < n; ++i, ids_.pop_back()) Erase(ids_.back());
  }
}

// Later slots of the same run move up, where the search for their ids would otherwise end at the gap.
void NumberedIds::Erase(int32_t id) {
  int64_t gap = Home(id);
  while (slots_[gap].id != id || !slots_[gap].next) gap = After(gap);
  const auto distance = [this](int64_t from, int64_t to) { return to >= from ? to - from : to - from + count_; };
  for (int64_t slot = After(gap); slots_[slot].next; slot = After(slot)) {
    if (distance(Home(slots_[slot].id), slot) < distance(gap, slot)) continue;
    slots_[gap] = slots_[slot];
    gap = slot;
  }
  slots_[gap] = {};
}

int64_t PlaceMap::Size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return known_.size();
}

int64_t PlaceMap::FirstBad(const PlacedIds& batch) const {
  const RangeCheck check(table_rows_, true);
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int32_t* ids = batch.ids + row * batch.ids_stride;
    bool bad = false;
    for (int64_t i = 0; i < batch.columns; ++i) bad |= check.Fails(ids[i]);
    if (bad) return row * batch.columns + (std::find_if(ids, ids + batch.columns, [&](int32_t id) { return check.Fails(id); }) - ids);
  }
  return -1;
}

// Calls work(ids, places, n) for blocks of at most kBlock ids, row after row.
template <class Work>
static void ForBlocks(const PlacedIds& batch, const Work& work) {
  for (int64_t row = 0; row < batch.rows; ++row) {
    for (int64_t begin = 0; begin < batch.columns; begin += kBlock) {
      work(batch.ids + row * batch.ids_stride + begin, batch.places + row * batch.places_stride + begin, std::min(kBlock, batch.columns - begin));
    }
  }
}

int64_t PlaceMap::Plan(const PlacedIds& batch) {
  const int64_t bad = FirstBad(batch);
  if (bad >= 0) return bad;
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t before = known_.size();
  try {
    ForBlocks(batch, [&](const int32_t* ids, int32_t* places, int64_t n) {
      known_.Reserve(n);
      int64_t homes[kBlock];
      known_.Homes(ids, n, homes);
      for (int64_t i = 0; i < n; ++i) places[i] = ids[i] == kNoId ? kNoPlace : known_.FindOrAdd(ids[i], homes[i]);
    });
  } catch (...) {
    known_.Truncate(before);
    throw;
  }
  return -1;
}

int64_t PlaceMap::Find(const PlacedIds& batch, int32_t known, int32_t scratch, int32_t* absent, int64_t* count) const {
  const int64_t bad = FirstBad(batch);
  if (bad >= 0) return bad;
  NumberedIds others;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ForBlocks(batch, [&](const int32_t* ids, int32_t* places, int64_t n) {
      others.Reserve(n);
      int64_t homes[kBlock];
      known_.Homes(ids, n, homes);
      for (int64_t i = 0; i < n; ++i) {
        const int32_t id = ids[i], place = id == kNoId ? kNoPlace : known_.Find(id, homes[i]);
        const bool exists = id == kNoId || (place != kNoPlace && place < known);
        places[i] = exists ? place : scratch + others.FindOrAdd(id, others.Home(id));
      }
    });
  }
  *count = others.size();
  std::copy(others.ids().begin(), others.ids().end(), absent);
  return -1;
}

void PlaceMap::Truncate(int64_t count) {
  const std::lock_guard<std::mutex> lock(mutex_);
  known_.Truncate(count);
}

int64_t PlaceMap::Ids(int64_t first, int64_t last, int32_t* out) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t end = std::min(last, known_.size());
  if (first >= end) return 0;
  std::copy(known_.ids().begin() + first, known_.ids().begin() + end, out);
  return end - first;
}

}  // namespace dlrm
