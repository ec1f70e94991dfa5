// Descriptors, algorithm and call of one product.
#include "src/cuda/gemm_plan.h"
#include "src/cuda/dynamic_library.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "fp8amp/error.h"

namespace fp8amp::gpu {
namespace {

using Operation = Descriptor<cublasLtMatmulDescOpaque_t>;
using Layout = Descriptor<cublasLtMatrixLayoutOpaque_t>;
using Preference = Descriptor<cublasLtMatmulPreferenceOpaque_t>;

Operation make_operation(const CublasLt& lt) {
  cublasLtMatmulDesc_t operation = nullptr;
  check(lt, lt.MatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescCreate");
  return {operation, lt.MatmulDescDestroy};
}

Layout make_layout(const CublasLt& lt, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                   std::int64_t leading_dimension) {
  cublasLtMatrixLayout_t layout = nullptr;
  check(lt,
        lt.MatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(rows),
                              static_cast<std::uint64_t>(columns), leading_dimension),
        "cublasLtMatrixLayoutCreate");
  return {layout, lt.MatrixLayoutDestroy};
}

Layout make_layout(const CublasLt& lt, const MatmulOperand& x, std::int64_t rows, std::int64_t k) {
  return x.k_contiguous ? make_layout(lt, x.type, k, rows, x.leading_dimension)
                        : make_layout(lt, x.type, rows, k, x.leading_dimension);
}

Preference make_preference(const CublasLt& lt, const MatmulProblem& p, std::uint64_t workspace) {
  cublasLtMatmulPreference_t handle = nullptr;
  check(lt, lt.MatmulPreferenceCreate(&handle), "cublasLtMatmulPreferenceCreate");
  Preference preference{handle, lt.MatmulPreferenceDestroy};
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    check(lt, lt.MatmulPreferenceSetAttribute(handle, attribute, &value, sizeof value),
          "cublasLtMatmulPreferenceSetAttribute");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a.alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.d_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.d_alignment);
  return preference;
}

std::int32_t scale_mode(ScaleGranularity mode) {
  switch (mode) {
    case ScaleGranularity::kTensor: return CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    case ScaleGranularity::kRow: return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    case ScaleGranularity::kBlock1x128: return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
    case ScaleGranularity::kBlock128x128: return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  }
  return -1;
}

// FP8AMP_GEMM_TUNE=k: a plan times the k best algorithms before its first use. 0, the default, and
// what is no number from 1 to 64: takes cuBLASLt's first choice.
int algorithms_to_time() {
  static const int count = [] {
    const char* text = std::getenv("FP8AMP_GEMM_TUNE");
    const long value = text ? std::strtol(text, nullptr, 10) : 0;
    return value >= 1 && value <= 64 ? static_cast<int>(value) : 0;
  }();
  return count;
}

}  // namespace

template <class T>
void MatmulPlan::set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(lt_, lt_.MatmulDescSetAttribute(operation_.get(), attribute, &value, sizeof value),
        "cublasLtMatmulDescSetAttribute");
}

void MatmulPlan::set_pointers(const MatmulPointers& pointers) {
  if (is_fp8(problem_.a.type)) {  // a null scale is 1
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scale_inv);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, pointers.a_scale_inv);
  }
  if (problem_.has_bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, pointers.bias);
}

// Scale modes came with cuBLASLt 12.8: only named where one is asked for.
void MatmulPlan::set_scale_modes() {
  if (problem_.a.scale_mode == ScaleGranularity::kTensor &&
      problem_.b.scale_mode == ScaleGranularity::kTensor)
    return;
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(problem_.b.scale_mode));
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(problem_.a.scale_mode));
}

MatmulPlan::MatmulPlan(Context& context, const MatmulProblem& p, const MatmulPointers& pointers)
    : lt_(context.cublaslt()),
      problem_(p),
      operation_(make_operation(lt_)),
      a_(make_layout(lt_, p.b, p.n, p.k)),
      b_(make_layout(lt_, p.a, p.m, p.k)),
      d_(make_layout(lt_, p.d_type, p.n, p.m, p.d_leading_dimension)) {
  const cublasOperation_t a = p.b.k_contiguous ? CUBLAS_OP_T : CUBLAS_OP_N;
  const cublasOperation_t b = p.a.k_contiguous ? CUBLAS_OP_N : CUBLAS_OP_T;
  set(CUBLASLT_MATMUL_DESC_TRANSA, a);
  set(CUBLASLT_MATMUL_DESC_TRANSB, b);
  if (is_fp8(p.a.type)) {
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(p.fast_accumulation));
    set_scale_modes();
  }
  if (p.has_bias) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(bias_type(p.d_type)));
  }
  set_pointers(pointers);  // the search derives alignments from them
  cublasLtMatmulHeuristicResult_t best{};
  usable_ = find(context, 1, &best) == 1;
  algorithm_ = best.algo;
}

// Number of usable algorithms, best first.
int MatmulPlan::find(Context& context, int count, cublasLtMatmulHeuristicResult_t* results) const {
  const Preference preference = make_preference(lt_, problem_, context.workspace_bytes());
  int found = 0;
  const cublasStatus_t status =
      lt_.MatmulAlgoGetHeuristic(context.handle(), operation_.get(), a_.get(), b_.get(), d_.get(),
                                 d_.get(), preference.get(), count, results, &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(lt_, status, "cublasLtMatmulAlgoGetHeuristic");
  const auto usable = [](const cublasLtMatmulHeuristicResult_t& r) {
    return r.state == CUBLAS_STATUS_SUCCESS;
  };
  if (status != CUBLAS_STATUS_SUCCESS) return 0;
  return static_cast<int>(std::partition(results, results + found, usable) - results);
}

void MatmulPlan::enqueue(Context& context, const Lease& lease, const MatmulPointers& pointers,
                         const cublasLtMatmulAlgo_t& algorithm, cudaStream_t stream) const {
  const float alpha = 1.0f, beta = problem_.accumulate ? 1.0f : 0.0f;
  check(lt_,
        lt_.Matmul(context.handle(), operation_.get(), &alpha, pointers.b, a_.get(), pointers.a,
                   b_.get(), &beta, pointers.d, d_.get(), pointers.d, d_.get(), &algorithm,
                   lease.workspace(context.workspace_bytes()), context.workspace_bytes(), stream),
        "cublasLtMatmul");
}

void MatmulPlan::run(Context& context, const Lease& lease, const MatmulPointers& pointers,
                     cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  set_pointers(pointers);
  enqueue(context, lease, pointers, algorithm_, stream);
}

bool matmul(Context& context, const Lease& lease, const MatmulProblem& problem,
            const MatmulPointers& pointers, cudaStream_t stream) {
  const auto plan = context.plans().get(problem, [&] {
    const std::string why =
        refusal(problem, context.compute_capability(), context.cublaslt().GetVersion());
    if (!why.empty()) throw Error("gemm: " + why + ", in " + describe(problem));
    auto made = std::make_shared<MatmulPlan>(context, problem, pointers);
    if (const int count = algorithms_to_time();
        made->usable() && count > 1 && !is_capturing(stream))
      made->tune(context, lease, pointers, count, stream);
    return made;
  });
  if (plan->usable()) plan->run(context, lease, pointers, stream);
  return plan->usable();
}

Error no_algorithm(const Context& context, const MatmulProblem& problem) {
  return Error("gemm: cuBLASLt " + version_string(context.cublaslt().GetVersion()) +
               " has no algorithm for " + describe(problem) + " on compute capability " +
               version_text(context.compute_capability()));
}

std::string describe(const MatmulProblem& p) {
  const auto type = [](cudaDataType_t t) -> std::string {
    switch (t) {
      case CUDA_R_8F_E4M3: return "float8_e4m3";
      case CUDA_R_8F_E5M2: return "float8_e5m2";
      case CUDA_R_16BF: return "bfloat16";
      case CUDA_R_16F: return "float16";
      case CUDA_R_32F: return "float32";
      default: return "type " + std::to_string(static_cast<int>(t));
    }
  };
  const auto operand = [&](const MatmulOperand& x) {
    return type(x.type) + (x.k_contiguous ? "" : " transposed");
  };
  return "[" + std::to_string(p.m) + ", " + std::to_string(p.k) + "] " + operand(p.a) + " x [" +
         std::to_string(p.k) + ", " + std::to_string(p.n) + "] " + operand(p.b) + " -> " +
         type(p.d_type) + (p.has_bias ? " + bias" : "") + (p.accumulate ? ", accumulated" : "");
}

}  // namespace fp8amp::gpu
