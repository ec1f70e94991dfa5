// cuBLASLt: the rules of its legality tables, and the descriptors of the real library, where it is
// installed.
#include "tests/emulator/gemm_case.h"

namespace fp8amp::gpu {
namespace {

MatmulProblem problem() {
  MatmulProblem p;
  p.m = p.n = p.k = 256;
  p.a.leading_dimension = p.b.leading_dimension = p.d_leading_dimension = 256;
  return p;
}

void expect_refused(const MatmulProblem& p, int compute_capability, const std::string& words,
                    std::size_t version = 130100) {
  const std::string why = refusal(p, compute_capability, version);
  EXPECT_NE(why.find(words), std::string::npos) << "'" << why << "' does not say '" << words << "'";
}

TEST(CublasLtRules, PerTensorScales) {
  for (int cc : {89, 90, 100, 103, 120, 121}) EXPECT_EQ(refusal(problem(), cc, 120000), "");
  expect_refused(problem(), 80, "need compute capability 8.9, this GPU has 8.0");
  for (MatmulOperand MatmulProblem::*x : {&MatmulProblem::a, &MatmulProblem::b}) {
    MatmulProblem p = problem();
    (p.*x).k_contiguous = false;
    for (int cc : {89, 90, 110, 120}) expect_refused(p, cc, "k contiguous");
    EXPECT_EQ(refusal(p, 100, 130100), "");
    p = problem();
    (p.*x).alignment = 8;
    expect_refused(p, 90, "multiples of 16 bytes");
    p = problem();
    (p.*x).leading_dimension = 264;
    expect_refused(p, 90, "multiples of 16 bytes");
    p = problem();
    (p.*x).type = CUDA_R_16BF;
    expect_refused(p, 90, "both be float8");
  }
  MatmulProblem p = problem();
  p.a.type = p.b.type = CUDA_R_8F_E5M2;
  expect_refused(p, 90, "no float8_e5m2 x float8_e5m2");
  p = problem();
  p.k = 248;
  expect_refused(p, 90, "multiples of 16");
  p = problem();
  p.d_alignment = 8;
  expect_refused(p, 90, "d must have pointer");
  p = problem();
  p.d_type = CUDA_R_8F_E4M3;
  expect_refused(p, 90, "d must be float32, bfloat16 or float16");
}

TEST(CublasLtRules, RowAndBlockScales) {
  using enum ScaleGranularity;
  struct Pair {
    ScaleGranularity a, b;
    bool legal;
  };
  const Pair pairs[] = {{kRow, kRow, true},
                        {kBlock1x128, kBlock1x128, true},
                        {kBlock1x128, kBlock128x128, true},
                        {kBlock128x128, kBlock1x128, true},
                        {kBlock128x128, kBlock128x128, false},
                        {kRow, kTensor, false},
                        {kTensor, kBlock1x128, false}};
  for (const Pair& pair : pairs) {
    MatmulProblem p = problem();
    p.a.scale_mode = pair.a;
    p.b.scale_mode = pair.b;
    if (!pair.legal) {
      expect_refused(p, 90, "cannot be combined");
      continue;
    }
    EXPECT_EQ(refusal(p, 90, 120900), "");
    for (int cc : {89, 100, 120})
      expect_refused(p, cc, "need compute capability 9.0, this GPU has");
    expect_refused(p, 90, "need cuBLASLt 12.9.0 or later, this is 12.8.4", 120804);
    p.fast_accumulation = true;
    if (pair.a != kRow) expect_refused(p, 90, "exclude fast accumulation");
    p.fast_accumulation = false;
    if (pair.a == kRow) continue;
    const std::int64_t multiple = pair.a == kBlock1x128 ? 8 : 4;
    p.m = 256 - multiple;
    EXPECT_EQ(refusal(p, 90, 120900), "");
    p.m -= multiple / 2;
    expect_refused(p, 90, "multiples of " + std::to_string(multiple));
  }
}

// ---- the real library --------------------------------------------------------------------------

const CublasLt* real = nullptr;  // as the functions of a table have no state

template <class T>
T attribute(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t which) {
  T value{};
  std::size_t written = 0;
  EXPECT_EQ(real->MatmulDescGetAttribute(operation, which, &value, sizeof value, &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, sizeof value);
  return value;
}

template <class T>
T attribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t which) {
  T value{};
  std::size_t written = 0;
  EXPECT_EQ(real->MatrixLayoutGetAttribute(layout, which, &value, sizeof value, &written),
            CUBLAS_STATUS_SUCCESS);
  return value;
}

void expect_layout(cublasLtMatrixLayout_t layout, std::uint64_t rows, std::uint64_t columns,
                   std::int64_t leading_dimension, int type) {
  EXPECT_EQ(attribute<std::uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_ROWS), rows);
  EXPECT_EQ(attribute<std::uint64_t>(layout, CUBLASLT_MATRIX_LAYOUT_COLS), columns);
  EXPECT_EQ(attribute<std::int64_t>(layout, CUBLASLT_MATRIX_LAYOUT_LD), leading_dimension);
  EXPECT_EQ(attribute<std::int32_t>(layout, CUBLASLT_MATRIX_LAYOUT_TYPE), type);
}

const float kScales[2] = {1, 1};
alignas(16) const std::uint16_t kBias[16] = {};

cublasStatus_t inspect(cublasLtHandle_t, cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                       cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t* result,
                       int* found) {
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSA), CUBLAS_OP_T);
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_TRANSB), CUBLAS_OP_N);
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_COMPUTE_TYPE), CUBLAS_COMPUTE_32F);
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_EPILOGUE), CUBLASLT_EPILOGUE_BIAS);
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE), CUDA_R_16BF);
  EXPECT_EQ(attribute<std::int8_t>(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM), 1);
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE), 5);
  EXPECT_EQ(attribute<std::int32_t>(op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE), 4);
  // cuBLASLt's A is our b
  EXPECT_EQ(attribute<const float*>(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER), &kScales[1]);
  EXPECT_EQ(attribute<const float*>(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER), &kScales[0]);
  EXPECT_EQ(attribute<const void*>(op, CUBLASLT_MATMUL_DESC_BIAS_POINTER), kBias);
  expect_layout(a, 1024, 384, 1040, CUDA_R_8F_E5M2);
  expect_layout(b, 1024, 256, 1024, CUDA_R_8F_E4M3);
  expect_layout(d, 384, 256, 400, CUDA_R_16BF);
  result->state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

TEST(RealCublasLt, DescriptorsReadBack) {
  CublasLt library;
  try {
    library = load_cublaslt();
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  EXPECT_GE(library.GetVersion(), 130000u);
  EXPECT_NE(library.path, "");
  real = &library;
  CublasLt table = library;  // without a GPU the real ones of these only say NOT_INITIALIZED
  table.Create = fake_cublaslt::table().Create;
  table.Destroy = fake_cublaslt::table().Destroy;
  table.MatmulAlgoGetHeuristic = inspect;
  const ContextOverride with_table(table, 90);
  MatmulProblem p;
  p.m = 256;
  p.n = 384;
  p.k = 1024;
  p.a.leading_dimension = 1024;
  p.a.scale_mode = ScaleGranularity::kBlock1x128;
  p.b = {CUDA_R_8F_E5M2, true, 1040, ScaleGranularity::kBlock128x128, 16};
  p.d_type = CUDA_R_16BF;
  p.d_leading_dimension = 400;
  p.has_bias = p.fast_accumulation = true;
  const MatmulPointers pointers{nullptr, nullptr, &kScales[0], &kScales[1], nullptr, kBias};
  EXPECT_NO_THROW(MatmulPlan(Context::current(nullptr), p, pointers));
  EXPECT_THROW(
      check(library,
            library.MatmulDescSetAttribute(nullptr, CUBLASLT_MATMUL_DESC_TRANSA, nullptr, 0),
            "cublasLtMatmulDescSetAttribute"),
      Error);
}

TEST(RealLibraries, StatusNamesPathAndVersionOrTheReason) {
  const std::string status = cublaslt_status();
  EXPECT_TRUE(status.find(", version 1") != status.npos || status.find("cannot load") == 0)
      << status;
}

}  // namespace
}  // namespace fp8amp::gpu
