// How many floating-point operations per second a core's vector units can do: twelve independent
// chains of fused multiply-adds in registers, no memory. Compiled and called by gemm_bound.py.
#include <chrono>

namespace {
#if defined(__AVX512F__)
constexpr int bytes = 64;
#else
constexpr int bytes = 32;
#endif
using Vector = float __attribute__((vector_size(bytes)));
constexpr int chains = 12;
}  // namespace

// GFLOP/s of the calling thread over `rounds` rounds of `chains` fused multiply-adds.
extern "C" double fma_peak(long rounds) {
  Vector sums[chains];
  for (Vector& sum : sums) sum = Vector{} + 1e-9f;
  const Vector factor = Vector{} + 0.999f, summand = Vector{} + 1e-9f;
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int k = 0; k < chains; ++k) sums[k] = sums[k] * factor + summand;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  Vector total{};
  for (const Vector& sum : sums) total += sum;
  volatile float used = total[0];  // keeps the loop
  static_cast<void>(used);
  return static_cast<double>(rounds) * chains * 2 * (bytes / 4) / seconds.count() * 1e-9;
}
