"""Seeded faults of the CUDA backend: what a slip of the hand could leave there. None of them only costs time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    file: str
    text: str  # stands there exactly once, with {{right||wrong}} for what is right: expressions, or statements with ;
    unit: str  # the source that the file is compiled through
    test: str  # that may find it, tests/emulator/test_<test>.cpp
    filter: str = "*"  # of its tests
    sanitize: bool = False  # found by an access out of bounds or not aligned

    @property
    def parts(self) -> tuple[str, str, str, str]:
        """What stands before it, the right, the wrong, what stands behind it."""
        before, _, rest = self.text.partition("{{")
        change, _, behind = rest.partition("}}")
        right, _, wrong = change.partition("||")
        return before, right, wrong, behind


CASTS = ("kernels/cuda/quantize.cu", "casts_cuda")
BLOCKS = ("kernels/cuda/blocks.cu", "blocks_cuda")
FUSED = ("kernels/cuda/fused.cu", "fused_cuda")
BACKWARDS = (*FUSED, "CudaNormBackward.*")
COLUMNS = ("kernels/cuda/quantize.cu", "column_sums_cuda")
SHARDS = ("kernels/cuda/shards.cu", "sum_shards_cuda")
ADAM = ("kernels/cuda/adam.cu", "adam_cuda", "CudaAdam.*")
NORM = ("kernels/cuda/norm.cu", "adam_cuda", "CudaNorm.*")
GRIDS = ("tests/emulator/test_grids_cuda.cpp", "grids_cuda")
PAD, FINISH = ("kernels/cuda/pad.cu", "gemm_cuda"), ("kernels/cuda/gemm_finish.cu", "gemm_cuda")
VECTORS, QUANTIZE = "kernels/cuda/vectors.cuh", "kernels/cuda/quantize.cuh"
TRANSPOSE, REDUCE = "kernels/cuda/quantize_transpose.cuh", "kernels/cuda/reduce.cuh"
SUMMED = "kernels/cuda/column_sums.cuh"
TILES, ROWS, BACKWARD = "kernels/cuda/blocks.cuh", "kernels/cuda/fused.cuh", "kernels/cuda/norm_backward.cuh"
PLUS, SUMS, TOTAL = "kernels/cuda/accumulate.cuh", "kernels/cuda/shards.cuh", "kernels/cuda/norm.cuh"
UPDATE, WORDS, PADDED = "kernels/cuda/adam.cuh", "kernels/cuda/adam_words.cuh", "kernels/cuda/pad.cuh"
GEMM, PLAN, MEMORY = "src/cuda/gemm.cpp", "src/cuda/gemm_plan.cpp", "src/cuda/stream_memory.cpp"
CACHE, END = "src/cuda/gemm_plan_cache.cpp", "kernels/cuda/gemm_finish.cuh"

FAULTS = (
    # ---- vectors, conversions
    Fault(VECTORS, "return high ? {{word >> 12||word >> 11}} : word & 0xfffffu;", *CASTS),
    Fault(VECTORS, "w = numerics::mix({{start ^ k||start + k}});", *CASTS),
    Fault(VECTORS, "kShift > kBits ? {{random << (kShift - kBits)||random}} : random", *CASTS),
    Fault(VECTORS, "return sum << kUp | {{(__float_as_uint(y) & 0x80000000u)||0u}};", *CASTS),
    Fault(VECTORS, "return !kInRange && fabsf(x) > Fp16::kMax ? {{copysignf(Fp16::kMax, x)||x}} : x;", *CASTS),
    Fault(VECTORS, "numerics::encode<F>(y, {{rounding||Rounding::kNearest}}, Overflow::kSaturate, random);", *CASTS),
    # ---- casts
    Fault(QUANTIZE, "i = a.vectors * kVector + first; {{i||i + 1}} < a.n", *CASTS),
    Fault(QUANTIZE, "i < a.vectors; i += {{stride||a.vectors}}) vector(i);", "kernels/cuda/quantize.cu", "grids_cuda"),
    Fault(QUANTIZE, "magnitude(__uint_as_float(max) * {{a.factor()||1.0f}})", *CASTS),
    Fault(QUANTIZE, "if ({{magnitude(v) == numerics::kInfBits||magnitude(v) > numerics::kInfBits}}) v", *CASTS),
    Fault(QUANTIZE, "if ({{largest >= numerics::kInfBits||largest > numerics::kInfBits}}) apply_overflow", *CASTS),
    Fault(QUANTIZE, "in_range = {{__uint_as_float(largest) * scale <= F::kMax||true}};", *CASTS),
    Fault(QUANTIZE, "if (p.found_inf && {{max >= numerics::kInfBits||false}}) raise_flag(p.found_inf);", *CASTS),
    Fault(QUANTIZE, "p.history[2 + i] = p.history[{{1 + i||2 + i}}];", *CASTS),
    Fault(QUANTIZE, "{{*p.scale_inv = numerics::inverse_scale(scale);||;}}\n}\n\n// ---- dequantize", *CASTS),
    Fault("kernels/cuda/scale.cuh", "return {{inverse_scale(*c.scale_inv)||*c.scale_inv}};", *CASTS),
    Fault("kernels/cuda/cast_plan.cuh", "p.scale_inv = {{finish||false}} || a.source", *CASTS),
    Fault("kernels/cuda/cast_plan.cuh", "if ({{slot||nullptr}}) FP8AMP_CUDA_CHECK", *CASTS),
    # ---- transpose
    Fault("kernels/cuda/quantize.cu", "aligned_to_16(a.transposed) && {{a.rows % kVector == 0||true}},",
          *CASTS, "CudaCasts.Transposed", sanitize=True),
    Fault(TRANSPOSE, "{{__syncthreads();||;}}\n  store_transposed", *CASTS),
    Fault(TRANSPOSE, "{{__syncthreads();||;}}  // before the next tile", *GRIDS),
    Fault(TRANSPOSE, "out.y + column * {{out.rows||out.cols}} + row", *CASTS),
    Fault(TRANSPOSE, "if (aligned && {{count >= kVector||true}}) {", *FUSED, "CudaFused.LastRow*", sanitize=True),
    Fault("kernels/cuda/transpose.cuh", "__byte_perm(low01, {{low23||high23}}, 0x7632)", *PAD),
    # ---- reductions
    Fault(REDUCE, "if ({{threadIdx.x % 32 == 0||threadIdx.x == 0}}) partial", *CASTS),
    Fault(REDUCE, "for (int offset = {{16||8}}; offset > 0", *CASTS),
    # ---- accumulate, shards
    Fault(PLUS, "return sum * {{sum_factor||x_factor}} + x", *CASTS),
    Fault(PLUS, "{{atomicAdd(&p.measure->checksum, checksum);||;}}", *CASTS),
    Fault(SUMS, "return {{sum * p.factor||sum}};", *SHARDS),
    Fault(SUMS, "for (int s = 1; {{s||s + 1}} < p.count; ++s) {", *SHARDS),
    Fault(SUMS, "{{apply_overflow(v, Overflow::kNaN);||;}}", *SHARDS),
    Fault("kernels/cuda/shards.cu", "p.choice.amax = {{a.bound||nullptr}} ?", *SHARDS),
    # ---- scales of rows and blocks
    Fault(TILES, "if ({{p.x_scale_inv||nullptr}}) scale_vector(a, factor);", *BLOCKS),
    Fault(TILES, "p.found_inf && {{amax >= numerics::kInfBits||amax > numerics::kInfBits}}) raise", *BLOCKS),
    Fault(TILES, "{{largest_magnitude(load_values<X>(p, row, column, factor))||0u}});\n    max = max_of_row", *BLOCKS),
    Fault(TILES, "{{max = Max::of(max, __shfl_xor_sync(kAllLanes, max, 16));||;}}", *BLOCKS),
    Fault(TILES, "for (int offset = 1; offset < {{8||4}}; offset *= 2)", *BLOCKS),
    Fault(TILES, "p.out.scale_inv[p.layout.index({{row||at.row0}}, at.col0)]", *BLOCKS),
    Fault(TILES, "p.transposed_layout.index(column, {{at.row0||0}})", *BLOCKS),
    Fault(TILES, "{{fill(p.transposed.scale_inv, p.transposed_layout, at.col0, at.row0, p.rows);||;}}", *BLOCKS),
    Fault(TILES, "p.scale_inv[p.layout.index(row, {{column||0}})]", *BLOCKS),
    Fault("kernels/cuda/blocks.cu", "cudaMemsetAsync(p.column_amax, 0, {{bytes||0}}, stream)", *BLOCKS),
    # ---- norms and activations with a cast
    Fault(ROWS, "s.mean = add_row_sums(part) / {{float(n)||1.0f}};", *FUSED),
    Fault(ROWS, "if ({{i < count||true}}) part.v[i] = part.v[i] + numerics", *FUSED),
    Fault(ROWS, "!needed && {{!(norm && p.out.transposed)||true}}) return;", *FUSED),
    Fault(ROWS, "load_vector<X>(p.x, ({{first + half||first}}) / kVector)", *FUSED),
    Fault(ROWS, "row += {{std::int64_t(gridDim.x) * kWarps||p.out.rows}})", "kernels/cuda/fused.cu", "grids_cuda"),
    Fault("kernels/cuda/fused.cu", "a.op == FusedOp::kSwiGluBackward ? {{2 * kVector||kVector}} : kVector", *FUSED),
    Fault(BACKWARD, "b = add_row_sums(of_gh) / {{float(n)||1.0f}}", *BACKWARDS),
    Fault(BACKWARD, "< p.a.rows ? {{first + numerics::kRowsOfSum||first}}\n", *BACKWARDS),
    # ---- sums over rows
    Fault(SUMMED, "for (std::int64_t row = {{first + 1||first}}; row < end; ++row) sum", *BACKWARDS),
    Fault(SUMMED, "< p.rows ? {{first + numerics::kRowsOfSum||first}}\n", *COLUMNS),
    Fault(SUMMED, "float* const to = next == 1 ? total : sums + {{n * cols||cols}};", *COLUMNS),
    Fault(TRANSPOSE, "{{__syncthreads();||;}}\n          add_staged_values", *COLUMNS),
    Fault(TRANSPOSE, "{{__syncthreads();||;}}  // before the next turn", *COLUMNS),
    Fault(TRANSPOSE, "return 4 * group + (k ^ {{group / 2||group}});", *COLUMNS),
    Fault(TRANSPOSE, "row < {{numerics::kRowsOfSum||numerics::kRowsOfSum - 1}}; ++row) sum", *COLUMNS),
    # ---- Adam
    Fault("kernels/cuda/batch.cuh", "if ({{first[middle] <= number||first[middle] < number}})", *ADAM),
    Fault(UPDATE, "return {{plan.step.scalars.p_l2 == 0.0f||true}} && ", *ADAM),
    Fault(UPDATE, "if ({{*b.skip != 0||false}}) return;", *ADAM),
    Fault(UPDATE, "if (atomicAdd(&work.blocks_done, 1u) + 1 != {{blocks||1}})", *ADAM),
    Fault(UPDATE, "const int skip = {{__syncthreads_or(bad)||int(bad)}};", *ADAM),
    Fault(UPDATE, "{{store_four<V, true>(v, k, new_v, store_v, high.v, max.v);"
                  "||store_four<V, false>(v, k, new_v, store_v, high.v, max.v);}}", *ADAM),
    Fault(UPDATE, "done = {{first||last}};\n  for", *ADAM),
    Fault(UPDATE, "hyper.lr = {{*b.lr||hyper.lr}};", *ADAM),
    Fault(UPDATE, "master.x * plan.step.p_scale_inv * {{plan.step.w.scale||1.0f}},", *ADAM),
    Fault(WORDS, "k % 2 == 0 ? {{0x3254||0x5410}} : 0x5410", *ADAM),
    Fault(WORDS, "high = {{max_bits(high, most)||most}};", *ADAM),
    Fault(WORDS, "bool each = {{most||0u}} > (", *ADAM),
    Fault("kernels/cuda/adam.cu", "b.count = count, b.work = {{work + first||work}};", *ADAM),
    # ---- norm, clipping
    Fault(TOTAL, "__shfl_sync(0xffffffffu, mine, {{first + i||first + 7 - i}})", *NORM),
    Fault(TOTAL, "factor = {{scale_inv * scale_inv||scale_inv}};", *NORM),
    Fault(TOTAL, "max_norm / (*norm + {{1e-6f||1e-7f}})", *NORM),
    Fault(UPDATE, "s.p_scale, kUsual ? usual : b.p_rounding, words, {{Draw::kSecond||Draw::kFirst}}}", *ADAM),
    Fault(UPDATE, "random(b.p_rounding, plan.key, {{Draw::kSecond||Draw::kFirst}})", *ADAM),
    Fault(VECTORS, "draw == numerics::Draw::kSecond ? {{numerics::second_word(w)||w}} : w", *ADAM),
    Fault(TOTAL, "{{numerics::multiplied_scale_inv(*x.scale_inv, factor)||*x.scale_inv * factor}};", *NORM),
    Fault(UPDATE, "gradient_amax(__uint_as_float(__ldcg(b.maxima + t)), {{x.scale_inv||nullptr}})", *ADAM),
    # ---- GEMM
    Fault(PADDED, "const int64_t count = {{r < p.rows||true}} ? p.k - k : 0;", *PAD, sanitize=True),
    Fault(PADDED, "{{__syncthreads();||;}}\n    const int r = ", *PAD),
    Fault(END, "if (p.accumulate) value = {{old[i] + value||value}};", *FINISH),
    Fault(END, "p.sums[r * {{p.sums_row||p.n}} + column]", *FINISH),
    Fault(END, "p.b_scale_inv[{{p.b_rows||false}} ? column : 0]", "kernels/cuda/gemm_finish.cu", "gemm_blocks_cuda"),
    Fault(GEMM, "{{x.rows == 1||false}} ? k : x.row_stride", GEMM, "gemm_cuda"),
    Fault(GEMM, "if (g.bias && {{!fuse_bias||false}}) add_bias(g);", GEMM, "gemm_cuda"),
    Fault(GEMM, "(static_cast<std::size_t>(bytes) + {{255||0}}) / 256 * 256;", GEMM, "gemm_cuda"),
    Fault(GEMM, "g.fast_accumulation && {{!has_blocks(g)||true}};", GEMM, "gemm_blocks_cuda"),
    Fault(PLAN, "A_SCALE_POINTER, {{pointers.b_scale_inv||pointers.a_scale_inv}});", PLAN, "gemm_cuda"),
    Fault(PLAN, "{{set_pointers(pointers);||;}}\n  enqueue", PLAN, "gemm_plans"),
    Fault(PLAN, "beta = {{problem_.accumulate||false}} ? 1.0f : 0.0f", PLAN, "gemm_cuda"),
    Fault(PLAN, "context.workspace_bytes(), {{stream||cudaStream_t(nullptr)}}),", PLAN, "gemm_plans"),
    Fault(MEMORY, "if (bytes > {{part.memory.bytes()||part.memory.bytes() + 512}})", MEMORY, "gemm_plans"),
    Fault(MEMORY, "part.captured |= {{capturing||false}};", MEMORY, "gemm_plans"),
    Fault(CACHE, "{{index_.erase(entries_.back().first);||;}}", CACHE, "gemm_plans"),
)  # fmt: skip
