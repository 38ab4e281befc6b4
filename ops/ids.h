// The ids of a batch.
#ifndef DLRM_OPS_IDS_H_
#define DLRM_OPS_IDS_H_

#include <algorithm>
#include <cstdint>

namespace dlrm {

constexpr int32_t kNoId = -1;

// Of one feature, [hotness, batch]: the j-th of sample i is ids[j * batch + i]. Where there may be several, kNoId is none.
struct FeatureIds {
  const int32_t* ids;
  int hotness;
};

// An id that is out of range, and the number of rows it should have been below; or none.
struct BadId {
  const int32_t* id = nullptr;
  int64_t rows = 0;
};

// Finds ids that are neither in 0..rows-1 nor, where a feature may have several, absent.
class RangeCheck {
 public:
  RangeCheck(int64_t rows, int hotness) : shift_(hotness > 1), limit_(static_cast<uint32_t>(std::min(rows, int64_t{1} << 31)) + shift_) {}
  // Without a branch. What is negative is beyond any limit; kNoId, shifted, is 0.
  bool Fails(int32_t id) const { return static_cast<uint32_t>(id) + shift_ >= limit_; }

 private:
  uint32_t shift_, limit_;
};

}  // namespace dlrm

#endif  // DLRM_OPS_IDS_H_
