// FP8 GEMM on a GPU: kernels::cuda::gemm, through cuBLASLt.
//
// Routes
//   direct   FP8 tensor cores write D: operands and D meet cuBLASLt's rules, copies that are padded
//            or transposed take the place of operands that do not
//   finish   the sums go to FP32 scratch memory, a kernel does scales, bias, accumulation and
//            rounding: D that does not meet the rules, products for which cuBLASLt has no direct
//            algorithm, and operands decoded to BF16
//   BF16     both operands decoded, which is exact: E5M2 x E5M2, which no tensor core has, and GPUs
//            without FP8 (compute capability 8.0 to 8.8)
//
// Scales of rows and blocks go to cuBLASLt where it takes them. Elsewhere scales of rows are for
// the finish, which has their values at no loss; blocks along k cannot wait for the end of the sum:
// operands are decoded to BF16 times their scales (exact where these are powers of two; else one
// rounding of 2^-9, beside 2^-4 of the code itself).
//
// In the direct route a bias of another type than a 16-bit output is first rounded to that type, as
// torch.autocast does: the fused epilogue takes no other, and adding it separately would move D
// through memory twice more.
#include "kernels/gemm.h"

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>

#include "fp8amp/error.h"
#include "kernels/cuda/gemm_finish.h"
#include "kernels/cuda/pad.h"
#include "src/cuda/cublaslt_matmul.h"

namespace fp8amp::kernels::cuda {
namespace {

using gpu::Context;
using gpu::Lease;
using gpu::MatmulOperand;
using gpu::MatmulPointers;
using gpu::MatmulProblem;

constexpr std::int64_t kMultiple = gpu::kFp8Multiple;

std::int64_t round_up(std::int64_t x) { return (x + kMultiple - 1) / kMultiple * kMultiple; }

std::uint32_t alignment(const void* p) {
  const auto address = reinterpret_cast<std::uintptr_t>(p);
  return static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

cudaDataType_t cuda_type(DType type) {
  switch (type) {
    case DType::kFloat32: return CUDA_R_32F;
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kBFloat16: return CUDA_R_16BF;
    case DType::kE4M3: return CUDA_R_8F_E4M3;
    case DType::kE5M2: return CUDA_R_8F_E5M2;
  }
  return CUDA_R_32F;
}

// Parts of one piece of scratch memory, each aligned to 256 bytes.
class ScratchLayout {
 public:
  std::size_t add(std::int64_t bytes) {
    const std::size_t offset = size_;
    size_ += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;
    return offset;
  }
  std::size_t size() const { return size_; }

 private:
  std::size_t size_ = 0;
};

struct Operand {
  const std::uint8_t* data;
  DType type;
  std::int64_t row_stride, k_stride, rows;
  ScaleGranularity granularity;
  const float* scale_inv;
};

// Where an operand is read: where it is, or as a copy at an offset of the scratch memory.
struct Placement {
  bool copied = false;
  std::size_t offset = 0;
  std::int64_t rows = 0;  // of the copy
  MatmulOperand operand;
};

bool readable(const Operand& x, std::int64_t k, std::int64_t rows, int compute_capability) {
  const bool k_contiguous = x.k_stride == 1;
  if (rows != x.rows || k % kMultiple || alignment(x.data) < kMultiple) return false;
  if (k_contiguous) return x.rows == 1 || x.row_stride % kMultiple == 0;
  return gpu::supports_any_fp8_layout(compute_capability) && x.rows % kMultiple == 0 &&
         x.k_stride % kMultiple == 0;
}

// `rows`: at least x.rows, the others are zeros.
Placement place(const Operand& x, std::int64_t k, std::int64_t rows, bool decode,
                int compute_capability, ScratchLayout& scratch) {
  Placement result;
  result.rows = rows;
  if (!decode && readable(x, k, rows, compute_capability)) {
    const bool k_contiguous = x.k_stride == 1;
    const std::int64_t stride = k_contiguous ? (x.rows == 1 ? k : x.row_stride) : x.k_stride;
    result.operand = {cuda_type(x.type), k_contiguous, stride, ScaleGranularity::kTensor,
                      alignment(x.data)};
    return result;
  }
  result.copied = true;
  result.operand.type = decode ? CUDA_R_16BF : cuda_type(x.type);
  result.operand.leading_dimension = round_up(k);
  result.offset = scratch.add(rows * round_up(k) *
                              static_cast<std::int64_t>(gpu::size_of(result.operand.type)));
  return result;
}

const void* fetch(const Operand& x, std::int64_t k, const Placement& placement, std::byte* scratch,
                  void* stream, bool apply_scales = false) {
  if (!placement.copied) return x.data;
  PadArgs args{};
  args.x = x.data;
  args.x_type = x.type;
  args.x_row = x.row_stride;
  args.x_k = x.k_stride;
  args.rows = x.rows;
  args.k = k;
  args.y = scratch + placement.offset;
  args.y_type = placement.operand.type == CUDA_R_16BF ? DType::kBFloat16 : x.type;
  args.y_rows = placement.rows;
  args.y_k = placement.operand.leading_dimension;
  if (apply_scales) {
    args.scale_inv = x.scale_inv;
    args.layout = numerics::scale_layout(x.granularity, x.rows, k);
  }
  args.stream = stream;
  pad(args);
  return args.y;
}

GemmFinishArgs finish_args(const GemmArgs& g) {
  GemmFinishArgs f{};
  if (!numerics::scales_along_k(g.a_granularity)) f.a_scale_inv = g.a_scale_inv;
  if (!numerics::scales_along_k(g.b_granularity)) f.b_scale_inv = g.b_scale_inv;
  f.a_rows = g.a_granularity == ScaleGranularity::kRow;
  f.b_rows = g.b_granularity == ScaleGranularity::kRow;
  f.bias = g.bias;
  f.bias_type = g.bias_type;
  f.d = g.d;
  f.d_type = g.d_type;
  f.m = g.m;
  f.n = g.n;
  f.accumulate = g.accumulate;
  f.stream = g.stream;
  return f;
}

// A row of `bias`, rounded to `type`, at `out`.
void convert_bias(const GemmArgs& g, DType type, void* out) {
  GemmFinishArgs f{};
  f.bias = g.bias;
  f.bias_type = g.bias_type;
  f.d = out;
  f.d_type = type;
  f.m = 1;
  f.n = g.n;
  f.stream = g.stream;
  gemm_finish(f);
}

// FP32 added in place: what is left of FP32 D when its bias cannot be fused.
void add_bias(const GemmArgs& g) {
  GemmFinishArgs f = finish_args(g);
  f.sums = static_cast<const float*>(g.d);
  f.sums_row = g.n;
  f.a_scale_inv = f.b_scale_inv = nullptr;
  f.a_rows = f.b_rows = false;
  f.accumulate = false;
  gemm_finish(f);
}

struct Route {
  bool decode;        // operands to BF16
  bool apply_scales;  // as they are decoded
  bool direct;        // the product is written to D
};

bool has_blocks(const GemmArgs& g) {
  return numerics::scales_along_k(g.a_granularity) || numerics::scales_along_k(g.b_granularity);
}

// "" or why cuBLASLt cannot take the scales of this product.
std::string refuse_scales(const GemmArgs& g, const Context& context) {
  constexpr auto kOne = ScaleGranularity::kTensor;
  if (g.a_granularity == kOne && g.b_granularity == kOne) return "";
  if (alignment(g.a_scale_inv) < kMultiple || alignment(g.b_scale_inv) < kMultiple)
    return "scales must have pointers in multiples of 16 bytes";
  MatmulProblem p;
  p.m = g.m;
  p.n = g.n;
  p.a.scale_mode = g.a_granularity;
  p.b.scale_mode = g.b_granularity;
  return gpu::refuse_scales(p, context.compute_capability(), context.cublaslt().GetVersion());
}

void warn_once_about_blocks(const std::string& why) {
  static std::once_flag flag;
  std::call_once(flag, [&] {
    std::fprintf(stderr,
                 "fp8amp: this float8 product with block scales is computed in bfloat16, at its "
                 "speed: %s (said once)\n",
                 why.c_str());
  });
}

bool must_decode(const GemmArgs& g, const Context& context) {
  return !gpu::supports_fp8(context.compute_capability()) ||
         (g.a_type == DType::kE5M2 && g.b_type == DType::kE5M2);
}

// The route of a product that cannot be direct, for the reason `why`.
Route choose_finish(const GemmArgs& g, const Context& context, const std::string& why) {
  Route route{};
  route.decode = must_decode(g, context);
  if (!has_blocks(g)) return route;
  if (gpu::supports_fp8(context.compute_capability())) warn_once_about_blocks(why);
  route.decode = route.apply_scales = true;
  return route;
}

Route choose(const GemmArgs& g, const Context& context) {
  const std::string why = refuse_scales(g, context);
  const bool fits = !must_decode(g, context) && alignment(g.d) >= kMultiple && g.n % kMultiple == 0;
  if (fits && why.empty()) return {.decode = false, .apply_scales = false, .direct = true};
  return choose_finish(g, context, why.empty() ? "its output or formats do not fit" : why);
}

void warn_once_without_fp8(int compute_capability) {
  if (gpu::supports_fp8(compute_capability)) return;
  static std::once_flag flag;
  std::call_once(flag, [&] {
    std::fprintf(stderr,
                 "fp8amp: this GPU (compute capability %s) has no FP8 tensor cores; float8 "
                 "products are computed in bfloat16, with the same values but at its speed\n",
                 gpu::version_text(compute_capability).c_str());
  });
}

struct Sources {
  Operand a, b;
};

Sources sources(const GemmArgs& g) {
  return {{g.a, g.a_type, g.a_row, g.a_k, g.m, g.a_granularity, g.a_scale_inv},
          {g.b, g.b_type, g.b_row, g.b_k, g.n, g.b_granularity, g.b_scale_inv}};
}

// False where cuBLASLt has no algorithm: D is as it was.
bool run_direct(Context& context, const Lease& lease, const GemmArgs& g) {
  const int cc = context.compute_capability();
  const auto [a, b] = sources(g);
  ScratchLayout layout;
  const Placement at = place(a, g.k, g.m, false, cc, layout);
  const Placement bt = place(b, g.k, g.n, false, cc, layout);
  const DType fused = g.d_type == DType::kFloat32 ? DType::kBFloat16 : g.d_type;
  const bool fuse_bias = g.bias && (g.d_type != DType::kFloat32 || g.bias_type == fused);
  const bool convert = fuse_bias && (g.bias_type != fused || alignment(g.bias) < kMultiple);
  const std::size_t bias_offset = convert ? layout.add(g.n * size_in_bytes(fused)) : 0;
  std::byte* scratch = layout.size() ? lease.scratch(layout.size()) : nullptr;

  MatmulPointers pointers{};
  pointers.a = fetch(a, g.k, at, scratch, g.stream);
  pointers.b = fetch(b, g.k, bt, scratch, g.stream);
  pointers.a_scale_inv = g.a_scale_inv;
  pointers.b_scale_inv = g.b_scale_inv;
  pointers.d = g.d;
  if (convert) convert_bias(g, fused, scratch + bias_offset);
  if (fuse_bias) pointers.bias = convert ? scratch + bias_offset : g.bias;

  MatmulProblem problem;
  problem.m = g.m;
  problem.n = g.n;
  problem.k = round_up(g.k);
  problem.a = at.operand;
  problem.b = bt.operand;
  problem.a.scale_mode = g.a_granularity;
  problem.b.scale_mode = g.b_granularity;
  problem.d_type = cuda_type(g.d_type);
  problem.d_leading_dimension = g.n;
  problem.d_alignment = alignment(g.d);
  problem.has_bias = fuse_bias;
  problem.accumulate = g.accumulate;
  problem.fast_accumulation = g.fast_accumulation && !has_blocks(g);
  if (!matmul(context, lease, problem, pointers, static_cast<cudaStream_t>(g.stream))) return false;
  if (g.bias && !fuse_bias) add_bias(g);
  return true;
}

void run_finish(Context& context, const Lease& lease, const GemmArgs& g, const Route& route) {
  const int cc = context.compute_capability();
  const auto [a, b] = sources(g);
  const std::int64_t n = round_up(g.n);
  ScratchLayout layout;
  const Placement at = place(a, g.k, g.m, route.decode, cc, layout);
  const Placement bt = place(b, g.k, n, route.decode, cc, layout);
  const std::size_t sums_offset = layout.add(g.m * n * static_cast<std::int64_t>(sizeof(float)));
  std::byte* scratch = lease.scratch(layout.size());

  MatmulPointers pointers{};  // scales are for the finish: there BF16 operands have them too
  pointers.a = fetch(a, g.k, at, scratch, g.stream, route.apply_scales);
  pointers.b = fetch(b, g.k, bt, scratch, g.stream, route.apply_scales);
  pointers.d = scratch + sums_offset;

  MatmulProblem problem;
  problem.m = g.m;
  problem.n = n;
  problem.k = round_up(g.k);
  problem.a = at.operand;
  problem.b = bt.operand;
  problem.d_type = CUDA_R_32F;
  problem.d_leading_dimension = n;
  problem.fast_accumulation = g.fast_accumulation && !route.decode;
  if (!matmul(context, lease, problem, pointers, static_cast<cudaStream_t>(g.stream)))
    throw gpu::no_algorithm(context, problem);

  GemmFinishArgs finish = finish_args(g);
  if (route.apply_scales) {
    finish.a_scale_inv = finish.b_scale_inv = nullptr;
    finish.a_rows = finish.b_rows = false;
  }
  finish.sums = static_cast<const float*>(pointers.d);
  finish.sums_row = n;
  gemm_finish(finish);
}

}  // namespace

void gemm(const GemmArgs& g) {
  if (g.m <= 0 || g.n <= 0) return;
  if (g.k <= 0) return gemm_finish(finish_args(g));  // an empty sum
  const auto stream = static_cast<cudaStream_t>(g.stream);
  Context& context = Context::current(stream);
  warn_once_without_fp8(context.compute_capability());
  const Route route = choose(g, context);
  const Lease lease(stream);
  lease.workspace(context.workspace_bytes());  // refused, if it is, before anything is enqueued
  if (!route.direct) return run_finish(context, lease, g, route);
  if (run_direct(context, lease, g)) return;
  run_finish(context, lease, g, choose_finish(g, context, "cuBLASLt has no algorithm for it"));
}

bool gemm_prefers_k_contiguous() {
  const int compute_capability = gpu::compute_capability();
  return gpu::supports_fp8(compute_capability) && !gpu::supports_any_fp8_layout(compute_capability);
}

}  // namespace fp8amp::kernels::cuda
