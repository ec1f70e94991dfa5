// Sums over rows: alone and in the casts, against the order of numerics/column_sums.h written out
// column by column; the loops of every level; bad input.
#include <fp8amp/parallel.h>
#include <fp8amp/quantize.h>

#include <cmath>
#include <limits>

#include "bad_input.h"
#include "edge_array.h"
#include "scalar_loops.h"

namespace fp8amp::test {
namespace {

constexpr std::int64_t kRows[] = {0, 1, 31, 32, 33, 64, 65, 1023, 1024, 1025, 1056};
constexpr std::int64_t kCols[] = {1, 3, 16, 33, 64, 130};

// 32 values become one, and so on until one is left.
float add_in_order(std::vector<float> values) {
  while (values.size() > 1) {
    std::vector<float> sums((values.size() + 31) / 32, 0.0f);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i / 32] += values[i];
    values = std::move(sums);
  }
  return values.empty() ? 0.0f : 0.0f + values[0];
}

std::vector<float> expected_sums(const void* x, DType type, float factor, std::int64_t rows,
                                 std::int64_t cols) {
  std::vector<float> sums;
  for (std::int64_t c = 0; c < cols; ++c) {
    std::vector<float> values;
    for (std::int64_t r = 0; r < rows; ++r)
      values.push_back(load_element(x, type, r * cols + c) * factor);
    sums.push_back(add_in_order(values));
  }
  return sums;
}

// Bit for bit, NaN to NaN.
template <class Sums>
void expect_same(const Sums& sums, const std::vector<float>& expected, const std::string& what) {
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float a = sums[std::int64_t(i)], b = expected[i];
    ASSERT_TRUE(numerics::float_bits(a) == numerics::float_bits(b) ||
                (std::isnan(a) && std::isnan(b)))
        << what << ", column " << i << " of " << expected.size() << ": " << a << " and " << b;
  }
}

// ---- loops
class ColumnLoops : public testing::TestWithParam<Isa> {
 protected:
  const cpu::Loops& loops() const { return cpu::loops(GetParam()); }
};

TEST_P(ColumnLoops, AddRows) {
  for (Edge edge : {Edge::kEnd, Edge::kBegin})
    for (std::int64_t cols : {0, 1, 15, 16, 17, 31, 63, 64, 65, 200, 1000})
      for (std::int64_t rows : {0, 1, 3, 4, 6, 9})
        for (DType type : kAllTypes) {
          const float factor = rows % 2 ? 0.37f : 1.0f;
          const std::int64_t stride = cols + 3, n = rows ? (rows - 1) * stride + cols : 0;
          EdgeArray<std::uint8_t> x(n * size_in_bytes(type), edge);
          EdgeArray<float> sums(cols, edge);
          fill_random(x.data(), type, n, std::uint64_t(n) + 1);
          fill_random(sums.data(), DType::kFloat32, cols, std::uint64_t(n) + 2);
          std::vector<float> expected(sums.data(), sums.data() + cols);
          for (std::int64_t i = 0; i < rows * cols; ++i)
            expected[std::size_t(i % cols)] +=
                load_element(x.data(), type, i / cols * stride + i % cols) * factor;
          loops().add_rows({x.data(), type, factor, rows, cols, stride, sums.data()});
          expect_same(sums, expected, name(type));
          if (HasFatalFailure()) return;
        }
}

TEST_P(ColumnLoops, CastTransposeAddsTheValues) {
  for (std::int64_t rows : {1, 31, 32, 33, 64, 65, 100, 160})
    for (std::int64_t cols : {1, 33, 128, 300})
      for (DType type : kAllTypes) {
        const std::int64_t n = rows * cols, groups = (rows + 31) / 32;
        EdgeArray<std::uint8_t> x(n * size_in_bytes(type), Edge::kEnd), y(n, Edge::kEnd),
            yt(n, Edge::kEnd), plain(n, Edge::kEnd), plain_t(n, Edge::kEnd);
        EdgeArray<float> sums(groups * cols, Edge::kEnd);
        fill_random(x.data(), type, n, std::uint64_t(n));
        cpu::CastLoop l{x.data(),           type,           true, 0.3f,
                        y.data(),           DType::kE5M2,   3.0f, 0,
                        Rounding::kNearest, Overflow::kNaN, 0,    0};
        loops().cast_transpose({l, rows, cols, yt.data(), rows, sums.data()});
        for (std::int64_t k = 0; k < groups; ++k) {
          const std::int64_t first = 32 * k * cols,
                             count = std::min<std::int64_t>(32, rows - 32 * k);
          expect_same(
              sums.data() + k * cols,
              expected_sums(element_pointer(x.data(), type, first), type, 0.3f, count, cols),
              name(type));
          if (HasFatalFailure()) return;
        }
        l.y = plain.data();
        loops().cast_transpose({l, rows, cols, plain_t.data(), rows, nullptr});
        ASSERT_TRUE(y == plain && yt == plain_t) << name(type);
      }
}

INSTANTIATE_TEST_SUITE_P(Levels, ColumnLoops, testing::ValuesIn(levels()), level_name);

// ---- public functions
// x[rows, cols], its end at unreadable memory; finite, of both signs and many sizes.
struct Matrix {
  std::int64_t rows, cols;
  DType type;
  EdgeArray<std::uint8_t> bytes;
  Tensor scale_inv{};

  Matrix(std::int64_t r, std::int64_t c, DType t, Edge edge = Edge::kEnd)
      : rows(r), cols(c), type(t), bytes(r * c * size_in_bytes(t), edge) {
    Xorshift next(std::uint64_t(r * 131 + c));
    for (std::int64_t i = 0; i < r * c; ++i) {
      const float value = float((2.0 * next.uniform() - 1.0) * std::exp2(-double(next() % 12)));
      if (is_float8(t))
        store_code(bytes.data(), t, i, value, 400.0f, Rounding::kNearest, Overflow::kSaturate, 0);
      else
        store_element(bytes.data(), t, i, value);
    }
    if (is_float8(t)) scale_inv = scalar(0.0025f);
  }
  ScaledTensor tensor() const {
    const void* data = bytes.data();
    return {rows != 0 ? Tensor::view(data, type, {rows, cols})
                      : Tensor::view(nullptr, type, {rows, cols}),
            scale_inv};
  }
  void set(std::int64_t i, float value) { store_element(bytes.data(), type, i, value); }
  std::vector<float> sums() const {
    return expected_sums(bytes.data(), type, scale_inv.defined() ? 0.0025f : 1.0f, rows, cols);
  }
};

// A cast of x with the sums and without: the sums are the expected ones, all else is equal.
void expect_cast(const Matrix& x, DType format, bool transpose, QuantizeOptions options,
                 const std::string& what) {
  EdgeArray<float> memory(x.cols, Edge::kEnd);
  std::fill(memory.data(), memory.data() + x.cols, -1.0f);
  const Tensor amax[2] = {tensor({}), tensor({})},
               sums = Tensor::view(static_cast<void*>(memory.data()), DType::kFloat32, {x.cols});
  ScaledTensor out[2];
  Tensor transposed[2];
  for (int with = 0; with < 2; ++with) {
    out[with] = scaled({x.rows, x.cols}, format);
    options.amax = amax[with];
    options.column_sums = with ? sums : Tensor();
    if (transpose) {
      transposed[with] = tensor({x.cols, x.rows}, format);
      quantize_transpose(x.tensor(), out[with], transposed[with], options);
    } else {
      quantize(x.tensor(), out[with], options);
    }
  }
  expect_same(memory, x.sums(), what);
  const auto equal = [](const Tensor& a, const Tensor& b) {
    return std::memcmp(a.data(), b.data(), std::size_t(a.nbytes())) == 0;
  };
  EXPECT_TRUE(x.rows == 0 || equal(out[0].payload(), out[1].payload())) << what;
  EXPECT_TRUE(equal(out[0].scale_inv(), out[1].scale_inv()) && equal(amax[0], amax[1])) << what;
  EXPECT_TRUE(!transpose || x.rows == 0 || equal(transposed[0], transposed[1])) << what;
}

void expect_alone(const Matrix& x, const std::string& what) {
  EdgeArray<float> sums(x.cols, Edge::kEnd);
  std::fill(sums.data(), sums.data() + x.cols, -1.0f);
  column_sums(x.tensor(), Tensor::view(static_cast<void*>(sums.data()), DType::kFloat32, {x.cols}));
  expect_same(sums, x.sums(), what);
}

std::string describe(const Matrix& x) {
  return std::string(name(x.type)) + ", " + std::to_string(x.rows) + " x " + std::to_string(x.cols);
}

TEST(ColumnSums, EveryShapeAndType) {
  for (std::int64_t rows : kRows)
    for (std::int64_t cols : kCols)
      for (DType type : kAllTypes) {
        const Matrix x(rows, cols, type);
        expect_alone(x, describe(x));
        expect_cast(x, DType::kE5M2, true, {.overflow = Overflow::kNaN}, describe(x));
        expect_cast(x, DType::kE5M2, false, {.overflow = Overflow::kNaN}, describe(x));
        if (testing::Test::HasFailure()) return;
      }
}

TEST(ColumnSums, EveryFormatAndRounding) {  // a row need not begin at a multiple of 16 elements
  for (std::int64_t cols : {33, 48})
    for (DType type : kAllTypes)
      for (DType format : kFormats)
        for (Rounding rounding : kRoundings) {
          const Matrix x(70, cols, type, Edge::kBegin);
          expect_cast(x, format, false, {.rounding = rounding, .seed = 5}, describe(x));
        }
}

TEST(ColumnSums, EveryNumberOfThreads) {
  const int threads = num_threads();
  const Matrix x(3001, 70, DType::kBFloat16);
  for (int count : {1, 2, 3, 7}) {
    set_num_threads(count);
    expect_alone(x, describe(x));
    for (bool transpose : {false, true}) expect_cast(x, DType::kE4M3, transpose, {}, describe(x));
  }
  set_num_threads(threads);
  set_parallel_for(
      [](std::int64_t begin, std::int64_t end, std::int64_t, const RangeFunction& body) {
        for (std::int64_t i = end; i > begin; --i) body(i - 1, i);  // one unit at a time, backwards
      });
  expect_alone(x, describe(x));
  for (bool transpose : {false, true}) expect_cast(x, DType::kE4M3, transpose, {}, describe(x));
  set_parallel_for(nullptr);
}

// What is cast to NaN or to the largest value is what it is in the sum.
TEST(ColumnSums, NonFiniteAndSaturatingValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (DType type : kPlainTypes)
    for (Overflow overflow : kOverflows)
      for (bool transpose : {false, true}) {
        Matrix x(100, 40, type);
        x.set(7, NAN);
        x.set(50 * 40 + 8, kInf);
        x.set(9, kInf);
        x.set(99 * 40 + 9, -kInf);
        x.set(10, 60000.0f);
        const Tensor scale = scalar(8.0f);
        expect_cast(x, DType::kE4M3, transpose, {.overflow = overflow, .scale = scale},
                    describe(x));
        const std::vector<float> sums = x.sums();
        EXPECT_TRUE(std::isnan(sums[7]) && sums[8] == kInf && std::isnan(sums[9]));
        EXPECT_GT(sums[10], 50000.0f);
        EXPECT_TRUE(std::isfinite(sums[6]));
      }
}

TEST(ColumnSums, NegativeZerosAddUpToZero) {
  Matrix x(2, 3, DType::kFloat32);
  for (std::int64_t i = 0; i < 6; ++i) x.set(i, -0.0f);
  expect_alone(x, "-0");
  EXPECT_EQ(numerics::float_bits(x.sums()[0]), 0u);
}

// ---- bad input
TEST(ColumnSums, BadInput) {
  const Tensor x = tensor({4, 8}), sums = tensor({8}), t = tensor({8, 4}, DType::kE4M3);
  sums.mutable_data_as<float>()[0] = 7.0f;
  const ScaledTensor out = scaled({4, 8});
  *out.scale_inv().mutable_data_as<float>() = 7.0f;
  const auto alone = [](const ScaledTensor& a, const Tensor& b) {
    return [=] { column_sums(a, b); };
  };
  expect_error(alone(Tensor(), sums), {"column_sums", "x", "undefined"});
  expect_error(alone(tensor({8}), sums), {"column_sums", "x", "2 dimensions", "[8]"});
  expect_error(alone(tensor({4, 8}, DType::kE4M3), sums), {"x", "scale_inv", "plain float8"});
  expect_error(alone(x, Tensor()), {"column_sums", "out", "undefined"});
  expect_error(alone(x, tensor({8}, DType::kFloat16)), {"out", "float32", "float16"});
  expect_error(alone(x, tensor({4})), {"column_sums", "out", "[8]", "[4]"});
  expect_error(alone(x, Tensor::view(sums.mutable_data(), DType::kFloat32, {8}, fp8amp::cuda(0))),
               {"out", "cpu", "cuda:0"});
  expect_error(alone(x, Tensor::view(x.mutable_data(), DType::kFloat32, {8})),
               {"column_sums", "out", "overlap", "x"});
  expect_error(alone(x, Tensor::view(sums.data(), DType::kFloat32, {8})), {"read-only"});
  const ScaledTensor rows =
      ScaledTensor::allocate({4, 8}, DType::kE4M3, kCpu, ScaleGranularity::kRow);
  expect_error(alone(rows, sums), {"x", "one scale"});

  const auto cast = [&](const ScaledTensor& a, const ScaledTensor& b, const Tensor& c) {
    return [=] { quantize(a, b, {.column_sums = c}); };
  };
  expect_error(cast(tensor({2, 2, 8}), scaled({2, 2, 8}), sums), {"quantize", "x", "2 dimensions"});
  expect_error(cast(x, out, tensor({4})), {"quantize", "column_sums", "[8]", "[4]"});
  expect_error(cast(x, out, tensor({8}, DType::kBFloat16)), {"column_sums", "bfloat16"});
  expect_error(cast(x, out, Tensor::view(x.mutable_data(), DType::kFloat32, {8})),
               {"quantize", "column_sums", "overlap", "x"});
  expect_error(cast(x, out, Tensor::view(out.payload().mutable_data(), DType::kFloat32, {8})),
               {"column_sums", "overlap", "out"});
  expect_error(cast(x, out, Tensor::view(sums.data(), DType::kFloat32, {8})), {"read-only"});
  expect_error(
      [&] {
        quantize_transpose(x, out, t,
                           {.column_sums = Tensor::view(t.mutable_data(), DType::kFloat32, {8})});
      },
      {"quantize_transpose", "column_sums", "overlap", "transposed"});
  expect_error([&] { quantize_transpose(x, out, t, {.column_sums = tensor({4})}); },
               {"quantize_transpose", "column_sums", "[8]", "[4]"});
  EXPECT_EQ(*out.scale_inv().data_as<float>(), 7.0f);
  EXPECT_EQ(*sums.data_as<float>(), 7.0f);
}

}  // namespace
}  // namespace fp8amp::test
