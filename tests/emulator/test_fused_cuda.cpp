// Norms and activations with a cast, and the norms' backward, of the CUDA backend on the emulator:
// every bit is the CPU backend's.
#include "kernels/fused.h"
#include "tests/emulator/cuda_data.h"
#include "tests/emulator/cuda_emu.h"

namespace fp8amp {
namespace {

using namespace kernels;
using test::Data;

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr std::int64_t kRows[] = {0, 1, 3, 17, 33};
constexpr std::int64_t kCols[] = {1, 8, 33, 160, 1000, 4101};

struct Kind {
  const char* name;
  FusedOp op;
  GeluForm form = GeluForm::kErf;
  bool centered = true, beta = true;  // of norms
};
const Kind kKinds[] = {
    {"LayerNorm", FusedOp::kNorm},
    {"LayerNorm without beta", FusedOp::kNorm, GeluForm::kErf, true, false},
    {"RMSNorm", FusedOp::kNorm, GeluForm::kErf, false, false},
    {"GELU, erf", FusedOp::kGelu},
    {"GELU, tanh", FusedOp::kGelu, GeluForm::kTanh},
    {"SwiGLU", FusedOp::kSwiGlu},
    {"gradient of GELU, erf", FusedOp::kGeluBackward},
    {"gradient of GELU, tanh", FusedOp::kGeluBackward, GeluForm::kTanh},
    {"gradient of SwiGLU", FusedOp::kSwiGluBackward},
};

// NaN to NaN: its bits are not the result's.
void expect_same(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    ASSERT_TRUE(test::same(a[i], b[i]))
        << what << ", element " << i << ": " << a[i] << " and " << b[i];
}

struct Written {
  Data y, transposed;
  std::vector<float> mean, rstd;
  float scale_inv = 0.25f, amax = -1.0f, found_inf = 0.0f;
  std::vector<float> history{};
};

struct Fused {
  Kind kind;
  DType type = DType::kBFloat16;
  std::int64_t rows = 17, cols = 160;
  DType format = DType::kE4M3;
  std::int64_t offset = 0;  // misalignment of x, dy and y, in elements
  bool transposed = false, flat = false, special = false, amax = true;
  std::int64_t missing = 0;  // flat: elements that the last row lacks
  float size = 3.0f, shift = 0.0f;
  QuantizeArgs cast{};
  std::vector<float> history{};

  std::int64_t result_cols() const { return kind.op == FusedOp::kSwiGluBackward ? 2 * cols : cols; }
  std::int64_t x_cols() const {
    const bool swiglu = kind.op == FusedOp::kSwiGlu || kind.op == FusedOp::kSwiGluBackward;
    return swiglu ? 2 * cols : cols;
  }
  Data input(std::int64_t n, std::uint32_t seed) const {
    Data x = test::random_data(type, n, seed, size, offset);
    if (shift != 0.0f)
      for (std::int64_t i = 0; i < n; ++i)
        store_element(x.get(), type, i, load_element(x.get(), type, i) + shift);
    if (special) test::add_specials(x);
    return x;
  }

  Written run(void (*fused)(const FusedArgs&)) const {
    const Data x = input(rows * x_cols() - missing, 1), dy = input(rows * cols - missing, 2),
               gamma = test::random_data(DType::kFloat32, cols, 3, 2.0f),
               beta = test::random_data(DType::kFloat32, cols, 4);
    const std::int64_t n = rows * result_cols() - missing;
    const auto count = static_cast<std::size_t>(rows);
    Written w{Data(format, n, offset), Data(format, transposed ? n : 0, offset),
              std::vector<float>(count, -1.0f), std::vector<float>(count, -1.0f)};
    w.history = history;
    FusedArgs a{};
    a.op = kind.op;
    a.form = kind.form;
    a.x = x.get();
    a.x_type = type;
    const bool backward = kind.op == FusedOp::kGeluBackward || kind.op == FusedOp::kSwiGluBackward;
    a.dy = backward ? dy.get() : nullptr;
    if (kind.op == FusedOp::kNorm) {
      a.gamma = static_cast<const float*>(gamma.get());
      a.beta = kind.beta ? static_cast<const float*>(beta.get()) : nullptr;
      a.mean = kind.centered ? w.mean.data() : nullptr;
      a.rstd = w.rstd.data();
      a.eps = 1e-5f;
    }
    a.cast = cast;
    a.cast.y = w.y.get();
    a.cast.format = format;
    a.cast.n = n;
    a.cast.rows = rows;
    a.cast.cols = result_cols();
    a.cast.scale_inv = &w.scale_inv;
    a.cast.amax = amax ? &w.amax : nullptr;
    a.cast.found_inf = &w.found_inf;
    a.cast.transposed = transposed ? w.transposed.as<std::uint8_t>() : nullptr;
    a.cast.history = w.history.data();
    a.cast.history_length = std::int64_t(w.history.size()) - 2;
    fused(a);
    return w;
  }

  void expect_equal() const {
    SCOPED_TRACE(std::string(kind.name) + ", " + name(type) + " to " + name(format) + ", " +
                 std::to_string(rows) + " x " + std::to_string(cols));
    const Written host = run(cpu::fused_quantize), device = run(cuda::fused_quantize);
    expect_same(host.mean, device.mean, "mean");
    expect_same(host.rstd, device.rstd, "rstd");
    ASSERT_EQ(host.y.difference(device.y), "equal");
    ASSERT_EQ(host.transposed.difference(device.transposed), "equal");
    ASSERT_EQ(host.scale_inv, device.scale_inv);
    ASSERT_TRUE(test::same(host.amax, device.amax)) << host.amax << " and " << device.amax;
    ASSERT_EQ(host.found_inf, device.found_inf);
    ASSERT_EQ(host.history, device.history);
  }
};

TEST(CudaFused, EveryShape) {
  for (const Kind& kind : kKinds)
    for (std::int64_t rows : kRows)
      for (std::int64_t cols : kCols) {
        if (rows == 33 && cols == 4101) continue;
        if (test::quick() && rows != 17 && rows != 33) continue;
        for (bool transposed : {false, true})
          Fused{.kind = kind, .rows = rows, .cols = cols, .transposed = transposed}.expect_equal();
        if (HasFatalFailure()) return;
      }
}

TEST(CudaFused, EveryTypeAndFormat) {
  for (const Kind& kind : kKinds)
    for (DType type : kTypes)
      for (DType format : {DType::kE4M3, DType::kE5M2})
        for (bool transposed : {false, true})
          for (std::int64_t cols : {48, 144, 33}) {
            Fused{.kind = kind,
                  .type = type,
                  .rows = 16,
                  .cols = cols,
                  .format = format,
                  .transposed = transposed}
                .expect_equal();
            if (HasFatalFailure()) return;
          }
}

TEST(CudaFused, Unaligned) {
  for (const Kind& kind : kKinds)
    for (bool transposed : {false, true})
      Fused{.kind = kind, .offset = 1, .transposed = transposed}.expect_equal();
}

TEST(CudaFused, LastRowOfAFlatActivationIsShorter) {
  for (const Kind& kind : kKinds)
    if (kind.op == FusedOp::kGelu || kind.op == FusedOp::kGeluBackward)
      for (std::int64_t missing : {1, 16, 150})
        Fused{.kind = kind, .rows = 3, .missing = missing}.expect_equal();
}

TEST(CudaFused, SpecialValuesAndPolicies) {
  for (const Kind& kind : kKinds)
    for (Overflow overflow : {Overflow::kSaturate, Overflow::kNaN})
      for (std::int64_t cols : {160, 33})
        for (bool transposed : {false, true}) {
          Fused fused{.kind = kind, .cols = cols, .transposed = transposed, .special = true};
          fused.cast.overflow = overflow;
          fused.expect_equal();
        }
}

TEST(CudaFused, LargeMeansAndTinyDeviations) {
  for (const Kind& kind : kKinds)
    for (float shift : {1000.0f, -30.0f})
      Fused{.kind = kind, .type = DType::kFloat32, .size = 1e-3f, .shift = shift}.expect_equal();
}

TEST(CudaFused, AnySchedule) {
  for (const Kind& kind : kKinds)
    for (bool transposed : {false, true})
      emu::for_each_schedule([&] {
        Fused{.kind = kind, .rows = 11, .cols = 1040, .transposed = transposed}.expect_equal();
      });
}

TEST(CudaFused, EverySourceOfTheScale) {
  const float scale = 20.0f;
  for (const Kind& kind : {kKinds[0], kKinds[3], kKinds[8]})
    for (bool transposed : {false, true})
      for (bool amax : {false, true}) {
        Fused fused{.kind = kind, .transposed = transposed, .amax = amax};
        fused.cast.scale = &scale;
        for (ScaleSource source :
             {ScaleSource::kCurrent, ScaleSource::kGiven, ScaleSource::kKeep}) {
          fused.cast.source = source;
          fused.expect_equal();
        }
        fused.cast.source = ScaleSource::kDelayed;
        fused.cast.scale_rounding = ScaleRounding::kExact;
        fused.history.assign(2 + 2, 0.0f);
        for (int step = 0; step < 6; ++step) {
          SCOPED_TRACE("step " + std::to_string(step));
          fused.size = 1.0f + float(step % 3);
          fused.special = step == 3;
          fused.cast.update_history = false;
          fused.expect_equal();
          fused.cast.update_history = true;
          fused.expect_equal();
          fused.history = fused.run(cpu::fused_quantize).history;
        }
      }
}

// ---- backward of the norms
struct Backward {
  DType type = DType::kBFloat16;
  std::int64_t rows = 17, cols = 160;
  bool centered = true, special = false;
  std::int64_t offset = 0;

  struct Written {
    std::vector<float> dx, dgamma, dbeta;
  };
  Written run(void (*backward)(const NormBackwardArgs&)) const {
    Data x = test::random_data(type, rows * cols, 1, 3.0f, offset),
         dy = test::random_data(type, rows * cols, 2, 1.0f, offset), dx(type, rows * cols, offset);
    const Data gamma = test::random_data(DType::kFloat32, cols, 3, 2.0f),
               mean = test::random_data(DType::kFloat32, rows, 4),
               rstd = test::random_data(DType::kFloat32, rows, 5);
    if (special) test::add_specials(x), test::add_specials(dy);
    const auto n = static_cast<std::size_t>(cols);
    Written w{{}, std::vector<float>(n, -1.0f), std::vector<float>(n, -1.0f)};
    backward({dy.get(), x.get(), type, centered ? static_cast<const float*>(mean.get()) : nullptr,
              static_cast<const float*>(rstd.get()), static_cast<const float*>(gamma.get()),
              dx.get(), w.dgamma.data(), centered ? w.dbeta.data() : nullptr, rows, cols, nullptr});
    for (std::int64_t i = 0; i < rows * cols; ++i) w.dx.push_back(load_element(dx.get(), type, i));
    return w;
  }
  void expect_equal() const {
    SCOPED_TRACE(std::string(name(type)) + ", " + std::to_string(rows) + " x " +
                 std::to_string(cols));
    const Written host = run(cpu::norm_backward), device = run(cuda::norm_backward);
    expect_same(host.dx, device.dx, "dx");
    expect_same(host.dgamma, device.dgamma, "dgamma");
    expect_same(host.dbeta, device.dbeta, "dbeta");
  }
};

TEST(CudaNormBackward, EveryShape) {
  for (bool centered : {true, false})
    for (std::int64_t rows : {0, 1, 3, 17, 32, 33, 100})
      for (std::int64_t cols : kCols) {
        if (rows > 17 && cols == 4101) continue;
        Backward{.rows = rows, .cols = cols, .centered = centered}.expect_equal();
        if (HasFatalFailure()) return;
      }
  Backward{.rows = 1100, .cols = 16}.expect_equal();  // sums of sums of sums
  Backward{.rows = 1100, .cols = 3}.expect_equal();
}

TEST(CudaNormBackward, TypesSpecialsAlignmentsAndSchedules) {
  for (DType type : kTypes)
    for (std::int64_t offset : {0, 1})
      for (bool special : {false, true})
        Backward{.type = type, .rows = 40, .special = special, .offset = offset}.expect_equal();
  emu::for_each_schedule([&] { Backward{.rows = 70, .cols = 528}.expect_equal(); });
}

}  // namespace
}  // namespace fp8amp
