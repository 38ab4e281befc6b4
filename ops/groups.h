// Grouping of equal ids.
#ifndef DLRM_OPS_GROUPS_H_
#define DLRM_OPS_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace dlrm {

// Keys of the ids of a table: numbers of as few bits as the table's rows need, another one for each id. Neighbours are spread over the whole range,
// so that the upper bits are a hash (Fibonacci hashing, Knuth, The Art of Computer Programming, section 6.4).
class Keys {
 public:
  explicit Keys(int64_t rows) {
    while (bits_ < 31 && (int64_t{1} << bits_) < rows) ++bits_;
    factor_ = (2654435769u >> (32 - bits_)) | 1;
    for (int i = 0; i < 5; ++i) inverse_ *= 2 - factor_ * inverse_;  // Newton's method, modulo 2^32
    shifted_ = factor_ << (32 - bits_);
  }

  int bits() const { return bits_; }
  uint32_t Of(int32_t id) const { return static_cast<uint32_t>(id) * factor_ & ((uint32_t{1} << bits_) - 1); }
  int UpperOf(int32_t id, int n) const { return static_cast<int>(uint64_t{static_cast<uint32_t>(id) * shifted_} >> (32 - n)); }  // n bits of the key
  int32_t IdOf(uint32_t key) const { return static_cast<int32_t>(key * inverse_ & ((uint32_t{1} << bits_) - 1)); }

 private:
  int bits_ = 1;
  uint32_t factor_, inverse_ = 1, shifted_;
};

// The distinct ids of a list, in the order of their first occurrence, and the positions of each one, in the order of the list.
class Groups {
 public:
  // Groups the ids with the keys key(i) of `bits` bits at position(i), for i in 0..n-1; id_of(key) is an id.
  template <class Key, class Position, class IdOf>
  void Build(int n, int bits, const Key& key, const Position& position, const IdOf& id_of) {
    const int64_t keys = int64_t{1} << bits;
    const int64_t most = std::min<int64_t>(n, keys);
    positions_.reset(new int32_t[n]);
    ids_.reset(new int32_t[most + 1]);
    starts_.reset(new int32_t[most + 1]);
    size_ = 0;
    if (keys <= kKeysPerId * n) {
      ByKey(n, keys, key, position, id_of);
    } else {
      ByHash(n, bits, key, position, id_of);
    }
  }

  int size() const { return size_; }
  int32_t id(int group) const { return ids_[group]; }
  int32_t begin(int group) const { return starts_[group]; }
  int32_t end(int group) const { return starts_[group + 1]; }
  const int32_t* positions() const { return positions_.get(); }

 private:
  static constexpr int64_t kKeysPerId = 16;  // with more keys the array leaves the nearer caches, and hashing is faster

  struct Slot {
    uint32_t key;
    int32_t group;  // -1: free
  };

  // Counts each key in an array over all keys.
  template <class Key, class Position, class IdOf>
  void ByKey(int n, int64_t keys, const Key& key, const Position& position, const IdOf& id_of) {
    std::vector<int32_t> next(keys);  // counts, then where the key's next position belongs
    int size = 0;
    for (int i = 0; i < n; ++i) {
      const uint32_t at = key(i);
      ids_[size] = static_cast<int32_t>(at);
      size += next[at]++ == 0;
    }
    int32_t start = 0;
    for (int group = 0; group < size; ++group) {
      const uint32_t at = static_cast<uint32_t>(ids_[group]);
      ids_[group] = id_of(at);
      starts_[group] = start;
      start += std::exchange(next[at], start);
    }
    starts_[size] = start;
    size_ = size;
    for (int i = 0; i < n; ++i) positions_[next[key(i)]++] = position(i);
  }

  // Numbers the distinct keys by hashing with open addressing, and counts each one.
  template <class Key, class Position, class IdOf>
  void ByHash(int n, int bits, const Key& key_at, const Position& position, const IdOf& id_of) {
    int slot_bits = 0;
    while ((int64_t{1} << slot_bits) < 2 * static_cast<int64_t>(n)) ++slot_bits;
    const uint32_t mask = (uint32_t{1} << slot_bits) - 1;
    std::vector<Slot> slots(size_t{1} << slot_bits, Slot{0, -1});
    std::unique_ptr<int32_t[]> group_of(new int32_t[n]);
    for (int i = 0; i < n; ++i) {
      const uint32_t key = key_at(i);
      uint32_t at = key >> (bits - slot_bits);
      while (slots[at].group >= 0 && slots[at].key != key) at = (at + 1) & mask;
      if (slots[at].group < 0) {
        slots[at] = {key, size_};
        ids_[size_] = id_of(key);
        starts_[size_++] = 0;
      }
      ++starts_[group_of[i] = slots[at].group];
    }
    int32_t start = 0;  // counts become starts; then every start moves to its group's end
    for (int group = 0; group < size_; ++group) start += std::exchange(starts_[group], start);
    for (int i = 0; i < n; ++i) positions_[starts_[group_of[i]]++] = position(i);
    for (int group = size_; group > 0; --group) starts_[group] = starts_[group - 1];
    starts_[0] = 0;
  }

  int size_ = 0;
  std::unique_ptr<int32_t[]> ids_, starts_, positions_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_GROUPS_H_
