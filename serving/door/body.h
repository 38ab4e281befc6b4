// The body of an inference request in Triton's JSON, with or without binary tensors: shape, data and sizes must agree.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "http.h"

namespace door {

constexpr int kDeepest = 32;
constexpr std::int64_t kMostInputs = 4096, kMostValues = std::int64_t(1) << 31;

// A scan of JSON text as RapidJSON reads it, NaN and infinities included; nothing is copied.
class Json {
 public:
  explicit Json(std::string_view text) : at_(text.data()), end_(at_ + text.size()) {}

  bool Fits(char c) {
    Blanks();
    return at_ < end_ && *at_ == c;
  }
  bool Eat(char c) { return Fits(c) && ++at_; }
  bool Ended() {
    Blanks();
    return at_ == end_;
  }

  // Reads a string; `text` is its content, escapes as they are written.
  bool String(std::string_view* text) {
    if (!Eat('"')) return false;
    const char* begin = at_;
    for (; at_ < end_; ++at_) {
      unsigned char c = *at_;
      if (c == '"') {
        *text = {begin, std::size_t(at_ - begin)};
        ++at_;
        return true;
      }
      if (c < 32) return false;
      if (c == '\\' && ++at_ == end_) return false;
    }
    return false;
  }

  // Reads a whole number of at least 0.
  bool Whole(std::int64_t* value) {
    Blanks();
    const char* begin = at_;
    while (at_ < end_ && *at_ >= '0' && *at_ <= '9') ++at_;
    *value = Digits({begin, std::size_t(at_ - begin)});
    return *value >= 0 && (at_ == end_ || !std::strchr(".eE+-", *at_));
  }

  // Skips any value, and adds its scalars to `leaves`.
  bool Skip(std::int64_t* leaves, int depth = 0) {
    if (depth > kDeepest) return false;
    std::string_view text;
    if (Fits('"')) return ++*leaves, String(&text);
    if (Eat('[')) {
      if (Eat(']')) return true;
      do
        if (!Skip(leaves, depth + 1)) return false;
      while (Eat(','));
      return Eat(']');
    }
    if (Eat('{')) {
      if (Eat('}')) return true;
      do
        if (!String(&text) || !Eat(':') || !Skip(leaves, depth + 1)) return false;
      while (Eat(','));
      return Eat('}');
    }
    const char* begin = at_;
    while (at_ < end_ && !std::strchr(",]} \t\r\n", *at_)) ++at_;
    ++*leaves;
    return at_ > begin && at_ - begin < 64;
  }

 private:
  void Blanks() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\r' || *at_ == '\n')) ++at_;
  }
  const char *at_, *end_;
};

// Calls `member(key)` for each member of an object; false where the object is malformed, a key is written with escapes, or `member` fails.
template <typename Member>
bool Members(Json* json, Member member) {
  if (!json->Eat('{')) return false;
  if (json->Eat('}')) return true;
  do {
    std::string_view key;
    if (!json->String(&key) || key.find('\\') != key.npos || !json->Eat(':') || !member(key)) return false;
  } while (json->Eat(','));
  return json->Eat('}');
}

inline int SizeOf(std::string_view datatype) {
  constexpr std::array<std::pair<std::string_view, int>, 13> kSizes{{{"BOOL", 1}, {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8},
      {"INT8", 1}, {"INT16", 2}, {"INT32", 4}, {"INT64", 8}, {"FP16", 2}, {"BF16", 2}, {"FP32", 4}, {"FP64", 8}}};
  for (const auto& [name, size] : kSizes)
    if (name == datatype) return size;
  return datatype == "BYTES" ? 0 : -1;
}

// Compares an inference request's sizes. `json_bytes`: the length of the JSON at the front of the body, the rest of which is binary.
inline Refusal CheckBody(std::string_view body, std::size_t json_bytes) {
  auto refused = [](std::string words) { return Refusal{400, std::move(words)}; };
  if (json_bytes > body.size()) return refused("Inference-Header-Content-Length is larger than the body");
  Json json(body.substr(0, json_bytes));
  std::int64_t inputs = 0, binary = 0;
  bool seen = false;
  std::string fault;
  auto input = [&]() {
    bool has_name = false, has_shape = false, has_type = false, has_data = false, has_parameters = false;
    std::int64_t values = 1, leaves = 0, size = -1, shared = -1;
    bool in_memory = false;
    std::string_view name, type;
    auto once = [&](bool* flag, const char* what) {
      if (*flag) fault = std::string("an input has two members ") + what;
      return !std::exchange(*flag, true);
    };
    bool sound = Members(&json, [&](std::string_view key) {
      std::int64_t ignored = 0;
      if (key == "name") return once(&has_name, "name") && json.String(&name);
      if (key == "datatype") return once(&has_type, "datatype") && json.String(&type);
      if (key == "data") return once(&has_data, "data") && json.Fits('[') && json.Skip(&leaves);
      if (key == "shape") {
        if (!once(&has_shape, "shape") || !json.Eat('[')) return false;
        if (json.Eat(']')) return true;
        int places = 0;
        do {
          std::int64_t place;
          if (!json.Whole(&place) || ++places > 64) return fault = "shape: expected whole numbers of at least 0", false;
          values = place && values > kMostValues / place ? kMostValues + 1 : values * place;
          if (values > kMostValues) return fault = "shape says more values than a request may have", false;
        } while (json.Eat(','));
        return json.Eat(']');
      }
      if (key == "parameters") {
        bool has_size = false, has_region = false, has_bytes = false;
        return once(&has_parameters, "parameters") && Members(&json, [&](std::string_view parameter) {
                 if (parameter == "binary_data_size") return once(&has_size, "binary_data_size") && json.Whole(&size);
                 if (parameter == "shared_memory_region") return in_memory = true, once(&has_region, "shared_memory_region") && json.Skip(&ignored);
                 if (parameter == "shared_memory_byte_size") return once(&has_bytes, "shared_memory_byte_size") && json.Whole(&shared);
                 return json.Skip(&ignored);
               });
      }
      return json.Skip(&ignored);
    });
    if (!sound) return false;
    int each = SizeOf(type);
    std::string where = "input " + std::string(name.substr(0, 60)) + ": ";
    if (!has_name || !has_shape || !has_type || each < 0) return fault = where + "expected name, shape and a known datatype", false;
    if (has_data && (size >= 0 || in_memory)) return fault = where + "has data in two places", false;
    if (in_memory) {
      if (shared < (each ? values * each : 4 * values)) return fault = where + "shape says more than the shared memory holds", false;
    } else if (size >= 0) {
      if (each ? size != values * each : size < 4 * values)
        return fault = where + "shape says " + std::to_string(values) + " values, binary_data_size " + std::to_string(size) + " bytes", false;
      binary += size;
    } else if (has_data) {
      if (leaves != values)
        return fault = where + "shape says " + std::to_string(values) + " values, data has " + std::to_string(leaves), false;
    } else if (values) {
      return fault = where + "has no data", false;
    }
    return true;
  };
  bool sound = Members(&json, [&](std::string_view key) {
    std::int64_t ignored = 0;
    if (key != "inputs") return json.Skip(&ignored);
    if (std::exchange(seen, true)) return fault = "the request has two members inputs", false;
    if (!json.Eat('[')) return false;
    if (json.Eat(']')) return true;
    do {
      if (++inputs > kMostInputs) return fault = "the request has more inputs than any model", false;
      if (!input()) return false;
    } while (json.Eat(','));
    return json.Eat(']');
  });
  if (sound) sound = json.Ended();
  if (!sound) return refused(fault.empty() ? "the body is no JSON object of an inference request" : fault);
  if (binary != std::int64_t(body.size() - json_bytes)) return refused("binary_data_size of all inputs and the length of the body differ");
  return {};
}

}  // namespace door
