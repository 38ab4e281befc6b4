// Grouping of equal ids.
#ifndef DLRM_OPS_GROUPS_H_
#define DLRM_OPS_GROUPS_H_

#include <cstdint>
#include <memory>
#include <vector>

namespace dlrm {

// A multiplicative hash; its upper bits are the ones to use.
inline uint32_t HashOf(int32_t id) { return static_cast<uint32_t>(id) * 2654435769u; }

// The distinct ids of a list, in the order of their first occurrence, and the positions of each one, in the order of the list.
class Groups {
 public:
  // Groups id(i) at position(i) for i in 0..n-1; the hashes of all ids agree in their upper `common_bits` bits. Returns the first i whose id
  // is outside 0..rows-1, or -1 if there is none.
  template <class Id, class Position>
  int64_t Build(int n, int64_t rows, int common_bits, const Id& id, const Position& position) {
    std::unique_ptr<int32_t[]> place(new int32_t[n]);
    positions_.reset(new int32_t[n]);
    ids_.clear();
    starts_.clear();
    ids_.reserve(n);
    starts_.reserve(n + 1);
    const bool direct = rows <= 4 * static_cast<int64_t>(n);
    const int64_t bad = direct ? Place<true>(n, rows, common_bits, id, place.get()) : Place<false>(n, rows, common_bits, id, place.get());
    if (bad >= 0) return bad;
    int32_t start = 0;  // up to here starts_ held counts; this loop turns them into starts
    for (int32_t& entry : starts_) {
      const int32_t count = entry;
      entry = start;
      start += count;
    }
    for (int i = 0; i < n; ++i) positions_[starts_[place[i]]++] = position(i);
    starts_.insert(starts_.begin(), 0);  // the loop above has moved every start to its group's end
    return -1;
  }

  int size() const { return static_cast<int>(ids_.size()); }
  int32_t id(int group) const { return ids_[group]; }
  int32_t begin(int group) const { return starts_[group]; }
  int32_t end(int group) const { return starts_[group + 1]; }
  const int32_t* positions() const { return positions_.get(); }

 private:
  struct Slot {
    int32_t id;
    int32_t group;  // -1: free
  };

  // Numbers the distinct ids and counts each one: by an array over all rows if there are few rows, else by hashing with open addressing.
  template <bool kDirect, class Id>
  int64_t Place(int n, int64_t rows, int common_bits, const Id& id_at, int32_t* place) {
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * static_cast<int64_t>(n)) ++bits;
    const uint32_t mask = (uint32_t{1} << bits) - 1;
    std::vector<int32_t> direct(kDirect ? rows : 0, -1);
    std::vector<Slot> slots(kDirect ? 0 : size_t{1} << bits, Slot{0, -1});
    for (int i = 0; i < n; ++i) {
      const int32_t id = id_at(i);
      if (id < 0 || int64_t{id} >= rows) return i;
      int32_t* group;
      if (kDirect) {
        group = &direct[id];
      } else {
        uint32_t at = (HashOf(id) << common_bits) >> (32 - bits);
        while (slots[at].group >= 0 && slots[at].id != id) at = (at + 1) & mask;
        slots[at].id = id;
        group = &slots[at].group;
      }
      if (*group < 0) {
        *group = static_cast<int32_t>(ids_.size());
        ids_.push_back(id);
        starts_.push_back(0);
      }
      ++starts_[*group];
      place[i] = *group;
    }
    return -1;
  }

  std::vector<int32_t> ids_, starts_;
  std::unique_ptr<int32_t[]> positions_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_GROUPS_H_
