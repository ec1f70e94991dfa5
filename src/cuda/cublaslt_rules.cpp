// What cuBLASLt can do with FP8, as tables (cuBLAS 13.1 documentation, cublasLtMatmul()).
#include <array>

#include "src/cuda/cublaslt_matmul.h"
#include "src/cuda/dynamic_library.h"

namespace fp8amp::gpu {
namespace {

struct Capability {  // of compute capabilities from `from` to the next row
  int from;
  bool fp8, any_layout;
};
// Datacenter Blackwell alone (10.x) takes every layout; TN is legal everywhere.
constexpr Capability kCapabilities[] = {
    {0, false, false}, {89, true, false}, {100, true, true}, {110, true, false}};

struct ScaleRule {
  ScaleGranularity a, b;
  int from, to;               // compute capabilities
  std::size_t version;        // of cuBLASLt, at least
  std::int64_t m_n_multiple;  // of m and n
  bool fast_accumulation;     // may be asked for
};
constexpr int kAnyLater = 1 << 30;
// Block scales: the documentation asks for multiples of 4. TransformerEngine (cublaslt_gemm.cu)
// asks for 8 where cuBLASLt's B, our a, has scales of 1x128.
constexpr ScaleRule kScaleRules[] = {
    {ScaleGranularity::kTensor, ScaleGranularity::kTensor, 89, kAnyLater, 0, 1, true},
    {ScaleGranularity::kRow, ScaleGranularity::kRow, 90, 90, 120900, 1, true},
    {ScaleGranularity::kBlock1x128, ScaleGranularity::kBlock1x128, 90, 90, 120900, 8, false},
    {ScaleGranularity::kBlock1x128, ScaleGranularity::kBlock128x128, 90, 90, 120900, 8, false},
    {ScaleGranularity::kBlock128x128, ScaleGranularity::kBlock1x128, 90, 90, 120900, 4, false},
};

const Capability& capability(int compute_capability) {
  const Capability* best = &kCapabilities[0];
  for (const Capability& c : kCapabilities)
    if (compute_capability >= c.from) best = &c;
  return *best;
}

const char* name(ScaleGranularity mode) {
  switch (mode) {
    case ScaleGranularity::kTensor: return "per tensor";
    case ScaleGranularity::kRow: return "per row";
    case ScaleGranularity::kBlock1x128: return "1x128";
    case ScaleGranularity::kBlock128x128: return "128x128";
  }
  return "unknown";
}

std::string refuse_operand(const char* which, const MatmulOperand& x, std::int64_t rows,
                           std::int64_t k, int cc) {
  if (!x.k_contiguous && !supports_any_fp8_layout(cc))
    return std::string(which) + " must have k contiguous on compute capability " + version_text(cc);
  if (x.alignment < kFp8Multiple || x.leading_dimension % kFp8Multiple)
    return std::string(which) + " must have pointer and leading dimension in multiples of 16 bytes";
  if ((x.k_contiguous ? k : rows) % kFp8Multiple)
    return std::string(which) + " must have a multiple of 16 elements in memory order";
  return "";
}

std::string refuse_fp8(const MatmulProblem& p, int cc, std::size_t version) {
  if (!supports_fp8(cc))
    return "float8 operands need compute capability 8.9, this GPU has " + version_text(cc);
  if (p.a.type == CUDA_R_8F_E5M2 && p.b.type == CUDA_R_8F_E5M2)
    return "there is no float8_e5m2 x float8_e5m2";
  if (p.k % kFp8Multiple || p.n % kFp8Multiple) return "k and n must be multiples of 16";
  std::string why = refuse_operand("a", p.a, p.m, p.k, cc);
  if (why.empty()) why = refuse_operand("b", p.b, p.n, p.k, cc);
  if (why.empty()) why = refuse_scales(p, cc, version);
  return why;
}

std::string refuse_plain(const MatmulProblem& p, int cc) {
  if (cc < 80)
    return "bfloat16 operands need compute capability 8.0, this GPU has " + version_text(cc);
  if (p.fast_accumulation) return "fast accumulation is for float8 operands";
  if (p.a.scale_mode != ScaleGranularity::kTensor || p.b.scale_mode != ScaleGranularity::kTensor)
    return "only float8 operands have scales";
  if (p.d_type != CUDA_R_32F && p.d_type != p.a.type)
    return "d must be float32 or of the operands' type";
  return "";
}

}  // namespace

bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }

std::size_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : is_fp8(type) ? 1 : 2; }

bool supports_fp8(int compute_capability) { return capability(compute_capability).fp8; }
bool supports_any_fp8_layout(int compute_capability) {
  return capability(compute_capability).any_layout;
}

// The output's own type, and BF16 beside FP32: there is no FP32 bias.
cudaDataType_t bias_type(cudaDataType_t d_type) {
  return d_type == CUDA_R_32F ? CUDA_R_16BF : d_type;
}

std::string refuse_scales(const MatmulProblem& p, int cc, std::size_t version) {
  const std::string modes =
      std::string("scales ") + name(p.a.scale_mode) + " x " + name(p.b.scale_mode);
  for (const ScaleRule& rule : kScaleRules) {
    if (rule.a != p.a.scale_mode || rule.b != p.b.scale_mode) continue;
    if (cc < rule.from || cc > rule.to)
      return modes + " need compute capability " + version_text(rule.from) +
             (rule.to == kAnyLater ? " or later" : "") + ", this GPU has " + version_text(cc);
    if (version < rule.version)
      return modes + " need cuBLASLt " + version_string(rule.version) + " or later, this is " +
             version_string(version);
    if (p.m % rule.m_n_multiple || p.n % rule.m_n_multiple)
      return modes + " need m and n in multiples of " + std::to_string(rule.m_n_multiple);
    if (p.fast_accumulation && !rule.fast_accumulation) return modes + " exclude fast accumulation";
    return "";
  }
  return modes + " cannot be combined";
}

std::string refusal(const MatmulProblem& p, int compute_capability, std::size_t version) {
  if (is_fp8(p.a.type) != is_fp8(p.b.type) || (!is_fp8(p.a.type) && p.a.type != p.b.type))
    return "a and b must both be float8, or of one 16-bit type";
  if (p.d_type != CUDA_R_32F && p.d_type != CUDA_R_16BF && p.d_type != CUDA_R_16F)
    return "d must be float32, bfloat16 or float16";
  if (p.d_alignment < 16 || p.d_leading_dimension * std::int64_t(size_of(p.d_type)) % 16)
    return "d must have pointer and leading dimension in multiples of 16 bytes";
  return is_fp8(p.a.type) ? refuse_fp8(p, compute_capability, version)
                          : refuse_plain(p, compute_capability);
}

}  // namespace fp8amp::gpu
