// HTTP/1.1 requests and responses as a door sees them: strict heads, bodies by length or in chunks.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace door {

constexpr std::size_t kMostHead = 32 << 10, kMostHeaders = 100;

struct Refusal {
  int status = 0;  // 0: none
  std::string words;
  explicit operator bool() const { return status != 0; }
};

inline char Lower(char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; }

inline bool Same(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  for (std::size_t i = 0; i < one.size(); ++i)
    if (Lower(one[i]) != Lower(other[i])) return false;
  return true;
}

inline bool IsToken(std::string_view text) {
  if (text.empty()) return false;
  for (unsigned char c : text)
    if (c <= 32 || c >= 127 || std::strchr("\"(),/:;<=>?@[\\]{}", c)) return false;
  return true;
}

// Reads digits only, at most 15 of them; -1 for another text.
inline std::int64_t Digits(std::string_view text) {
  if (text.empty() || text.size() > 15) return -1;
  std::int64_t value = 0;
  for (char c : text) {
    if (c < '0' || c > '9') return -1;
    value = 10 * value + (c - '0');
  }
  return value;
}

struct Head {
  std::string start[3];  // of a request: method, target, version; of a response: version, status, reason
  std::vector<std::pair<std::string, std::string>> headers;

  const std::string* Find(std::string_view name) const {
    for (const auto& [key, value] : headers)
      if (Same(key, name)) return &value;
    return nullptr;
  }
  int Count(std::string_view name) const {
    int count = 0;
    for (const auto& one : headers) count += Same(one.first, name);
    return count;
  }
};

// Parses a head without its empty line; false where it is malformed.
inline bool ParseHead(std::string_view text, Head* head) {
  std::size_t line_end = text.find("\r\n");
  std::string_view line = text.substr(0, line_end);
  std::size_t first = line.find(' '), second = first == line.npos ? line.npos : line.find(' ', first + 1);
  if (first == line.npos) return false;
  head->start[0] = line.substr(0, first);
  head->start[1] = line.substr(first + 1, second == line.npos ? line.npos : second - first - 1);
  head->start[2] = second == line.npos ? "" : std::string(line.substr(second + 1));
  while (line_end != text.npos) {
    std::size_t begin = line_end + 2;
    line_end = text.find("\r\n", begin);
    line = text.substr(begin, line_end == text.npos ? text.npos : line_end - begin);
    std::size_t colon = line.find(':');
    if (colon == line.npos || !IsToken(line.substr(0, colon)) || head->headers.size() >= kMostHeaders) return false;
    std::string_view value = line.substr(colon + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
    for (unsigned char c : value)
      if ((c < 32 && c != '\t') || c == 127) return false;
    head->headers.emplace_back(line.substr(0, colon), value);
  }
  return true;
}

// A body in chunks, decoded as it arrives.
class Chunks {
 public:
  enum Result { kMore, kDone, kBad };

  // Takes bytes from the front of `in`, and appends the data to `out` (null: the data is dropped).
  Result Take(std::string_view in, std::size_t* taken, std::string* out) {
    *taken = 0;
    while (*taken < in.size()) {
      char c = in[*taken];
      switch (state_) {
        case kSize:
          if (c == '\n') return kBad;
          if (c == '\r' || c == ';') {
            if (!digits_) return kBad;
            state_ = c == '\r' ? kSizeEnd : kExtension;
          } else {
            int digit = c >= '0' && c <= '9' ? c - '0' : Lower(c) >= 'a' && Lower(c) <= 'f' ? Lower(c) - 'a' + 10 : -1;
            if (digit < 0 || ++digits_ > 12) return kBad;
            left_ = 16 * left_ + std::uint64_t(digit);
          }
          ++*taken;
          break;
        case kExtension:
          if (c == '\n' || ++extra_ > 256) return kBad;
          if (c == '\r') state_ = kSizeEnd;
          ++*taken;
          break;
        case kSizeEnd:
          if (c != '\n') return kBad;
          ++*taken;
          state_ = left_ ? kData : kTrailer;
          extra_ = 0;
          break;
        case kData: {
          std::size_t some = std::min<std::uint64_t>(left_, in.size() - *taken);
          if (out) out->append(in.substr(*taken, some));
          *taken += some;
          left_ -= some;
          if (!left_) state_ = kDataCr;
          break;
        }
        case kDataCr:
          if (c != '\r') return kBad;
          ++*taken;
          state_ = kDataLf;
          break;
        case kDataLf:
          if (c != '\n') return kBad;
          ++*taken;
          state_ = kSize;
          digits_ = 0;
          break;
        case kTrailer:  // the start of a line
          ++*taken;
          if (c == '\r') {
            state_ = kEnd;
          } else {
            if (c == '\n' || ++extra_ > 4096) return kBad;
            state_ = kTrailerLine;
          }
          break;
        case kTrailerLine:
          ++*taken;
          if (++extra_ > 4096) return kBad;
          if (c == '\n') state_ = kTrailer;
          break;
        case kEnd:
          if (c != '\n') return kBad;
          ++*taken;
          return kDone;
      }
    }
    return kMore;
  }

 private:
  enum State { kSize, kExtension, kSizeEnd, kData, kDataCr, kDataLf, kTrailer, kTrailerLine, kEnd };
  State state_ = kSize;
  std::uint64_t left_ = 0;
  int digits_ = 0, extra_ = 0;
};

}  // namespace door
