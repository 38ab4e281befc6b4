// Tests of conversions; exhaustive for types of 65,536 values.
#include "check.h"

namespace {

using dlrm::BFloat16;
using dlrm::Float16;

// Returns the value of a float16's bits, by definition.
double ValueOf(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa ? kNan : sign * kInfinity;
  return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

// Checks that each value is restored, that a float halfway between two values rounds to the even one, and others to the nearer one.
template <class Widen, class Narrow>
void TestFloat16(const Widen& widen, const Narrow& narrow) {
  const dlrm::FlushDenormals flush;  // as in every kernel: float16's denormals are no denormals in float and must be kept
  for (int bits = 0; bits < 0x10000; ++bits) {
    const uint16_t half = static_cast<uint16_t>(bits);
    const float value = widen(Float16{half});
    CHECK(Same(value, ValueOf(half)));
    const uint16_t back = narrow(value).bits;
    CHECK(std::isnan(value) ? std::isnan(ValueOf(back)) : back == half);
    if ((half & 0x7fff) >= 0x7c00) continue;
    const uint16_t next = half + 1;
    const bool last = (half & 0x7fff) == 0x7bff;  // 65504, above which infinity stands for 65536
    const float above = last ? std::copysign(65536.0f, value) : static_cast<float>(ValueOf(next));
    const float middle = static_cast<float>((static_cast<double>(value) + above) / 2);
    CHECK(narrow(middle).bits == (half & 1 ? next : half));
    CHECK(narrow(std::nextafter(middle, value)).bits == half);
    CHECK(narrow(std::nextafter(middle, above)).bits == next);
  }
  CHECK(narrow(3e38f).bits == 0x7c00 && narrow(-3e38f).bits == 0xfc00 && narrow(1e-30f).bits == 0 && narrow(-1e-30f).bits == 0x8000);
}

void TestBFloat16() {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = dlrm::Widened(BFloat16{static_cast<uint16_t>(bits)});
    const uint16_t back = Narrowed<BFloat16>(value).bits;
    CHECK(std::isnan(value) ? back == 0x7fc0 : back == bits);
  }
  CHECK(Narrowed<BFloat16>(dlrm::FloatOf(0x3f808000)).bits == 0x3f80);  // halfway rounds to even
  CHECK(Narrowed<BFloat16>(dlrm::FloatOf(0x3f818000)).bits == 0x3f82);
  CHECK(Narrowed<BFloat16>(dlrm::FloatOf(0x7f7fffff)).bits == 0x7f80);
  CHECK(std::isnan(dlrm::Widened(Narrowed<BFloat16>(dlrm::FloatOf(0x7f800001)))));  // a NaN whose upper half is that of infinity
}

template <class T>
void TestRowsOf() {
  for (int64_t n = 0; n < 70; ++n) {
    std::vector<T> values = Drawn<T>(n, static_cast<int>(n));
    if (n > 3) values[n - 1] = Narrowed<T>(kNan), values[n / 2] = Narrowed<T>(-kInfinity);
    std::vector<float> wide(n);
    dlrm::WidenRow(values.data(), n, wide.data());
    std::vector<T> back(n);
    dlrm::NarrowRow(wide.data(), n, back.data());
    int64_t seen = 0;
    dlrm::ForFloats(values.data(), n, [&](const auto* part, int64_t first, int64_t count) {
      CHECK(first == seen);
      for (int64_t i = 0; i < count; ++i) CHECK(Same(dlrm::Widened(part[i]), wide[first + i]));
      seen += count;
    });
    CHECK(seen == n);
    for (int64_t i = 0; i < n; ++i) CHECK(Same(wide[i], dlrm::Widened(values[i])) && Same(dlrm::Widened(back[i]), wide[i]));
  }
}

}  // namespace

void TestElements() {
  TestFloat16([](Float16 x) { return dlrm::Widened(x); }, [](float x) { return Narrowed<Float16>(x); });
  TestFloat16([](Float16 x) { return dlrm::by_integers::Widened(x); },
              [](float x) {
                Float16 out;
                dlrm::by_integers::Narrow(x, &out);
                return out;
              });
  TestBFloat16();
  TestRowsOf<float>();
  TestRowsOf<BFloat16>();
  TestRowsOf<Float16>();
}
