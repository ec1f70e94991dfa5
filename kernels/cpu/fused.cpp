// Norms and activations with a cast, and the norms' backward, on the CPU: row by row, in FP32
// buffers that stay in the cache.
#include "kernels/fused.h"

#include <fp8amp/parallel.h>

#include <algorithm>
#include <vector>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scale.h"
#include "kernels/cpu/shared_maximum.h"
#include "kernels/element.h"

namespace fp8amp::kernels::cpu {
namespace {

using namespace numerics;

constexpr std::int64_t kGrain = 32768;         // elements that are worth waking a thread for
constexpr std::int64_t kRowsOfTranspose = 64;  // a cache line of the transposed output

using Floats = std::vector<float>;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Elements [first, first + n) of x as FP32: in place, or in `buffer`.
const float* as_floats(const void* x, DType type, std::int64_t first, std::int64_t n,
                       Floats& buffer) {
  if (type == DType::kFloat32) return static_cast<const float*>(x) + first;
  loops().dequantize(
      {element_pointer(x, type, first), type, false, 1.0f, buffer.data(), DType::kFloat32, n});
  return buffer.data();
}

// The rows of the result in FP32, one at a time.
class Rows {
 public:
  // `measured`: mean and rstd are there already.
  Rows(const FusedArgs& a, bool measured)
      : a_(a),
        measured_(measured),
        x_(std::size_t(x_cols())),
        dy_(a.dy ? std::size_t(a.cast.cols) : 0),
        y_(std::size_t(a.cast.cols)) {}

  std::int64_t length(std::int64_t row) const {
    return std::min(a_.cast.cols, a_.cast.n - row * a_.cast.cols);
  }
  const float* compute(std::int64_t row) {
    loops().fused_row(prepare(row));
    return y_.data();
  }
  std::uint32_t amax(std::int64_t row, std::uint32_t seen) {
    return loops().fused_row_amax(prepare(row), seen);
  }

 private:
  FusedRow prepare(std::int64_t row) {
    const bool halves = a_.op == FusedOp::kSwiGluBackward;
    FusedRow r{};
    r.op = a_.op;
    r.form = a_.form;
    r.gamma = a_.gamma;
    r.beta = a_.beta;
    r.y = y_.data();
    r.n = halves ? a_.cast.cols / 2 : length(row);
    const std::int64_t x_length = a_.op == FusedOp::kSwiGlu ? x_cols() : length(row);
    r.x = as_floats(a_.x, a_.x_type, row * x_cols(), x_length, x_);
    if (a_.dy) r.dy = as_floats(a_.dy, a_.x_type, row * (halves ? r.n : a_.cast.cols), r.n, dy_);
    if (a_.op == FusedOp::kNorm) {
      if (!measured_) measure(r.x, row);
      r.mean = a_.mean ? a_.mean[row] : 0.0f;
      r.rstd = a_.rstd[row];
    }
    return r;
  }
  std::int64_t x_cols() const { return a_.cast.cols * (a_.op == FusedOp::kSwiGlu ? 2 : 1); }
  void measure(const float* x, std::int64_t row) {
    const std::int64_t n = a_.cast.cols;
    const float mean = a_.mean ? loops().row_sum(x, n) / float(n) : 0.0f;
    if (a_.mean) a_.mean[row] = mean;
    a_.rstd[row] = inverse_deviation(loops().row_deviation(x, n, mean), n, a_.eps);
  }

  const FusedArgs& a_;
  bool measured_;
  Floats x_, dy_, y_;
};

std::int64_t grain(const FusedArgs& a, std::int64_t rows) {
  return std::max<std::int64_t>(1, kGrain / (rows * a.cast.cols + 1));
}

std::uint32_t amax_of(const FusedArgs& a) {
  SharedMaximum max;
  parallel_for(0, a.cast.rows, grain(a, 1), [&](std::int64_t from, std::int64_t to) {
    Rows rows(a, false);
    for (std::int64_t row = from; row < to; ++row) max.raise(rows.amax(row, max.get()));
  });
  return max.get();
}

CastLoop make_loop(const QuantizeArgs& c, float scale) {
  CastLoop loop{};
  loop.x_scale_inv = 1.0f;
  loop.format = c.format;
  loop.scale = scale;
  loop.rounding = Rounding::kNearest;
  loop.overflow = c.overflow;
  return loop;
}

// Rows [from, to), a range of the transposed output's cache lines, from the codes just written:
// casting a code under scale 1 gives the code.
void transpose(const QuantizeArgs& c, std::int64_t from, std::int64_t to) {
  CastLoop loop = make_loop(c, 1.0f);
  loop.x_type = c.format;
  loop.x = loop.y = element_pointer(c.y, c.format, from * c.cols);
  loops().cast_transpose({loop, to - from, c.cols, c.transposed + from, c.rows, nullptr});
}

std::uint32_t cast(const FusedArgs& a, float scale, bool measured) {
  const QuantizeArgs& c = a.cast;
  const std::int64_t unit = c.transposed ? kRowsOfTranspose : 1;
  SharedMaximum max;
  parallel_for(0, ceil_div(c.rows, unit), grain(a, unit), [&](std::int64_t from, std::int64_t to) {
    Rows rows(a, measured);
    CastLoop loop = make_loop(c, scale);
    loop.x_type = DType::kFloat32;
    from *= unit;
    to = std::min(to * unit, c.rows);
    for (std::int64_t row = from; row < to; ++row) {
      loop.x = rows.compute(row);
      loop.y = element_pointer(c.y, c.format, row * c.cols);
      loop.n = rows.length(row);
      max.raise(loops().cast(loop));
    }
    if (c.transposed) transpose(c, from, to);
  });
  return max.get();
}

void norm_backward_rows(const NormBackwardArgs& a, std::int64_t from, std::int64_t to,
                        float* dgamma, float* dbeta) {
  const std::size_t n = std::size_t(a.cols);
  Floats x(n), dy(n), dx(n);
  for (std::int64_t row = from; row < to; ++row) {
    const float* values = as_floats(a.x, a.x_type, row * a.cols, a.cols, x);
    const float* gradients = as_floats(a.dy, a.x_type, row * a.cols, a.cols, dy);
    loops().norm_backward_row({gradients, values, a.gamma, a.mean != nullptr,
                               a.mean ? a.mean[row] : 0.0f, a.rstd[row], dx.data(), dgamma, dbeta,
                               a.cols});
    loops().dequantize({dx.data(), DType::kFloat32, false, 1.0f,
                        element_pointer(a.dx, a.x_type, row * a.cols), a.x_type, a.cols});
  }
}

}  // namespace

void fused_quantize(const FusedArgs& a) {
  bool measured = false;
  const float scale = choose_scale(a.cast, [&] {
    measured = true;
    return amax_of(a);
  });
  finish_cast(a.cast, scale, bits_float(cast(a, scale, measured)));
}

void norm_backward(const NormBackwardArgs& a) {
  ColumnSums dgamma(a.rows, a.cols), dbeta(a.rows, a.dbeta ? a.cols : 0);
  const std::int64_t per_sum = kRowsOfSum * a.cols + 1;
  parallel_for(0, dgamma.count(), std::max<std::int64_t>(1, kGrain / per_sum),
               [&](std::int64_t from, std::int64_t to) {
                 for (std::int64_t k = from; k < to; ++k)
                   norm_backward_rows(a, k * kRowsOfSum, std::min((k + 1) * kRowsOfSum, a.rows),
                                      dgamma.start(k), a.dbeta ? dbeta.start(k) : nullptr);
               });
  dgamma.add(a.dgamma);
  if (a.dbeta) dbeta.add(a.dbeta);
}

}  // namespace fp8amp::kernels::cpu
