// The places of the rows of a table that exist: numbers from 0 in the order in which batches named the rows.
#ifndef DLRM_OPS_PLACE_MAP_H_
#define DLRM_OPS_PLACE_MAP_H_

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <vector>

namespace dlrm {

constexpr int32_t kNoPlace = -1;

// A hash map from ids to their numbers in the order in which they were added, and back. A slot takes 8 bytes; 60 to 75 % of them are in use, so that
// an id takes about 16 bytes.
class NumberedIds {
 public:
  // For as many ids there is memory at once.
  explicit NumberedIds(int64_t expected = 0) { Reserve(expected); }

  int64_t size() const { return static_cast<int64_t>(ids_.size()); }
  const std::vector<int32_t>& ids() const { return ids_; }  // by their numbers

  // Makes slots for as many further ids. Throws std::bad_alloc, and changes nothing then.
  void Reserve(int64_t more);

  // The slot where the search for an id begins, until the next Reserve.
  int64_t Home(int32_t id) const { return static_cast<int64_t>((Mixed(id) * static_cast<uint64_t>(count_)) >> 32); }
  // The homes of n ids, which are on their way to the cache afterwards. There must have been a Reserve before.
  void Homes(const int32_t* ids, int64_t n, int64_t* homes) const;

  // The number of an id, or kNoPlace.
  int32_t Find(int32_t id, int64_t home) const;
  // The same, but a new id gets the next number; there must be a slot for it. Throws std::bad_alloc, and changes nothing then.
  int32_t FindOrAdd(int32_t id, int64_t home);
  // Forgets the ids whose numbers are `count` or more.
  void Truncate(int64_t count);

 private:
  // All bits zero: empty.
  struct Slot {
    int32_t id, next;  // `next` is the id's number + 1
  };
  struct Freed {
    void operator()(Slot* slots) const { std::free(slots); }
  };

  // Spreads ids over 32 bits, each to another number. A home is proportional to it, so that slots keep their order when the map grows.
  static uint64_t Mixed(int32_t id) {
    uint32_t x = static_cast<uint32_t>(id);
    x = (x ^ x >> 16) * 0x7feb352d;
    x = (x ^ x >> 15) * 0x846ca68b;
    return x ^ x >> 16;
  }
  int64_t After(int64_t slot) const { return slot + 1 == count_ ? 0 : slot + 1; }
  void Resize(int64_t count);
  void Erase(int32_t id);

  std::unique_ptr<Slot[], Freed> slots_;
  int64_t count_ = 0;  // slots
  std::vector<int32_t> ids_;
};

// Ids [rows, columns] and the memory of their places; the rows are a stride apart. -1 means no id. Both may lie in the same memory.
struct PlacedIds {
  const int32_t* ids;
  int32_t* places;
  int64_t rows, columns, ids_stride, places_stride;
};

// Several threads may use a map at the same time.
class PlaceMap {
 public:
  // For a table of so many rows, at most 2^31 - 1, of which `expected` will exist soon.
  PlaceMap(int64_t table_rows, int64_t expected) : table_rows_(table_rows), known_(expected) {}

  int64_t Size() const;

  // Gives every id its place, row after row; a new id gets the next one. No id gets kNoPlace.
  // Returns -1, or the position of the first id that is out of range, row * columns + column; then nothing has changed. Throws std::bad_alloc; then
  // nothing has changed but the memory of the places.
  int64_t Plan(const PlacedIds& batch);

  // Gives every id its place if that is below `known`. Every other id is absent: the i-th of them, in the order of first occurrence, gets
  // scratch + i. The absent ids, each once, are written to `absent`, which has space for all ids of the batch, and their number to `count`.
  // Returns and throws as Plan does.
  int64_t Find(const PlacedIds& batch, int32_t known, int32_t scratch, int32_t* absent, int64_t* count) const;

  // Forgets the rows whose places are `count` or more.
  void Truncate(int64_t count);

  // Copies the ids of the places first..last-1, or those of them that exist; returns how many.
  int64_t Ids(int64_t first, int64_t last, int32_t* out) const;

 private:
  int64_t FirstBad(const PlacedIds& batch) const;

  const int64_t table_rows_;
  mutable std::mutex mutex_;  // protects the following member
  NumberedIds known_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_PLACE_MAP_H_
