#include "row_lookup.h"

#include <algorithm>
#include <memory>

#include "lanes.h"

namespace dlrm {
namespace {

constexpr int kFewSamples = 16, kManySamples = 32;  // samples of a task; the ids of sixteen fill a cache line
// Up to so many ids a sample, a task has many samples: 425 KB of output at 26 features of 128 float32.
constexpr int64_t kFewIds = 64;
constexpr int kAhead = 2;  // rows that are prefetched

// A row to read, and the weight of its id if it has one.
struct Row {
  const float* values;
  int32_t width;
  float weight;

  void Prefetch() const { PrefetchToRead(values, width * 4); }
};

// The rows of `ids` that a feature takes: those of its ids, then those of their weights.
inline int64_t IdRowsOf(const FeatureIds& ids) { return ids.weights ? 2 * int64_t{ids.hotness} : ids.hotness; }

// The rows that the ids of some samples name, in the order in which they are read: by sample, then by source, then by id.
class RowList {
 public:
  // `samples` is the number of samples.
  // `ids_per_sample` counts the weights, too.
  RowList(const std::vector<Source>& sources, int64_t batch, int64_t ids_per_sample, int samples)
      : sources_(sources),
        batch_(batch),
        samples_(samples),
        tile_(new int32_t[ids_per_sample * samples]),
        rows_(new Row[ids_per_sample * samples + kAhead]),
        ends_(new int32_t[sources.size() * samples]) {}

  // Lists the rows of the samples from `first` on, or returns an id that is out of range.
  BadId Fill(int64_t first) {
    const BadId bad = Copy(first);
    if (bad.id) return bad;
    const int count = static_cast<int>(sources_.size());
    int32_t size = 0;
    for (int i = 0; i < samples_; ++i) {
      const int32_t* id = tile_.get() + i;
      for (int s = 0; s < count; ++s) {
        const Source& source = sources_[s];
        size = source.ids.weights ? Append<true>(source, id, size) : Append<false>(source, id, size);
        id += IdRowsOf(source.ids) * samples_;
        ends_[i * count + s] = size;
      }
    }
    for (int i = 0; i < kAhead; ++i) rows_[size + i] = {nullptr, 0, 0};
    return {};
  }

  const Row* row(int32_t i) const { return rows_.get() + i; }
  int32_t end(int sample, int source) const { return ends_[sample * sources_.size() + source]; }

 private:
  // Lists the rows of a sample's ids, which are `samples_` apart from `id` on, and then its weights. Returns the new number of rows. Compilers would read
  // members again for each id, because a row that is stored could lie there.
  template <bool kWeighted>
  int32_t Append(const Source& source, const int32_t* id, int32_t size) {
    const int32_t width = source.width, samples = samples_;
    const float* const table = source.table;
    const int32_t* const end = id + source.ids.hotness * samples;
    const int64_t apart = end - id;  // of a weight from its id
    Row* const rows = rows_.get();
    for (; id < end; id += samples) {
      Row& row = rows[size];
      row.values = table + int64_t{std::max(*id, 0)} * width;
      row.width = width;
      if constexpr (kWeighted) row.weight = FloatOf(id[apart]);
      size += *id >= 0;
    }
    return size;
  }

  // Copies the samples' ids to [ids, samples]. In the batch, rows of ids are often a power of two apart, and a cache keeps few lines that far apart.
  BadId Copy(int64_t first) {
    int32_t* to = tile_.get();
    for (const Source& source : sources_) {
      const RangeCheck check(source.rows, source.ids.list());
      for (int j = 0; j < source.ids.hotness; ++j, to += samples_) {
        const int32_t* from = source.ids.ids + j * batch_ + first;
        int failed = 0;
        for (int i = 0; i < samples_; ++i) {
          to[i] = from[i];
          failed |= check.Fails(from[i]);
        }
        if (!failed) continue;
        while (!check.Fails(*from)) ++from;
        return {from, source.rows};
      }
      if (!source.ids.weights) continue;
      for (int j = 0; j < source.ids.hotness; ++j, to += samples_) std::copy_n(source.ids.weights + j * batch_ + first, samples_, to);
    }
    return {};
  }

  const std::vector<Source>& sources_;
  int64_t batch_;
  int samples_;
  std::unique_ptr<int32_t[]> tile_;
  std::unique_ptr<Row[]> rows_;
  std::unique_ptr<int32_t[]> ends_;
};

template <class V, int kWidth>
inline void Copy(const Row* row, int width, V* out) {
  row[kAhead].Prefetch();
  NarrowRow(row->values, kWidth ? kWidth : width, out);
}

// Returns what a mean of rows divides by: their number, or the sum of their weights; 1 if it is 0.
template <bool kWeighted>
inline float Divisor(const Row* row, const Row* end) {
  if constexpr (!kWeighted) return static_cast<float>(std::max<int64_t>(end - row, 1));
  float total = 0;
  for (; row < end; ++row) total += row->weight;
  return total == 0 ? 1 : total;
}

// Computes the sum or mean of rows of kWidth elements, a multiple of kLanes, in registers.
template <class V, int kWidth, bool kWeighted>
inline void Pool(const Row* row, const Row* end, bool mean, V* out) {
  constexpr int kVectors = kWidth / kLanes;
  const float count = mean ? Divisor<kWeighted>(row, end) : 1;
  Lanes sum[kVectors] = {};
  for (; row < end; ++row) {
    row[kAhead].Prefetch();
    for (int i = 0; i < kVectors; ++i) {
      const Lanes values = Load(row->values + i * kLanes);
      sum[i] += kWeighted ? values * row->weight : values;
    }
  }
  float sums[kWidth];
  for (int i = 0; i < kVectors; ++i) Store(mean ? sum[i] / count : sum[i], sums + i * kLanes);
  NarrowRow(sums, kWidth, out);
}

// Like Pool, for rows of any width.
template <class V, bool kWeighted>
void PoolAny(const Row* begin, const Row* end, int width, bool mean, V* out) {
  const float count = mean ? Divisor<kWeighted>(begin, end) : 1;
  for (int first = 0; first < width; first += kRun) {
    const int n = std::min(static_cast<int>(kRun), width - first);
    float sum[kRun] = {};
    for (const Row* row = begin; row < end; ++row) {
      if (first == 0) row[kAhead].Prefetch();
      const float* values = row->values + first;
      for (int i = 0; i < n; ++i) sum[i] += kWeighted ? values[i] * row->weight : values[i];
    }
    if (mean) {
      for (int i = 0; i < n; ++i) sum[i] /= count;
    }
    NarrowRow(sum, n, out + first);
  }
}

template <class V, bool kWeighted>
inline void PoolOf(const Source& source, const Row* begin, const Row* end, V* out) {
  switch (source.width) {
    case 128:
      return Pool<V, 128, kWeighted>(begin, end, source.mean, out);
    case 64:
      return Pool<V, 64, kWeighted>(begin, end, source.mean, out);
    case 32:
      return Pool<V, 32, kWeighted>(begin, end, source.mean, out);
    case 16:
      return Pool<V, 16, kWeighted>(begin, end, source.mean, out);
    default:
      PoolAny<V, kWeighted>(begin, end, source.width, source.mean, out);
  }
}

template <class V>
inline void Join(const Source& source, const Row* begin, const Row* end, V* out) {
  if (!source.ids.list()) return source.width == 128 ? Copy<V, 128>(begin, 128, out) : Copy<V, 0>(begin, source.width, out);
  return source.ids.weights ? PoolOf<V, true>(source, begin, end, out) : PoolOf<V, false>(source, begin, end, out);
}

}  // namespace

template <class V>
BadId LookUpRows(const std::vector<Source>& sources, int64_t batch, int64_t length, V* out, const Threads& threads) {
  const int count = static_cast<int>(sources.size());
  int64_t ids_per_sample = 0;
  for (const Source& source : sources) ids_per_sample += IdRowsOf(source.ids);
  const int64_t samples_per_task = ids_per_sample <= kFewIds ? kManySamples : kFewSamples;
  const int64_t tasks = (batch + samples_per_task - 1) / samples_per_task;
  std::vector<BadId> bad(tasks);
  threads.run(tasks, [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t first = task * samples_per_task;
    const int n = static_cast<int>(std::min(samples_per_task, batch - first));
    RowList rows(sources, batch, ids_per_sample, n);
    bad[task] = rows.Fill(first);
    if (bad[task].id) return;
    int32_t begin = 0;
    for (int i = 0; i < n; ++i) {
      V* sample = out + (first + i) * length;
      for (int s = 0; s < count; ++s) {
        const int32_t end = rows.end(i, s);
        Join(sources[s], rows.row(begin), rows.row(end), sample + sources[s].column);
        begin = end;
      }
    }
  });
  for (const BadId& id : bad) {
    if (id.id) return id;
  }
  return {};
}

#define INSTANTIATE(V) template BadId LookUpRows<V>(const std::vector<Source>&, int64_t, int64_t, V*, const Threads&)
INSTANTIATE(float);
INSTANTIATE(BFloat16);
INSTANTIATE(Float16);
#undef INSTANTIATE

}  // namespace dlrm
