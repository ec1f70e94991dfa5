// Casts between plain and scaled tensors.
//
// scale = format_max / (amax * 2^margin), rounded by scale_rounding, capped at 2^126; amax 0 gives
// 1, a non-finite amax gives the previous scale where there is one (delayed scaling) and 1
// otherwise. Values are rounded once, from FP32, and saturate.
//
// What an operation writes - results, scales, maxima, flags, histories - overlaps none of its other
// arguments.
#pragma once
#include <fp8amp/recipe.h>
#include <fp8amp/scaled_tensor.h>

#include <cstdint>

namespace fp8amp {

struct QuantizeOptions {
  ScaleRounding scale_rounding = ScaleRounding::kPowerOfTwo;
  int margin = 0;  // binary orders of head-room, -64..64
  Rounding rounding = Rounding::kNearest;
  Overflow overflow = Overflow::kSaturate;  // what +-Inf becomes; kNaN for gradients
  std::uint64_t seed = 0;  // of stochastic rounding; element i of the tensor uses counter i
  // float32[] from 2^-126 to 2^126: use this scale (constant scaling). Undefined: current scaling
  Tensor scale{};
  // use the scale that `out` has already: its scale_inv, from 2^-126 to 2^126, is not written
  bool keep_scale = false;
  Tensor history{};            // delayed scaling: see recipe.h
  bool update_history = true;  // false: only use its scale (evaluation, recomputation)
  Tensor amax{};               // float32[], out: max |x|, non-finite if any element is
  Tensor found_inf{};          // float32[], out: set to 1 if amax is non-finite, else left alone
  // float32[cols], out: sums over the rows of x[rows, cols], see column_sums(). Of quantize() and
  // quantize_transpose() alone.
  Tensor column_sums{};
  void* stream = nullptr;  // cudaStream_t; ignored on the CPU
};

// out = quantize(x). x: float32, float16, bfloat16, or a scaled tensor of any format (re-quantised
// without an FP32 copy). out: float8_e4m3, float8_e5m2 or float16 with a scale_inv, of x's shape
// and device.
FP8AMP_API void quantize(const ScaledTensor& x, const ScaledTensor& out,
                         const QuantizeOptions& options = {});

// The same for x[rows, cols], and transposed[cols, rows] with the same codes; `transposed` shares
// out's scale_inv. x is read once after its amax. Nearest rounding only.
FP8AMP_API void quantize_transpose(const ScaledTensor& x, const ScaledTensor& out,
                                   const Tensor& transposed, const QuantizeOptions& options = {});

struct QuantizeBlocksOptions {
  ScaleRounding scale_rounding = ScaleRounding::kPowerOfTwo;
  int margin = 0;                           // binary orders of head-room, -64..64
  Overflow overflow = Overflow::kSaturate;  // what +-Inf becomes; kNaN for gradients
  Tensor found_inf{};      // float32[], out: set to 1 if any element is non-finite, else left alone
  void* stream = nullptr;  // cudaStream_t; ignored on the CPU
};

// Casts x[rows, cols] under a scale for each row, 1x128 piece or 128x128 block (out.granularity()),
// current scaling: every block's own amax; 0 or non-finite gives that block the scale 1.
//
//   out         float8[rows, cols], scales along its rows: an operand whose contraction is cols
//   transposed  float8[cols, rows], x transposed and quantised along its own rows, that is, along
//               the columns of x: an operand whose contraction is rows (dgrad and wgrad, which want
//               their contraction contiguous). For 128x128 its codes and scales are out's.
//
// One of the two may be undefined; else they have one format and one granularity. x: float32,
// float16 or bfloat16, with one scale_inv or none. Nearest rounding.
//
// On a GPU x is read once, for both outputs together; but twice for `transposed` with a scale for
// each row (whose maxima run over all of x), and for rows of more than 8192 elements with such.
// Source: DeepSeek-V3 (arXiv 2412.19437) section 3.3.2 for 1x128 and 128x128.
FP8AMP_API void quantize_blocks(const ScaledTensor& x, const ScaledTensor& out,
                                const ScaledTensor& transposed = {},
                                const QuantizeBlocksOptions& options = {});

// out = x * scale_inv, rounded once to out's dtype (float32, float16, bfloat16). x may have any
// granularity.
FP8AMP_API void dequantize(const ScaledTensor& x, const Tensor& out, void* stream = nullptr);

// amax = max |x| of x's elements (its payload's, if scaled, times scale_inv); NaN > Inf > finite.
// A float8 payload may stand without a scale_inv here.
FP8AMP_API void amax(const ScaledTensor& x, const Tensor& out, void* stream = nullptr);

// out[cols] = sums over the rows of x[rows, cols], of its values (its payload's, if scaled, times
// scale_inv) in FP32: the gradient of a bias. x: any dtype of Tensor, one scale_inv or none (float8
// has one); out: float32 on x's device; zeros where there are no rows. The same bits on every
// machine and backend, alone and in a cast: numerics/column_sums.h has the order.
FP8AMP_API void column_sums(const ScaledTensor& x, const Tensor& out, void* stream = nullptr);

// sum = quantize(sum + x): sum is float8 with a positive, finite scale_inv (checked on the CPU
// alone), a power of two afterwards; Inf becomes NaN. Rounded once, stochastically: small gradients
// added to large ones survive on average, where nearest rounding would lose them. The dither is
// keyed by a maximum and a checksum of the sums, so the result depends on the data alone.
FP8AMP_API void accumulate(const ScaledTensor& x, const ScaledTensor& sum, void* stream = nullptr);

}  // namespace fp8amp
