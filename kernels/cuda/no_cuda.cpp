// The CUDA functions of a build without CUDA: one clear sentence.
#include <fp8amp/error.h>

#include "kernels/adam.h"
#include "kernels/blocks.h"
#include "kernels/fused.h"
#include "kernels/gemm.h"
#include "kernels/norm.h"
#include "kernels/quantize.h"
#include "kernels/shards.h"

namespace fp8amp::kernels::cuda {
namespace {

[[noreturn]] void refuse(const char* op) {
  throw Error(std::string(op) +
              ": device must be cpu, got cuda: this build of fp8amp has no CUDA backend");
}

}  // namespace

void amax(const AmaxArgs&) { refuse("amax"); }
void quantize(const QuantizeArgs&) { refuse("quantize"); }
void column_sums(const ColumnSumsArgs&) { refuse("column_sums"); }
void dequantize(const DequantizeArgs&) { refuse("dequantize"); }
void accumulate(const AccumulateArgs&) { refuse("accumulate"); }
void quantize_blocks(const QuantizeBlocksArgs&) { refuse("quantize_blocks"); }
void dequantize_blocks(const DequantizeBlocksArgs&) { refuse("dequantize"); }
void gemm(const GemmArgs&) { refuse("gemm"); }
bool gemm_prefers_k_contiguous() { refuse("gemm_prefers_k_contiguous"); }
void grad_amax(const AdamArgs&, float*) { refuse("grad_amax"); }
void adam(const AdamArgs&) { refuse("adam_update"); }
void norm(const NormArgs&) { refuse("grad_norm"); }
void clip(const ClipArgs&) { refuse("clip_grad_norm"); }
void fused_quantize(const FusedArgs&) { refuse("fused_quantize"); }
void norm_backward(const NormBackwardArgs&) { refuse("norm_backward"); }
void sum_shards(const SumShardsArgs&) { refuse("sum_shards"); }

}  // namespace fp8amp::kernels::cuda
