// The ids of a batch.
#ifndef DLRM_OPS_IDS_H_
#define DLRM_OPS_IDS_H_

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace dlrm {

constexpr int32_t kNoId = -1;

// The ids of one feature, [hotness, batch]: the j-th id of sample i is ids[j * batch + i]. In a list, kNoId means no id.
struct FeatureIds {
  const int32_t* ids;
  int hotness;
  const int32_t* weights = nullptr;  // the bits of the ids' weights, float32 [hotness, batch]; nullptr for none

  bool list() const { return hotness > 1 || weights; }
};

inline float FloatOf(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// An id that is out of range, and the number of its table's rows; or none.
struct BadId {
  const int32_t* id = nullptr;
  int64_t rows = 0;
};

// Finds ids that are not in 0..rows-1; kNoId passes in a list.
class RangeCheck {
 public:
  RangeCheck(int64_t rows, bool list) : shift_(list), limit_(static_cast<uint32_t>(std::min(rows, int64_t{1} << 31)) + shift_) {}
  // Needs no branch: as unsigned numbers, negative ids are beyond any limit, and kNoId + 1 is 0.
  bool Fails(int32_t id) const { return static_cast<uint32_t>(id) + shift_ >= limit_; }

 private:
  uint32_t shift_, limit_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_IDS_H_
