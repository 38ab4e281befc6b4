#include "scorer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "elements.h"
#include "gate.h"
#include "ids.h"
#include "interaction.h"
#include "parallel.h"

namespace dlrm {
namespace {

constexpr int64_t kMostSamples = 120;  // maximum of a task: the outputs of two layers of 1,024 then stay in the second-level cache
constexpr int64_t kFewSamples = 12;    // minimum of a task if there are several, since each reads all weights
constexpr double kAlone = 150e6;       // below so many operations one thread works alone: a millisecond
constexpr int64_t kLookup = 3000;      // operations in the time of a row's lookup, and
constexpr int64_t kColumn = 100;       // of each of its columns
constexpr int64_t kHelperBytes = 1 << 20;  // bytes of the divided layers' weights for each thread that helps with few samples, at least
constexpr int64_t kMostHelpers = 7;    // and the most of these threads
constexpr int64_t kApart = 16;         // padding between rows, so that they do not share lines of the first-level cache

inline int64_t RoundUp(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// The first element of a chunk's row.
template <class T>
inline const T* At(const void* chunk, int64_t row, int64_t width) {
  return static_cast<const T*>(chunk) + row * width;
}

// How a row is put to its place: as it is, added, or added after it was multiplied by a weight.
enum class How { kSet, kAdd, kAddWeighted };

template <How kHow>
inline void Put(const float* values, float weight, int64_t n, float* out) {
  if constexpr (kHow == How::kSet) {
    std::memcpy(out, values, n * sizeof(float));
  } else {
    DLRM_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] += kHow == How::kAddWeighted ? weight * values[i] : values[i];
  }
}

template <How kHow, class T>
inline void PutWidened(const T* values, float weight, int64_t n, float* out) {
  float floats[kRun];
  for (int64_t first = 0; first < n; first += kRun) {
    const int64_t count = std::min(kRun, n - first);
    WidenRow(values + first, count, floats);
    Put<kHow>(floats, weight, count, out + first);
  }
}

template <How kHow>
inline void PutScaled(const uint8_t* values, float scale, float bias, float weight, int64_t n, float* out) {
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    const float value = scale * values[i] + bias;
    out[i] = kHow == How::kSet ? value : out[i] + (kHow == How::kAddWeighted ? weight * value : value);
  }
}

// Puts a table's row to `out`.
template <How kHow>
void PutRow(const ScorerFeature& table, const std::vector<const void*>& chunks, int32_t id, float weight, float* out) {
  const int64_t across = (table.width + table.chunk_width - 1) / table.chunk_width, chunk = id / table.chunk_rows, row = id % table.chunk_rows;
  for (int64_t i = 0; i < across; ++i) {
    const void* from = chunks[chunk * across + i];
    const int64_t first = i * table.chunk_width, n = std::min(table.chunk_width, table.width - first);
    switch (table.kind) {
      case kFloat32Rows:
        Put<kHow>(At<float>(from, row, table.chunk_width), weight, n, out + first);
        break;
      case kBFloat16Rows:
        PutWidened<kHow>(At<BFloat16>(from, row, table.chunk_width), weight, n, out + first);
        break;
      case kFloat16Rows:
        PutWidened<kHow>(At<Float16>(from, row, table.chunk_width), weight, n, out + first);
        break;
      default:
        PutScaled<kHow>(At<uint8_t>(from, row, table.chunk_width), table.scales[2 * int64_t{id}], table.scales[2 * int64_t{id} + 1], weight, n,
                        out + first);
    }
  }
}

constexpr int kBytes[] = {4, 2, 2, 1};  // size of an element of each kind

void PrefetchRow(const ScorerFeature& table, const std::vector<const void*>& chunks, int32_t id) {
  if (id < 0) return;
  const int64_t across = (table.width + table.chunk_width - 1) / table.chunk_width, bytes = table.chunk_width * kBytes[table.kind];
  const auto* chunk = static_cast<const char*>(chunks[id / table.chunk_rows * across]);
  PrefetchToRead(chunk + id % table.chunk_rows * bytes, static_cast<int>(bytes));
}

// `exact`: the last layer multiplies in float32.
std::vector<PackedLayer> Packed(const ScorerLayer*& next, int32_t count, bool bfloat16, bool exact = false) {
  std::vector<PackedLayer> layers;
  layers.reserve(count);
  for (int32_t i = 0; i < count; ++i, ++next) {
    layers.emplace_back(next->kernel, next->bias, next->inputs, next->outputs, next->relu != 0,
                        bfloat16 && next->outputs > 1 && !(exact && i + 1 == count));
  }
  return layers;
}

// Puts a sample's vector, its table's row or the sum or mean of several, to `out`.
void PutPooled(const ScorerFeature& table, const std::vector<const void*>& chunks, const int32_t* id, float* out) {
  if (!table.list()) {
    PutRow<How::kSet>(table, chunks, *id, 1, out);
    return;
  }
  std::fill_n(out, table.width, 0.0f);
  float count = 0;  // of ids, or of their weights
  for (int32_t i = 0; i < table.hotness; ++i) {
    if (i + 2 < table.hotness) PrefetchRow(table, chunks, id[i + 2]);
    if (id[i] < 0) continue;
    const float weight = table.weighted ? FloatOf(id[table.hotness + i]) : 1;
    table.weighted ? PutRow<How::kAddWeighted>(table, chunks, id[i], weight, out) : PutRow<How::kAdd>(table, chunks, id[i], weight, out);
    count += weight;
  }
  if (table.mean && count != 0 && count != 1) {
    for (int64_t i = 0; i < table.width; ++i) out[i] /= count;
  }
}

// values[i] = x[i] * TwiceSigmoid(values[i])
void WeighBySigmoid(const float* x, int64_t n, float* values) {
  DLRM_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) values[i] = x[i] * TwiceSigmoid(values[i]);
}

// Memory for the rows of a thread's task.
class Rows {
 public:
  Rows(int64_t rows, int64_t columns, bool apart)
      : stride_(apart ? RoundUp(columns, kApart) + kApart : columns), values_(new float[rows * stride_]) {}

  float* data() const { return values_.get(); }
  int64_t stride() const { return stride_; }

 private:
  int64_t stride_;
  std::unique_ptr<float[]> values_;
};

}  // namespace

// The memory of a task. The layout of the vectors depends on the interaction: without gaps for dot products, else side by side in `joined`.
struct Scorer::Buffers {
  Buffers(const Scorer& scorer, int64_t samples)
      : dot(scorer.shape_.interaction == kDot),
        hidden{Rows(samples, scorer.widest_, true), Rows(samples, scorer.widest_, true)},
        bottom(dot ? samples : 0, dot ? scorer.tables_.features[0].table.width : 0, false),
        vectors(dot ? samples : 0, scorer.embedded_, false),
        joined(samples, scorer.joined_, !dot),
        beside(scorer.shape_.parallel ? samples : 0, scorer.shape_.parallel ? scorer.top_.back().inputs() : 0, true),
        crossed{Rows(scorer.cross_.empty() ? 0 : samples, scorer.joined_, true), Rows(scorer.cross_.empty() ? 0 : samples, scorer.joined_, true)},
        sums(scorer.shape_.interaction == kPairSum ? 2 : 0, scorer.tables_.features[0].table.width, false),
        context(scorer.streams_.empty() ? 0 : samples, scorer.context_, true),
        gated(scorer.streams_.empty() ? 0 : samples, scorer.joined_, true),
        fused(scorer.streams_.empty() ? 0 : samples, scorer.fused_, true),
        rounded(new BFloat16[scorer.shape_.bfloat16 ? PackedLayer::RoundedSize(samples, scorer.deepest_) : 0]) {}

  bool dot;
  Rows hidden[2], bottom, vectors, joined, beside, crossed[2], sums, context, gated, fused;
  std::unique_ptr<BFloat16[]> rounded;  // inputs of a layer in bfloat16
  const Threads* threads = &kCallingThread;  // those that divide a layer's outputs
};

Scorer::Scorer(const ScorerShape& shape, const ScorerFeature* features, const ScorerLayer* layers, int threads)
    : shape_(shape),
      intercept_(0),
      ids_(0),
      embedded_(0),
      before_(0),
      widest_(1),
      deepest_(1),
      flops_(0),
      context_(0),
      fused_(0),
      threads_(std::max(threads, 1)),
      helpers_(new Helpers(threads - 1)),
      company_(0) {
  const bool bfloat16 = shape.bfloat16 != 0;
  bottom_ = Packed(layers, shape.bottom, bfloat16);
  cross_ = Packed(layers, shape.cross, bfloat16);
  top_ = Packed(layers, shape.top, bfloat16);
  if (shape.linear) {
    weights_.assign(layers->kernel, layers->kernel + layers->inputs);
    intercept_ = *layers++->bias;
  }
  if (shape.scaled) {
    scaled_.assign(layers->kernel, layers->kernel + layers->inputs * layers->outputs);
    ++layers;
  }
  const int64_t bottom = bottom_.empty() ? 0 : bottom_.back().outputs();
  const bool dot = shape.interaction == kDot;
  const auto chunks_of = [](const ScorerFeature& table) {
    if (!table.chunks) return std::vector<const void*>();  // every call brings its rows along
    const int64_t chunks = (table.rows + table.chunk_rows - 1) / table.chunk_rows * ((table.width + table.chunk_width - 1) / table.chunk_width);
    return std::vector<const void*>(table.chunks, table.chunks + chunks);
  };
  int64_t lookups = 0;
  for (int32_t i = 0; i < shape.features; ++i) {
    const ScorerFeature& table = features[i];
    const bool in_bottom = dot && bottom_.empty() && i == 0;
    tables_.features.push_back({table, chunks_of(table), ids_, in_bottom ? 0 : embedded_, in_bottom});
    if (shape.linear) {
      const ScorerFeature& weights = features[shape.features + i];
      tables_.linear.push_back({weights, chunks_of(weights), ids_, 0, false});
    }
    ids_ += table.ids();
    lookups += table.hotness * (kLookup + kColumn * table.width + (shape.linear ? kLookup : 0));
    embedded_ += in_bottom ? 0 : table.width;
  }
  for (int i = 0; i < 2 && shape.stream[0] > 0; ++i) {
    std::vector<PackedLayer> gate = Packed(layers, shape.gate[i], bfloat16, true);
    const int32_t* gated_by = shape.gated_by + i * shape.gate_features[0];
    streams_.push_back({std::move(gate), Packed(layers, shape.stream[i], bfloat16), {gated_by, gated_by + shape.gate_features[i]}});
    if (!streams_[i].gate.empty()) context_ = std::max(context_, streams_[i].gate[0].inputs());
    fused_ += streams_[i].layers.back().outputs();
  }
  if (!streams_.empty()) {
    fusion_ = Packed(layers, 1, bfloat16);
    heads_ = Packed(layers, shape.heads, bfloat16);
  }
  const int64_t vectors = shape.features + (bottom_.empty() ? 0 : 1), width = tables_.features[0].table.width;
  if (!dot) before_ = bottom_.empty() ? std::max<int64_t>(shape.numerical, scaled_.size()) : bottom;
  joined_ = dot ? width + vectors * (vectors - 1) / 2 : before_ + embedded_;
  flops_ = lookups + (dot ? vectors * (vectors - 1) * width : shape.interaction == kPairSum ? 4 * joined_ : 0);
  std::vector<const std::vector<PackedLayer>*> parts = {&bottom_, &cross_, &top_, &fusion_, &heads_};
  for (const Stream& stream : streams_) parts.insert(parts.end(), {&stream.gate, &stream.layers});
  int64_t divided = 0;
  for (const auto* part : parts) {
    for (const PackedLayer& layer : *part) {
      if (layer.bytes() >= PackedLayer::kDivided) divided += layer.bytes();
      widest_ = std::max(widest_, layer.outputs());
      deepest_ = std::max(deepest_, layer.inputs());
      flops_ += 2 * layer.inputs() * layer.outputs();
    }
  }
  company_ = static_cast<int>(std::min<int64_t>({threads_ - 1, divided / kHelperBytes, kMostHelpers}));
}

int64_t Scorer::BadId(const Tables& tables, int64_t samples, const int32_t* ids) const {
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (const Feature& feature : tables.features) {
      const RangeCheck check(feature.table.rows, feature.table.list());
      for (int64_t i = sample * ids_ + feature.first_id; i < sample * ids_ + feature.first_id + feature.table.hotness; ++i) {
        if (check.Fails(ids[i])) return i;
      }
    }
  }
  return -1;
}

void Scorer::LookUp(const Tables& tables, int64_t samples, const int32_t* ids, Buffers* buffers) const {
  const Rows& rows = buffers->dot ? buffers->vectors : buffers->joined;
  const auto prefetch = [&](int64_t sample) {
    for (const Feature& feature : tables.features) PrefetchRow(feature.table, feature.chunks, ids[sample * ids_ + feature.first_id]);
  };
  prefetch(0);
  for (int64_t sample = 0; sample < samples; ++sample) {
    if (sample + 1 < samples) prefetch(sample + 1);
    for (const Feature& feature : tables.features) {
      const ScorerFeature& table = feature.table;
      const int32_t* id = ids + sample * ids_ + feature.first_id;
      float* out = feature.in_bottom ? buffers->bottom.data() + sample * buffers->bottom.stride()
                                     : rows.data() + sample * rows.stride() + before_ + feature.column;
      PutPooled(table, feature.chunks, id, out);
    }
  }
}

void Scorer::AddPairSums(int64_t samples, float* logits, Buffers* buffers) const {
  const int64_t width = tables_.features[0].table.width;
  float *const sum = buffers->sums.data(), *const squares = sum + width;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const float* vectors = buffers->joined.data() + sample * buffers->joined.stride();
    std::fill_n(sum, 2 * width, 0.0f);
    for (int64_t first = 0; first < joined_; first += width) {
      DLRM_INDEPENDENT
      for (int64_t d = 0; d < width; ++d) {
        const float value = vectors[first + d];
        sum[d] += value;
        squares[d] += value * value;
      }
    }
    float total = 0;
    for (int64_t d = 0; d < width; ++d) total += sum[d] * sum[d] - squares[d];
    logits[sample] += 0.5f * total;
  }
}

// Puts the concatenation, each column weighed by the gate, 2 sigmoid(MLP of the gate's features), to `gated`.
void Scorer::Gate(const Stream& stream, int64_t samples, Buffers* buffers) const {
  const Rows &joined = buffers->joined, &context = buffers->context, &gated = buffers->gated;
  for (int64_t sample = 0; sample < samples; ++sample) {
    float* out = context.data() + sample * context.stride();
    for (const int32_t place : stream.features) {
      const Feature& feature = tables_.features[place];
      const float* vector = joined.data() + sample * joined.stride() + before_ + feature.column;
      out = std::copy(vector, vector + feature.table.width, out);
    }
  }
  const Rows* last = &context;
  for (size_t i = 0; i < stream.gate.size(); ++i) {
    const Rows& to = i + 1 == stream.gate.size() ? gated : buffers->hidden[i % 2];
    stream.gate[i].Apply(last->data(), last->stride(), samples, to.data(), to.stride(), buffers->rounded.get(), *buffers->threads);
    last = &to;
  }
  for (int64_t sample = 0; sample < samples; ++sample) {
    WeighBySigmoid(joined.data() + sample * joined.stride(), joined_, gated.data() + sample * gated.stride());
  }
}

void Scorer::FuseStreams(int64_t samples, float* logits, Buffers* buffers) const {
  const Rows& fused = buffers->fused;
  float* outputs[2] = {fused.data(), fused.data() + streams_[0].layers.back().outputs()};
  for (int i = 0; i < 2; ++i) {
    const Stream& stream = streams_[i];
    if (!stream.gate.empty()) Gate(stream, samples, buffers);
    const Rows* last = stream.gate.empty() ? &buffers->joined : &buffers->gated;
    for (size_t layer = 0; layer + 1 < stream.layers.size(); ++layer) {
      const Rows& hidden = buffers->hidden[layer % 2];
      stream.layers[layer].Apply(last->data(), last->stride(), samples, hidden.data(), hidden.stride(), buffers->rounded.get(), *buffers->threads);
      last = &hidden;
    }
    stream.layers.back().Apply(last->data(), last->stride(), samples, outputs[i], fused.stride(), buffers->rounded.get(), *buffers->threads);
  }
  fusion_[0].Apply(fused.data(), fused.stride(), samples, logits, 1, buffers->rounded.get(), *buffers->threads);
  const Rows& products = buffers->hidden[0];
  for (size_t head = 0; head < heads_.size(); ++head) {
    const int64_t inputs = heads_[head].inputs(), width = heads_[head].outputs();
    heads_[head].Apply(outputs[0] + head * inputs, fused.stride(), samples, products.data(), products.stride(), buffers->rounded.get(), *buffers->threads);
    for (int64_t sample = 0; sample < samples; ++sample) {
      const float *left = products.data() + sample * products.stride(), *right = outputs[1] + head * width + sample * fused.stride();
      float total = 0;
      for (int64_t d = 0; d < width; ++d) total += left[d] * right[d];
      logits[sample] += total;
    }
  }
}

void Scorer::AddLinear(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits) const {
  for (int64_t sample = 0; sample < samples; ++sample) {
    float total = 0;
    for (const Feature& feature : tables.linear) {
      float weight;
      PutPooled(feature.table, feature.chunks, ids + sample * ids_ + feature.first_id, &weight);
      total += weight;
    }
    for (int64_t m = 0; m < shape_.numerical; ++m) total += numerical[sample * shape_.numerical + m] * weights_[m];
    logits[sample] += total + intercept_;
  }
}

void Scorer::ScoreSome(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits, Buffers* buffers) const {
  const FlushDenormals flush;
  LookUp(tables, samples, ids, buffers);
  const Rows& joined = buffers->joined;
  const float* x = numerical;
  int64_t stride = shape_.numerical;
  int turn = 0;
  // Applies the first `count` layers; the last of them writes to `to`.
  const auto through = [&](const std::vector<PackedLayer>& layers, size_t count, float* to, int64_t to_stride) {
    for (size_t i = 0; i < count; ++i) {
      const Rows& hidden = buffers->hidden[turn ^= 1];
      const bool last = i + 1 == count;
      layers[i].Apply(x, stride, samples, last ? to : hidden.data(), last ? to_stride : hidden.stride(), buffers->rounded.get(), *buffers->threads);
      x = hidden.data(), stride = hidden.stride();
    }
  };
  if (buffers->dot) {
    through(bottom_, bottom_.size(), buffers->bottom.data(), buffers->bottom.stride());
    const int vectors = static_cast<int>(tables_.features.size()) + (bottom_.empty() ? 0 : 1), width = static_cast<int>(tables_.features[0].table.width);
    Interact<float>({samples, vectors, width}, buffers->bottom.data(), buffers->vectors.data(), joined.data(), false, kCallingThread);
    x = joined.data() + (bottom_.empty() ? width : 0), stride = joined.stride();
  } else {
    through(bottom_, bottom_.size(), joined.data(), joined.stride());
    for (int64_t sample = 0; bottom_.empty() && sample < samples; ++sample) {
      const float* values = numerical + sample * shape_.numerical;
      float* out = joined.data() + sample * joined.stride();
      const int64_t width = before_ / std::max<int64_t>(shape_.numerical, 1);  // D, or 1
      for (int64_t i = 0; i < before_; ++i) out[i] = shape_.scaled ? values[i / width] * scaled_[i] : values[i];
    }
    x = joined.data(), stride = joined.stride();
    const size_t products = shape_.full_rank ? 1 : 2;
    for (size_t i = 0; i < cross_.size(); i += products) {
      const bool ends_beside = shape_.parallel && i + products == cross_.size();
      const Rows &to = ends_beside ? buffers->beside : buffers->crossed[i / products % 2], &hidden = buffers->hidden[0];
      if (shape_.full_rank) {
        cross_[i].Apply(x, stride, samples, to.data(), to.stride(), buffers->rounded.get(), *buffers->threads);
      } else {
        cross_[i].Apply(x, stride, samples, hidden.data(), hidden.stride(), buffers->rounded.get(), *buffers->threads);
        cross_[i + 1].Apply(hidden.data(), hidden.stride(), samples, to.data(), to.stride(), buffers->rounded.get(), *buffers->threads);
      }
      for (int64_t sample = 0; sample < samples; ++sample) {
        const float *first = joined.data() + sample * joined.stride(), *last = x + sample * stride;
        float* out = to.data() + sample * to.stride();
        DLRM_INDEPENDENT
        for (int64_t d = 0; d < joined_; ++d) out[d] = first[d] * out[d] + last[d];
      }
      x = to.data(), stride = to.stride();
    }
  }
  if (!streams_.empty()) {
    FuseStreams(samples, logits, buffers);
  } else if (shape_.parallel) {
    const Rows& beside = buffers->beside;
    x = joined.data(), stride = joined.stride();
    through(top_, top_.size() - 1, beside.data() + joined_, beside.stride());
    top_.back().Apply(beside.data(), beside.stride(), samples, logits, 1, buffers->rounded.get(), *buffers->threads);
  } else if (top_.empty()) {
    std::fill_n(logits, samples, 0.0f);
  } else {
    through(top_, top_.size(), logits, 1);
  }
  if (shape_.interaction == kPairSum) AddPairSums(samples, logits, buffers);
  if (shape_.linear) AddLinear(tables, samples, numerical, ids, logits);
}

namespace {

// Counts the calls that run.
class OneMore {
 public:
  explicit OneMore(std::atomic<int>* counted) : counted_(counted), count_(++*counted) {}
  ~OneMore() { --*counted_; }

  int count() const { return count_; }

 private:
  std::atomic<int>* counted_;
  const int count_;
};

}  // namespace

void Scorer::ScoreAlone(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits, Buffers* buffers) const {
  int64_t order = 0;
  while (order + 1 < std::end(paces_) - std::begin(paces_) && samples >> (order + 1)) ++order;
  const Pace::Turn turn(&paces_[order]);
  if (turn.way() == 0) return ScoreSome(tables, samples, numerical, ids, logits, buffers);
  Helpers::Company company(helpers_.get(), company_);
  const Threads together{company_ + 1, [&company](int64_t count, const std::function<void(int64_t)>& work) { company.Run(count, work); }};
  buffers->threads = &together;
  ScoreSome(tables, samples, numerical, ids, logits, buffers);
}

int64_t Scorer::Score(int64_t samples, const float* numerical, const int32_t* ids, float* logits) const {
  return ScoreAll(tables_, samples, numerical, ids, logits);
}

int64_t Scorer::ScoreRows(int64_t samples, const float* numerical, const int32_t* ids, const void* const* rows, const int64_t* counts,
                          float* logits) const {
  Tables tables = tables_;
  for (auto* features : {&tables.features, &tables.linear}) {
    for (Feature& feature : *features) {
      if (*rows) {
        feature.chunks = {*rows};
        feature.table.rows = *counts, feature.table.chunk_rows = std::max<int64_t>(*counts, 1), feature.table.chunk_width = feature.table.width;
        feature.table.kind = kFloat32Rows;
      }
      ++rows, ++counts;
    }
  }
  return ScoreAll(tables, samples, numerical, ids, logits);
}

int64_t Scorer::ScoreAll(const Tables& tables, int64_t samples, const float* numerical, const int32_t* ids, float* logits) const {
  if (samples == 0) return -1;
  if (const int64_t bad = BadId(tables, samples, ids); bad >= 0) return bad;
  const int64_t most = std::max<int64_t>((samples + kFewSamples - 1) / kFewSamples, 1);
  const int64_t workers = static_cast<double>(samples) * static_cast<double>(flops_) < kAlone ? 1 : std::min<int64_t>(threads_, most);
  // Tasks have equal sizes, and all workers get the same number.
  const int64_t turns = (samples + workers * kMostSamples - 1) / (workers * kMostSamples);
  const int64_t size = (samples + workers * turns - 1) / (workers * turns);
  std::vector<std::unique_ptr<Buffers>> spare;  // allocated here, because a helper must not throw
  for (int64_t i = 0; i < workers; ++i) spare.emplace_back(new Buffers(*this, size));
  const OneMore call(helpers_->Calls());
  if (size == samples && company_ > 0 && call.count() == 1) {  // a single task
    ScoreAlone(tables, samples, numerical, ids, logits, spare[0].get());
    return -1;
  }
  std::mutex mutex;
  helpers_->Run((samples + size - 1) / size, static_cast<int>(workers) - 1, [&](int64_t task) {
    std::unique_lock<std::mutex> lock(mutex);
    std::unique_ptr<Buffers> buffers = std::move(spare.back());
    spare.pop_back();
    lock.unlock();
    const int64_t first = task * size;
    ScoreSome(tables, std::min(size, samples - first), numerical + first * shape_.numerical, ids + first * ids_, logits + first, buffers.get());
    lock.lock();
    spare.push_back(std::move(buffers));
  });
  return -1;
}

}  // namespace dlrm
