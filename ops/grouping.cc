#include "grouping.h"

#include <algorithm>
#include <memory>

namespace dlrm {
namespace {

constexpr int64_t kMaxIds = int64_t{1} << 30;  // ids of a table
constexpr int kIdsPerPart = 2048;             // approximate; the groups of so many ids stay in the nearer caches
constexpr int kMaxPartBits = 9;               // with more parts, Scatter would write more streams than the first-level cache has lines
constexpr int64_t kIdsPerChunk = 8192;
constexpr int64_t kSamplesPerCount = 4096;

struct Entry {
  int32_t id, position;
};

// Consecutive ids of one row of ids, and for each part the position of the chunk's next entry.
struct Chunk {
  const int32_t* ids;
  int32_t n, position;
  RangeCheck check;
  std::vector<int32_t> next;
  BadId bad;
};

// Splits a table's ids into parts by the upper bits of their hashes; absent ids follow the last part. The parts are about equal in size, unless some
// rows occur very often, and the ids keep their order in each part: they are counted chunk by chunk, which gives each chunk its positions in the
// parts.
class Split {
 public:
  Split(const TableIds& table, int64_t batch) : rows_(table.rows) {
    int64_t count = 0;
    for (const FeatureIds& feature : table.features) count += feature.hotness * batch;
    while (bits_ < kMaxPartBits && (int64_t{kIdsPerPart} << bits_) < count) ++bits_;
    entries_.reset(new Entry[count]);
    for (size_t f = 0; f < table.features.size(); ++f) {
      const FeatureIds& feature = table.features[f];
      for (int j = 0; j < feature.hotness; ++j) {
        for (int64_t i = 0; i < batch; i += kIdsPerChunk) {
          const int32_t n = static_cast<int32_t>(std::min(kIdsPerChunk, batch - i));
          const int32_t position = static_cast<int32_t>((static_cast<int64_t>(f) << SampleBits(batch)) + i);
          chunks_.push_back({feature.ids + j * batch + i, n, position, {table.rows, feature.list()}, std::vector<int32_t>(parts() + 1), {}});
        }
      }
    }
  }

  int chunks() const { return static_cast<int>(chunks_.size()); }
  int parts() const { return 1 << bits_; }
  const BadId& bad(int chunk) const { return chunks_[chunk].bad; }

  // Step 1, for each chunk.
  void Count(int number) {
    Chunk& chunk = chunks_[number];
    for (int32_t i = 0; i < chunk.n; ++i) {
      if (chunk.check.Fails(chunk.ids[i])) {
        chunk.bad = {chunk.ids + i, rows_};
        return;
      }
      ++chunk.next[PartOf(chunk.ids[i])];
    }
  }

  // Step 2, once, if no id is out of range.
  void Arrange() {
    int32_t next = 0;
    for (int part = 0; part <= parts(); ++part) {
      for (Chunk& chunk : chunks_) {
        const int32_t count = chunk.next[part];
        chunk.next[part] = next;
        next += count;
      }
      ends_.push_back(next);
    }
  }

  // Step 3, for each chunk.
  void Scatter(int number) {
    Chunk& chunk = chunks_[number];
    for (int32_t i = 0; i < chunk.n; ++i) entries_[chunk.next[PartOf(chunk.ids[i])]++] = {chunk.ids[i], chunk.position + i};
  }

  // Step 4, for each part.
  void Build(int part, Groups* groups) const {
    const int32_t begin = part ? ends_[part - 1] : 0;
    const Entry* entries = entries_.get() + begin;
    const auto id = [entries](int i) { return entries[i].id; };
    const auto position = [entries](int i) { return entries[i].position; };
    groups->Build(ends_[part] - begin, rows_, bits_, id, position);
  }

 private:
  int PartOf(int32_t id) const { return id < 0 ? parts() : static_cast<int>(uint64_t{HashOf(id)} >> (32 - bits_)); }

  int64_t rows_;
  int bits_ = 0;
  std::vector<Chunk> chunks_;
  std::unique_ptr<Entry[]> entries_;
  std::vector<int32_t> ends_;
};

// Calls work(split, i) for each split and each i below count(split).
template <class Count, class Work>
void ForEach(std::vector<Split>* splits, const Threads& threads, const Count& count, const Work& work) {
  std::vector<std::pair<int, int>> tasks;
  for (size_t s = 0; s < splits->size(); ++s) {
    for (int i = 0; i < count((*splits)[s]); ++i) tasks.emplace_back(static_cast<int>(s), i);
  }
  if (!tasks.empty()) threads.run(tasks.size(), [&](int64_t task) { work(tasks[task].first, tasks[task].second); });
}

}  // namespace

int SampleBits(int64_t batch) {
  int bits = 0;
  while ((int64_t{1} << bits) < batch) ++bits;
  return bits;
}

bool Countable(const std::vector<FeatureIds>& features, int64_t batch) {
  int64_t ids = 0;
  for (const FeatureIds& feature : features) ids += feature.hotness;
  if (batch > 0 && ids > (kMaxIds - 1) / batch) return false;
  return (static_cast<int64_t>(features.size()) << SampleBits(batch)) <= (int64_t{1} << 31);
}

BadId GroupIds(const std::vector<TableIds>& tables, int64_t batch, const Threads& threads, std::vector<std::vector<Groups>>* groups) {
  groups->clear();
  groups->resize(tables.size());
  std::vector<int> plain, split;  // tables of one id a sample, whose positions are the samples; and other tables
  for (size_t t = 0; t < tables.size(); ++t) {
    const bool one = tables[t].features.size() == 1 && !tables[t].features[0].list();
    (one ? plain : split).push_back(static_cast<int>(t));
  }
  std::vector<BadId> bad(plain.size());
  threads.run(plain.size(), [&](int64_t i) {
    const TableIds& table = tables[plain[i]];
    const int32_t* ids = table.features[0].ids;
    (*groups)[plain[i]].resize(1);
    Groups& built = (*groups)[plain[i]][0];
    const int64_t at = built.Build(static_cast<int>(batch), table.rows, 0, [ids](int i) { return ids[i]; }, [](int i) { return i; });
    if (at >= 0) bad[i] = {ids + at, table.rows};
  });
  for (const BadId& one : bad) {
    if (one.id) return one;
  }
  std::vector<Split> splits;
  for (const int t : split) splits.emplace_back(tables[t], batch);
  ForEach(&splits, threads, [](const Split& of) { return of.chunks(); }, [&](int s, int chunk) { splits[s].Count(chunk); });
  for (Split& of : splits) {
    for (int chunk = 0; chunk < of.chunks(); ++chunk) {
      if (of.bad(chunk).id) return of.bad(chunk);
    }
    of.Arrange();
  }
  ForEach(&splits, threads, [](const Split& of) { return of.chunks(); }, [&](int s, int chunk) { splits[s].Scatter(chunk); });
  for (size_t s = 0; s < splits.size(); ++s) (*groups)[split[s]].resize(splits[s].parts());
  ForEach(&splits, threads, [](const Split& of) { return of.parts(); }, [&](int s, int part) { splits[s].Build(part, &(*groups)[split[s]][part]); });
  return {};
}

std::vector<float> CountIds(FeatureIds ids, int64_t batch, const Threads& threads) {
  std::vector<float> counts(batch);
  threads.run((batch + kSamplesPerCount - 1) / kSamplesPerCount, [&](int64_t task) {
    const FlushDenormals flush;
    const int64_t first = task * kSamplesPerCount, n = std::min(kSamplesPerCount, batch - first);
    float* const to = counts.data() + first;
    for (int j = 0; j < ids.hotness; ++j) {
      const int32_t* from = ids.ids + j * batch + first;
      if (ids.weights) {
        for (int64_t i = 0; i < n; ++i) to[i] += FloatOf(ids.weights[j * batch + first + i]);
      } else {
        for (int64_t i = 0; i < n; ++i) to[i] += from[i] != kNoId;
      }
    }
    for (int64_t i = 0; ids.weights && i < n; ++i) to[i] = to[i] == 0 ? 1 : to[i];
  });
  return counts;
}

}  // namespace dlrm
