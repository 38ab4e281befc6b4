#include "grouping.h"

#include <algorithm>
#include <memory>
#include <type_traits>
#include <utility>

namespace dlrm {
namespace {

constexpr int64_t kMaxIds = int64_t{1} << 30;  // ids of a table
constexpr int kIdsPerPart = 4096;              // approximate; the groups of so many ids stay in the nearer caches
constexpr int kMaxPartBits = 7;                // with more parts, Scatter would write too many streams at once
constexpr int64_t kIdsPerChunk = 8192;
constexpr int64_t kSamplesPerCount = 4096;

// Consecutive ids of one row of ids, and for each part the position of the chunk's next entry.
struct Chunk {
  const int32_t* ids;
  int32_t n, position;
  RangeCheck check;
  std::vector<int32_t> next;
  BadId bad;
};

// Splits a table's ids into parts by the upper bits of their keys; absent ids follow the last part. The parts are about equal in size, unless some
// rows occur very often, and the ids keep their order in each part: they are counted chunk by chunk, which gives each chunk its positions in the
// parts.
class Split {
 public:
  Split(const TableIds& table, int64_t batch) : rows_(table.rows), keys_(table.rows) {
    int64_t count = 0;
    for (const FeatureIds& feature : table.features) count += feature.hotness * batch;
    while (bits_ < std::min(kMaxPartBits, keys_.bits()) && (int64_t{kIdsPerPart} << bits_) < count) ++bits_;
    const int position_bits = SampleBits(batch) + SampleBits(static_cast<int64_t>(table.features.size()));
    if (position_bits + lower_bits() <= 32) {
      narrow_.reset(new uint32_t[count]);
    } else {
      wide_.reset(new uint64_t[count]);
    }
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
    int32_t* const next = chunk.next.data();
    const Keys keys = keys_;  // copies, because the compiler would read members anew for every id
    const int bits = bits_, absent = parts();
    for (int32_t i = 0; i < chunk.n; ++i) {
      const int32_t id = chunk.ids[i];
      if (chunk.check.Fails(id)) {
        chunk.bad = {chunk.ids + i, rows_};
        return;
      }
      ++next[id < 0 ? absent : keys.UpperOf(id, bits)];
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
    OnEntries([&](auto* entries) {
      using Entry = std::remove_reference_t<decltype(*entries)>;
      Chunk& chunk = chunks_[number];
      int32_t* const next = chunk.next.data();
      const Keys keys = keys_;
      const int bits = lower_bits(), absent = parts();
      const uint32_t lower = (uint32_t{1} << bits) - 1;
      for (int32_t i = 0; i < chunk.n; ++i) {
        const uint32_t key = keys.Of(chunk.ids[i]);
        const int part = chunk.ids[i] < 0 ? absent : static_cast<int>(key >> bits);
        entries[next[part]++] = static_cast<Entry>(chunk.position + i) << bits | (key & lower);
      }
    });
  }

  // Step 4, for each part.
  void Build(int part, Groups* groups) const {
    const int32_t begin = part ? ends_[part - 1] : 0;
    const int bits = lower_bits();
    const uint32_t lower = (uint32_t{1} << bits) - 1, upper = static_cast<uint32_t>(part) << bits;
    OnEntries([&](const auto* entries) {
      const auto key = [=](int i) { return static_cast<uint32_t>(entries[begin + i]) & lower; };
      const auto position = [=](int i) { return static_cast<int32_t>(entries[begin + i] >> bits); };
      groups->Build(ends_[part] - begin, bits, key, position, [&](uint32_t key) { return keys_.IdOf(upper | key); });
    });
  }

 private:
  // Calls work(entries). An entry is a position and, below it, the bits of the id's key that all ids of a part do not share.
  template <class Work>
  void OnEntries(const Work& work) const {
    if (narrow_) {
      work(narrow_.get());
    } else {
      work(wide_.get());
    }
  }

  int lower_bits() const { return keys_.bits() - bits_; }

  int64_t rows_;
  Keys keys_;
  int bits_ = 0;
  std::vector<Chunk> chunks_;
  std::unique_ptr<uint32_t[]> narrow_;  // the entries, if they fit
  std::unique_ptr<uint64_t[]> wide_;    // otherwise
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
    const int32_t* const ids = table.features[0].ids;
    const RangeCheck check(table.rows, false);
    const int32_t* const found = std::find_if(ids, ids + batch, [check](int32_t id) { return check.Fails(id); });
    if (found != ids + batch) {
      bad[i] = {found, table.rows};
      return;
    }
    const Keys keys(table.rows);
    const auto key = [=](int i) { return keys.Of(ids[i]); };
    (*groups)[plain[i]].resize(1);
    (*groups)[plain[i]][0].Build(static_cast<int>(batch), keys.bits(), key, [](int i) { return i; }, [keys](uint32_t key) { return keys.IdOf(key); });
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
