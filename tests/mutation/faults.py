"""Seeded faults of the CUDA backend: what a slip of the hand could leave there. None of them only costs time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    file: str
    old: str  # stands in the file exactly once
    new: str
    tests: tuple[str, ...]  # those of tests/emulator that may find it, the likeliest first


CASTS, ADAM, SHARDS = ("casts_cuda",), ("adam_cuda",), ("sum_shards_cuda",)
GEMM, PLANS = ("gemm_cuda",), ("gemm_plans", "cublaslt", "gemm_cuda")
VECTORS, QUANTIZE = "kernels/cuda/vectors.cuh", "kernels/cuda/quantize.cuh"
TRANSPOSE, REDUCE, BATCH = "kernels/cuda/quantize_transpose.cuh", "kernels/cuda/reduce.cuh", "kernels/cuda/batch.cuh"

FAULTS = (
    # ---- vectors, conversions
    Fault(VECTORS, "    return high ? word >> 12 : word & 0xfffffu;",
          "    return high ? word >> 11 : word & 0xfffffu;", CASTS),
    Fault(VECTORS, "return numerics::mix(start ^ k);", "return numerics::mix(start + k);", CASTS),
    Fault(VECTORS, "kShift > kBits ? random << (kShift - kBits) : random >> (kBits - kShift);",
          "random;", CASTS),
    Fault(VECTORS, "return sum << kUp | (__float_as_uint(y) & 0x80000000u);", "return sum << kUp;", CASTS),
    Fault(VECTORS, "fabsf(x) > Fp16::kMax ? copysignf(Fp16::kMax, x) : x;", "x;", CASTS),
    Fault(VECTORS, "return numerics::encode<F>(y, rounding, Overflow::kSaturate, random);",
          "return numerics::encode<F>(y, Rounding::kNearest, Overflow::kSaturate, random);", CASTS),
    # ---- casts
    Fault(QUANTIZE, "i = a.vectors * kVector + first; i < a.n", "i = a.vectors * kVector + first; i + 1 < a.n", CASTS),
    Fault(QUANTIZE, "if (magnitude(v) == numerics::kInfBits) v", "if (magnitude(v) > numerics::kInfBits) v", CASTS),
    Fault(QUANTIZE, "if (largest >= numerics::kInfBits) apply_overflow",
          "if (largest > numerics::kInfBits) apply_overflow",
          CASTS),
    Fault(QUANTIZE, "const bool in_range = __uint_as_float(largest) * scale <= F::kMax;", "const bool in_range = true;",
          CASTS),
    Fault(QUANTIZE, "if (p.found_inf && max >= numerics::kInfBits) raise_flag(p.found_inf);", "", CASTS),
    Fault(QUANTIZE, "p.history[2 + i] = p.history[1 + i];", "p.history[1 + i] = p.history[2 + i];", CASTS),
    Fault(QUANTIZE, "  *p.scale_inv = numerics::inverse_scale(scale);\n}\n\n// ---- dequantize",
          "}\n\n// ---- dequantize",
          CASTS),
    Fault("kernels/cuda/scale.cuh", "return inverse_scale(*c.scale_inv);", "return *c.scale_inv;", CASTS),
    Fault("kernels/cuda/cast_plan.cuh", "p.scale_inv = finish || a.source", "p.scale_inv = a.source", CASTS),
    Fault("kernels/cuda/cast_plan.cuh", "if (slot) FP8AMP_CUDA_CHECK", "if (!slot) FP8AMP_CUDA_CHECK", CASTS),
    Fault("kernels/cuda/quantize.cu", "aligned_to_16(a.transposed) && a.rows % kVector == 0,",
          "aligned_to_16(a.transposed),", CASTS),
    # ---- transpose
    Fault(TRANSPOSE, "  __syncthreads();\n  store_transposed", "  store_transposed", CASTS),
    # only in a grid that turns: 2^20 tiles, more than a test can have
    Fault(TRANSPOSE, "  __syncthreads();  // before the next tile\n", "", CASTS),
    Fault(TRANSPOSE, "out.y + column * out.rows + row", "out.y + column * out.cols + row", CASTS),
    Fault(TRANSPOSE, "if (aligned && count >= kVector) {", "if (aligned) {", CASTS),
    Fault("kernels/cuda/transpose.cuh", "__byte_perm(low01, low23, 0x7632)", "__byte_perm(low01, high23, 0x7632)",
          ("casts_cuda", "gemm_cuda")),
    # ---- reductions, batches
    Fault(REDUCE, "if (threadIdx.x % 32 == 0) partial", "if (threadIdx.x == 0) partial", CASTS),
    Fault(REDUCE, "for (int offset = 16; offset > 0", "for (int offset = 8; offset > 0", CASTS),
    Fault(BATCH, "if (first[middle] <= number)", "if (first[middle] < number)", ADAM),
    # ---- accumulate, shards
    Fault("kernels/cuda/accumulate.cuh", "return sum * sum_factor + x * x_factor;",
          "return sum * x_factor + x * sum_factor;",
          CASTS),
    Fault("kernels/cuda/shards.cuh", "  return sum * p.factor;\n}\n\ntemplate <DType X>\n__global__",
          "  return sum;\n}\n\ntemplate <DType X>\n__global__", SHARDS),
    # ---- scales of blocks, fused norms
    Fault("kernels/cuda/blocks.cuh", "max = Max::of(max, __shfl_xor_sync(kAllLanes, max, 16));", "", ("blocks_cuda",)),
    Fault("kernels/cuda/blocks.cuh", "p.out.scale_inv[p.layout.index(row, at.col0)]",
          "p.out.scale_inv[p.layout.index(at.row0, at.col0)]", ("blocks_cuda",)),
    Fault("kernels/cuda/fused.cuh", "s.mean = add_row_sums(part) / float(n);", "s.mean = add_row_sums(part);",
          ("fused_cuda",)),
    # ---- Adam
    Fault("kernels/cuda/adam.cuh", "const int skip = __syncthreads_or(bad);", "const int skip = bad;", ADAM),
    Fault("kernels/cuda/adam.cuh", "    store_four<V, true>(v, k", "    store_four<V, false>(v, k", ADAM),
    Fault("kernels/cuda/adam.cuh", "    done = first;\n  for", "    done = last;\n  for", ADAM),
    Fault("kernels/cuda/adam.cuh", "if (b.lr) hyper.lr = *b.lr;", "", ADAM),
    Fault("kernels/cuda/adam_words.cuh", "k % 2 == 0 ? 0x3254 : 0x5410", "k % 2 == 0 ? 0x5410 : 0x3254", ADAM),
    Fault("kernels/cuda/adam_words.cuh", "high = max_bits(high, most);", "high = most;", ADAM),
    Fault("kernels/cuda/adam_words.cuh", "bool each = most > (", "bool each = most > 0x7f000000u + (", ADAM),
    Fault("kernels/cuda/adam.cu", "b.count = count, b.work = work + first;", "b.count = count, b.work = work;", ADAM),
    # ---- norm, clipping
    Fault("kernels/cuda/norm.cuh", "__shfl_sync(0xffffffffu, mine, first + i)",
          "__shfl_sync(0xffffffffu, mine, first + 7 - i)", ADAM),
    Fault("kernels/cuda/norm.cuh", "factor = scale_inv * scale_inv;", "factor = scale_inv;", ADAM),
    # ---- GEMM
    Fault("kernels/cuda/pad.cuh", "const int64_t count = r < p.rows ? p.k - k : 0;",
          "const int64_t count = p.k - k;", GEMM),
    Fault("kernels/cuda/pad.cuh", "    __syncthreads();\n    const int r = ", "    const int r = ", GEMM),
    Fault("kernels/cuda/gemm_finish.cuh", "if (p.accumulate) value = old[i] + value;", "", GEMM),
    Fault("src/cuda/gemm.cpp", "k_contiguous ? (x.rows == 1 ? k : x.row_stride) : x.k_stride;",
          "k_contiguous ? x.row_stride : x.k_stride;", GEMM),
    Fault("src/cuda/gemm.cpp", "if (g.bias && !fuse_bias) add_bias(g);", "", GEMM),
    Fault("src/cuda/gemm.cpp", "size_ += (static_cast<std::size_t>(bytes) + 255) / 256 * 256;",
          "size_ += static_cast<std::size_t>(bytes) / 256 * 256;", GEMM),
    Fault("src/cuda/gemm_plan.cpp", "set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.b_scale_inv);",
          "set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, pointers.a_scale_inv);", GEMM),
    Fault("src/cuda/gemm_plan.cpp", "  set_pointers(pointers);\n  enqueue", "  enqueue", GEMM),
    Fault("src/cuda/gemm_plan.cpp", "beta = problem_.accumulate ? 1.0f : 0.0f", "beta = 0.0f", GEMM),
    Fault("src/cuda/gemm_plan.cpp", "context.workspace_bytes(), stream),",
          "context.workspace_bytes(), nullptr),", PLANS),
    Fault("src/cuda/stream_memory.cpp", "if (bytes > part.memory.bytes())",
          "if (bytes > part.memory.bytes() + 512)", PLANS),
    Fault("src/cuda/stream_memory.cpp", "    part.captured |= capturing;\n", "", PLANS),
    Fault("src/cuda/gemm_plan_cache.cpp", "  index_.erase(entries_.back().first);\n", "", PLANS),
)  # fmt: skip
