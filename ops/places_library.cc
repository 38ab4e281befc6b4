// The C interface of the maps of places and of the rows' numbers, which model/native_places.py calls by ctypes; in the scorer's library.
#include <new>

#include "helpers.h"
#include "place_map.h"
#include "row_numbers.h"

namespace {

constexpr int64_t kNoMemory = -2;

}  // namespace

extern "C" {

// Returns null if there is not enough memory.
void* dlrm_places_new(int64_t table_rows, int64_t expected) {
  try {
    return new dlrm::PlaceMap(table_rows, expected);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void dlrm_places_delete(void* map) { delete static_cast<dlrm::PlaceMap*>(map); }

int64_t dlrm_places_size(const void* map) { return static_cast<const dlrm::PlaceMap*>(map)->Size(); }

// Like PlaceMap::Plan; returns -2 if there is not enough memory.
int64_t dlrm_places_plan(void* map, const dlrm::PlacedIds* batch) {
  try {
    return static_cast<dlrm::PlaceMap*>(map)->Plan(*batch);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// Like PlaceMap::Find; returns -2 if there is not enough memory.
int64_t dlrm_places_find(const void* map, const dlrm::PlacedIds* batch, int32_t known, int32_t scratch, int32_t* absent, int64_t* count) {
  try {
    return static_cast<const dlrm::PlaceMap*>(map)->Find(*batch, known, scratch, absent, count);
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

void dlrm_places_truncate(void* map, int64_t count) { static_cast<dlrm::PlaceMap*>(map)->Truncate(count); }

int64_t dlrm_places_ids(const void* map, int64_t first, int64_t last, int32_t* out) {
  return static_cast<const dlrm::PlaceMap*>(map)->Ids(first, last, out);
}

// Like RowNumbers, in this thread and at most threads - 1 helpers, whose number the first call determines. Returns -1, or -2 if there is not enough
// memory.
int64_t dlrm_row_numbers(const uint64_t* key, int64_t counts, const int64_t* rows, int64_t n, float* out, int threads) {
  try {
    static dlrm::Helpers* const helpers = new dlrm::Helpers(threads - 1);  // never deleted: the process ends the threads
    const auto run = [threads](int64_t count, const std::function<void(int64_t)>& work) { helpers->Run(count, threads - 1, work); };
    dlrm::RowNumbers(key, counts, rows, n, out, {threads, run});
    return -1;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}
}
