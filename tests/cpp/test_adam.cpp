// Adam's loops against the scalar definition at every instruction-set level, bit for bit, and the
// drivers around them.
#include <fp8amp/parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <functional>
#include <limits>
#include <random>
#include <string>

#include "adam_parameter.h"
#include "kernels/cpu/isa.h"

namespace fp8amp {
namespace {

using kernels::AdamArgs;
using kernels::AdamTensor;
using kernels::cpu::AdamLoop;
using kernels::cpu::AdamMaxima;
using kernels::cpu::Isa;
using test::AdamParameterData;
using test::AdamTypes;

std::vector<Isa> levels() {
  std::vector<Isa> all;
  for (Isa isa : {Isa::kV2, Isa::kV3, Isa::kV4})
    if (isa <= kernels::cpu::detect_isa()) all.push_back(isa);
  if (all.empty()) all.push_back(Isa::kBaseline);
  return all;
}

// ---- the definition, element by element
template <class F>
std::uint32_t write_code(void* y, std::int64_t i, float x, float scale, Rounding rounding,
                         std::uint32_t random, bool second) {
  using namespace numerics;
  const auto code = second ? encode_second_moment<F>(x, scale, rounding, random)
                           : quantize_element<F>(x, scale, rounding, Overflow::kSaturate, random);
  static_cast<typename F::Bits*>(y)[i] = code;
  return code & (F::kSign - 1u);
}
std::uint32_t write(void* y, DType type, std::int64_t i, float x, float scale, Rounding rounding,
                    std::uint32_t key, numerics::Draw draw, std::uint64_t element, bool second) {
  const std::uint32_t random =
      rounding == Rounding::kStochastic ? numerics::random_bits(key, element, draw) : 0;
  switch (type) {
    case DType::kE4M3: return write_code<numerics::E4M3>(y, i, x, scale, rounding, random, second);
    case DType::kE5M2: return write_code<numerics::E5M2>(y, i, x, scale, rounding, random, second);
    case DType::kFloat16:
      return write_code<numerics::Fp16>(y, i, x, scale, rounding, random, second);
    default: static_cast<float*>(y)[i] = x; return numerics::abs_bits(x);
  }
}
AdamMaxima definition(const AdamLoop& l) {
  using kernels::load_element;
  AdamMaxima max{};
  for (std::int64_t i = 0; i < l.n; ++i) {
    const auto e = numerics::adam_element(
        l.scalars, load_element(l.p, l.p_type, i), load_element(l.g, l.g_type, i),
        load_element(l.m, l.m_type, i), load_element(l.v, l.v_type, i));
    const std::uint64_t element = l.first + static_cast<std::uint64_t>(i);
    max.p = std::max(max.p, write(l.p, l.p_type, i, e.p, l.scalars.p_scale, l.p_rounding, l.key,
                                  numerics::Draw::kSecond, element, false));
    max.m = std::max(max.m, write(l.m, l.m_type, i, e.m, l.scalars.m_scale, l.m_rounding, l.key,
                                  numerics::Draw::kFirst, element, false));
    max.v = std::max(max.v, write(l.v, l.v_type, i, e.v, l.scalars.v_scale, l.v_rounding, l.v_key,
                                  numerics::Draw::kFirst, element, true));
  }
  return max;
}

// ---- buffers between guard bytes
constexpr std::size_t kGuard = 128;
struct Guarded {
  std::vector<std::uint8_t> bytes;
  std::size_t offset;
  Guarded(std::size_t size, std::size_t misalign)
      : bytes(size + 2 * kGuard, 0xa5), offset(kGuard + misalign) {
    bytes.resize(size + 2 * kGuard + misalign, 0xa5);
  }
  void* data() { return bytes.data() + offset; }
};

enum class Inputs {
  kOrdinary,
  kExtreme
};  // kExtreme: every code, NaN and Inf too, scales that overflow

struct Buffers {
  Guarded p, g, m, v;
};

void fill(void* data, DType type, std::int64_t n, std::mt19937& rng, Inputs inputs, bool positive) {
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint32_t r = rng();
    if (positive) r &= type == DType::kFloat32 ? 0x7fffffffu : is_float8(type) ? 0x7fu : 0x7fffu;
    if (rng() % 11 == 0) r = 0;
    if (type == DType::kFloat32) {
      float x = numerics::bits_float(r);
      if (inputs == Inputs::kOrdinary)
        x = std::ldexp(1.0f + float(r & 0xffff) / 65536.0f, -int(r >> 16 & 31)) *
            ((r >> 31) ? -1.0f : 1.0f) * (r ? 1.0f : 0.0f);
      static_cast<float*>(data)[i] = x;
    } else if (is_float8(type)) {
      if (inputs == Inputs::kOrdinary && !std::isfinite(kernels::load_element(&r, type, 0))) r = 1;
      static_cast<std::uint8_t*>(data)[i] = static_cast<std::uint8_t>(r);
    } else {
      if (inputs == Inputs::kOrdinary && !std::isfinite(kernels::load_element(&r, type, 0))) r = 1;
      static_cast<std::uint16_t*>(data)[i] = static_cast<std::uint16_t>(r);
    }
  }
}

Buffers make_buffers(AdamTypes t, std::int64_t n, std::size_t misalign, Inputs inputs,
                     std::uint32_t seed) {
  std::mt19937 rng(seed);
  const auto bytes = [&](DType type) { return static_cast<std::size_t>(n * size_in_bytes(type)); };
  const auto offset = [&](DType type) {
    return misalign * static_cast<std::size_t>(size_in_bytes(type));
  };
  Buffers b{{bytes(t.p), offset(t.p)},
            {bytes(t.g), offset(t.g)},
            {bytes(t.m), offset(t.m)},
            {bytes(t.v), offset(t.v)}};
  fill(b.p.data(), t.p, n, rng, inputs, false);
  fill(b.g.data(), t.g, n, rng, inputs, false);
  fill(b.m.data(), t.m, n, rng, inputs, false);
  fill(b.v.data(), t.v, n, rng, inputs, true);
  return b;
}

struct LoopCase {
  AdamTypes types;
  Rounding p_rounding, m_rounding, v_rounding;
  numerics::AdamScalars scalars;
};

AdamLoop make_loop(const LoopCase& c, Buffers& b, std::int64_t n, std::uint64_t first) {
  return {b.p.data(),  b.g.data(),  b.m.data(), b.v.data(),   c.types.p,    c.types.g,
          c.types.m,   c.types.v,   c.scalars,  c.p_rounding, c.m_rounding, c.v_rounding,
          0x12345678u, 0x9abcdef0u, n,          first};
}

// Equal bytes; float32 NaN compare as NaN, for their payload depends on the order of operands.
void expect_equal(const Guarded& a, const Guarded& b, DType type, const std::string& what) {
  if (a.bytes == b.bytes) return;
  for (std::size_t i = 0; i < a.bytes.size(); ++i) {
    if (a.bytes[i] == b.bytes[i]) continue;
    if (type == DType::kFloat32 && i >= a.offset) {
      const std::size_t element = (i - a.offset) / 4 * 4 + a.offset;
      float x, y;
      std::memcpy(&x, &a.bytes[element], 4);
      std::memcpy(&y, &b.bytes[element], 4);
      if (std::isnan(x) && std::isnan(y)) continue;
    }
    ADD_FAILURE() << what << " differs at byte "
                  << static_cast<std::int64_t>(i) - static_cast<std::int64_t>(a.offset) << ": "
                  << int(a.bytes[i]) << " against " << int(b.bytes[i]);
    return;
  }
}
bool same_maximum(std::uint32_t a, std::uint32_t b, DType type) {
  return a == b || (type == DType::kFloat32 && a > numerics::kInfBits && b > numerics::kInfBits);
}

void check_loop(const LoopCase& c, std::int64_t n, std::size_t misalign, Inputs inputs,
                std::uint64_t first = 0) {
  Buffers wanted = make_buffers(c.types, n, misalign, inputs, 7u + static_cast<std::uint32_t>(n));
  const Buffers start = wanted;
  const AdamMaxima max = definition(make_loop(c, wanted, n, first));
  for (Isa isa : levels()) {
    Buffers b = start;
    const AdamMaxima seen = kernels::cpu::loops(isa).adam(make_loop(c, b, n, first));
    const std::string where = std::string(kernels::cpu::name(isa)) + " " + name(c.types.p) + "/" +
                              name(c.types.g) + "/" + name(c.types.m) + "/" + name(c.types.v) +
                              " n " + std::to_string(n);
    expect_equal(b.p, wanted.p, c.types.p, where + ": p");
    expect_equal(b.g, wanted.g, c.types.g, where + ": g");
    expect_equal(b.m, wanted.m, c.types.m, where + ": m");
    expect_equal(b.v, wanted.v, c.types.v, where + ": v");
    EXPECT_TRUE(same_maximum(seen.p, max.p, c.types.p)) << where << " " << seen.p << " " << max.p;
    EXPECT_TRUE(same_maximum(seen.m, max.m, c.types.m)) << where << " " << seen.m << " " << max.m;
    EXPECT_TRUE(same_maximum(seen.v, max.v, c.types.v)) << where << " " << seen.v << " " << max.v;
    if (testing::Test::HasFailure()) return;
  }
}

// Scalars whose results lie inside the formats, for random codes.
numerics::AdamScalars ordinary_scalars(AdamTypes t) {
  const auto inv = [](DType type) {
    return type == DType::kFloat32 ? 1.0f : 1.0f / format_max(type);
  };
  numerics::AdamHyperparameters h;
  h.weight_decay = 0.1f;
  numerics::AdamScalars s = numerics::adam_scalars(h, 5, inv(t.g), inv(t.p), inv(t.m), inv(t.v));
  s.p_scale = t.p == DType::kFloat32 ? 1.0f : format_max(t.p) / 1.5f;
  s.m_scale = t.m == DType::kFloat32 ? 1.0f : format_max(t.m) * 0.987f;
  s.v_scale = t.v == DType::kFloat32 ? 1.0f : format_max(t.v) * 0.987f;
  return s;
}

constexpr Rounding kNearest = Rounding::kNearest, kStochastic = Rounding::kStochastic;
constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 17, 31, 64, 511, 513, 1000, 70000};

TEST(AdamLoops, LevelsOfUseEqualTheDefinition) {
  for (AdamTypes t : {test::kO1, test::kO2, test::kFloats, test::kO2States})
    for (Rounding p : {kNearest, kStochastic})
      for (Rounding m : {kNearest, kStochastic})
        for (std::int64_t n : kSizes)
          for (std::size_t misalign : {0, 1})
            check_loop({t, p, m, kNearest, ordinary_scalars(t)}, n, misalign, Inputs::kOrdinary);
}

TEST(AdamLoops, EveryCombinationOfTypesEqualsTheDefinition) {
  for (DType p : {DType::kFloat16, DType::kE4M3, DType::kFloat32})
    for (DType g : {DType::kE4M3, DType::kE5M2, DType::kFloat16, DType::kBFloat16, DType::kFloat32})
      for (DType m : {DType::kE4M3, DType::kFloat32})
        for (DType v : {DType::kFloat16, DType::kE4M3, DType::kE5M2, DType::kFloat32})
          for (Rounding r : {kNearest, kStochastic}) {
            const AdamTypes t{p, g, m, v};
            check_loop({t, r, r, r, ordinary_scalars(t)}, 1111, 1, Inputs::kOrdinary);
          }
}

TEST(AdamLoops, WeightDecayInTheGradient) {
  for (AdamTypes t : {test::kO1, test::kO2, test::kFloats}) {
    LoopCase c{t, kNearest, kStochastic, kNearest, ordinary_scalars(t)};
    c.scalars.p_l2 = c.scalars.p_keep * 0.3f;
    check_loop(c, 1111, 0, Inputs::kOrdinary);
  }
}

// Saturation, NaN and Inf codes, products that overflow or underflow, eps = 0.
TEST(AdamLoops, ExtremeValuesEqualTheDefinition) {
  for (AdamTypes t : {test::kO1, test::kO2, test::kFloats, test::kO2States})
    for (Rounding r : {kNearest, kStochastic}) {
      LoopCase c{t, r, r, kNearest, ordinary_scalars(t)};
      check_loop(c, 5000, 0, Inputs::kExtreme);
      for (float factor : {0x1p-126f, 0x1p-60f, 0x1p60f, 0x1p99f, 0x1p101f, 0x1p119f, 0x1p124f}) {
        LoopCase d = c;
        d.scalars.grad = factor;
        check_loop(d, 1000, 0, Inputs::kOrdinary);
        d = c, d.scalars.m_keep = factor;
        check_loop(d, 1000, 0, Inputs::kOrdinary);
        d = c, d.scalars.v_keep *= factor;
        check_loop(d, 1000, 0, Inputs::kOrdinary);
        d = c, d.scalars.step *= factor;
        check_loop(d, 1000, 0, Inputs::kOrdinary);
        d = c, d.scalars.v_scale = std::min(factor, numerics::kMaxScale);
        check_loop(d, 1000, 0, Inputs::kOrdinary);
        d = c, d.scalars.m_scale = std::min(factor, numerics::kMaxScale);
        check_loop(d, 1000, 0, Inputs::kOrdinary);
      }
      c.scalars.eps = 0.0f;
      check_loop(c, 1000, 0, Inputs::kOrdinary);
      c.scalars.grad = std::numeric_limits<float>::infinity();
      check_loop(c, 1000, 0, Inputs::kOrdinary);
    }
}

// Stochastic masters as trained ones are: normal numbers and zeros in all but one place, where the
// new value is subnormal, the smallest normal one or the largest.
TEST(AdamLoops, OneMasterOutOfTheOrdinary) {
  LoopCase c{test::kO2, kStochastic, kStochastic, kNearest, ordinary_scalars(test::kO2)};
  c.scalars.p_keep = c.scalars.p_scale = 1.0f;
  c.scalars.step = 0.0f;
  for (Isa isa : levels())
    for (int where : {0, 7, 8, 33, 511, 512, 599})
      for (float value : {0.0f, 0x1p-24f, 0x1.ffcp-15f, 0x1p-14f, 0x1.004p-14f, 65504.0f})
        for (float factor : {1.0f, 1.0003f, 0.9997f, 0x1p-9f}) {
          c.scalars.p_keep = factor;
          Buffers wanted = make_buffers(c.types, 600, 0, Inputs::kOrdinary, 3);
          auto* const p = static_cast<std::uint16_t*>(wanted.p.data());
          for (int i = 0; i < 600; ++i)
            p[i] = i % 19 == 0 ? 0 : static_cast<std::uint16_t>(0x5000 + 13 * i % 0x1000);
          p[where] = numerics::encode<numerics::Fp16>(value, kNearest, Overflow::kSaturate);
          Buffers b = wanted;
          const AdamMaxima max = definition(make_loop(c, wanted, 600, 0)),
                           seen = kernels::cpu::loops(isa).adam(make_loop(c, b, 600, 0));
          expect_equal(b.p, wanted.p, DType::kFloat16, "p of " + std::to_string(value));
          EXPECT_EQ(seen.p, max.p) << value;
        }
}

// A block of O2 in which one code is NaN, at every position of a group.
TEST(AdamLoops, OneNaNCode) {
  for (int where = 0; where < 80; ++where)
    for (int which = 0; which < 4; ++which) {
      LoopCase c{test::kO2, kNearest, kStochastic, kNearest, ordinary_scalars(test::kO2)};
      Buffers wanted = make_buffers(c.types, 600, 0, Inputs::kOrdinary, 3);
      if (which < 2)
        static_cast<std::uint8_t*>(which ? wanted.m.data() : wanted.g.data())[where] =
            where % 2 ? 0x7f : 0xff;
      else
        static_cast<std::uint16_t*>(which == 2 ? wanted.p.data() : wanted.v.data())[where] = 0x7e01;
      const Buffers start = wanted;
      definition(make_loop(c, wanted, 600, 0));
      for (Isa isa : levels()) {
        Buffers b = start;
        const AdamMaxima max = kernels::cpu::loops(isa).adam(make_loop(c, b, 600, 0));
        expect_equal(b.p, wanted.p, DType::kFloat16, "p");
        expect_equal(b.m, wanted.m, DType::kE4M3, "m");
        expect_equal(b.v, wanted.v, DType::kFloat16, "v");
        EXPECT_EQ(max.p, 0x7fffu);
      }
    }
}

// Buffers that end where the page after them cannot be read.
class PageEnd {
 public:
  explicit PageEnd(std::size_t size) : size_(size) {
    pages_ = static_cast<char*>(
        mmap(nullptr, kMapped + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(pages_, MAP_FAILED);
    EXPECT_EQ(mprotect(pages_ + kMapped, kPage, PROT_NONE), 0);
  }
  PageEnd(const PageEnd&) = delete;
  ~PageEnd() { munmap(pages_, kMapped + kPage); }
  void* data() { return pages_ + kMapped - size_; }

 private:
  static constexpr std::size_t kPage = 65536, kMapped = 65536;
  std::size_t size_;
  char* pages_;
};

TEST(AdamLoops, NoAccessPastTheEnd) {
  for (AdamTypes t : {test::kO1, test::kO2, test::kFloats,
                      AdamTypes{DType::kE4M3, DType::kBFloat16, DType::kE4M3, DType::kE5M2}})
    for (std::int64_t n : {0, 1, 15, 16, 17, 31, 33, 63, 65, 511, 513, 1000}) {
      const auto bytes = [&](DType type) {
        return static_cast<std::size_t>(n * size_in_bytes(type));
      };
      PageEnd p(bytes(t.p)), g(bytes(t.g)), m(bytes(t.m)), v(bytes(t.v));
      const AdamLoop loop{
          p.data(), g.data(),    m.data(), v.data(), t.p, t.g, t.m, t.v, ordinary_scalars(t),
          kNearest, kStochastic, kNearest, 1,        2,   n,   0};
      for (Isa isa : levels()) kernels::cpu::loops(isa).adam(loop);
    }
}

TEST(AdamLoops, RandomBitsFollowTheElement) {
  const LoopCase c{test::kO2, kStochastic, kStochastic, kNearest, ordinary_scalars(test::kO2)};
  for (std::uint64_t first :
       {std::uint64_t(16), std::uint64_t(1) << 33, (std::uint64_t(1) << 33) - 512,
        (std::uint64_t(1) << 33) - 48, std::uint64_t(512) * 12345})
    check_loop(c, 1000, 0, Inputs::kOrdinary, first);
}

}  // namespace
}  // namespace fp8amp
