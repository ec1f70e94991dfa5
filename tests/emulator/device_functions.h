// The built-in functions of CUDA C++ that kernels call, for the emulator. Where nvcc has an
// approximation (__expf, rsqrtf, __fdividef) there is none here: results must be the same bits.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "tests/emulator/cuda_emu.h"

#define EMU_HERE ::emu::Location where = ::emu::Location::current()

// ---- barriers -----------------------------------------------------------------------------------

inline void __syncthreads(EMU_HERE) { emu::block_barrier(emu::Combine::kCount, false, where); }
inline int __syncthreads_count(int p, EMU_HERE) {
  return emu::block_barrier(emu::Combine::kCount, p != 0, where);
}
inline int __syncthreads_and(int p, EMU_HERE) {
  return emu::block_barrier(emu::Combine::kAnd, p != 0, where);
}
inline int __syncthreads_or(int p, EMU_HERE) {
  return emu::block_barrier(emu::Combine::kOr, p != 0, where);
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EMU_HERE) {
  emu::warp_operation(emu::WarpOperation::kSync, mask, 0, -1, where);
}
inline void __threadfence() { emu::fence(); }
inline void __threadfence_block() { emu::fence(); }
inline void __threadfence_system() { emu::fence(); }
inline void __trap(EMU_HERE) { emu::trap(where); }

// ---- warp operations ----------------------------------------------------------------------------

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, EMU_HERE) {
  const int lane = emu::current->lane;
  return emu::shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)), where);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, EMU_HERE) {
  const int lane = emu::current->lane, source = lane ^ bits;
  const bool inside = (source & ~(width - 1)) <= (lane & ~(width - 1));
  return emu::shuffle(mask, value, inside ? source : -1, where);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_HERE) {
  const int lane = emu::current->lane, source = lane + int(delta);
  const bool inside = (source & ~(width - 1)) == (lane & ~(width - 1));
  return emu::shuffle(mask, value, inside ? source : -1, where);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, EMU_HERE) {
  const int lane = emu::current->lane, source = lane - int(delta);
  return emu::shuffle(mask, value, source >= (lane & ~(width - 1)) ? source : -1, where);
}

inline unsigned __ballot_sync(unsigned mask, int p, EMU_HERE) {
  return unsigned(emu::warp_operation(emu::WarpOperation::kBallot, mask, p != 0, -1, where));
}
inline int __any_sync(unsigned mask, int p, EMU_HERE) {
  return emu::warp_operation(emu::WarpOperation::kBallot, mask, p != 0, -1, where) != 0;
}
inline int __all_sync(unsigned mask, int p, EMU_HERE) {
  return emu::warp_operation(emu::WarpOperation::kBallot, mask, p == 0, -1, where) == 0;
}

#define EMU_REDUCE(name, T, operation)                                            \
  inline T name(unsigned mask, T value, EMU_HERE) {                               \
    return T(emu::warp_operation(emu::WarpOperation::operation, mask,             \
                                 std::uint64_t(std::int64_t(value)), -1, where)); \
  }
EMU_REDUCE(__reduce_add_sync, unsigned, kAdd)
EMU_REDUCE(__reduce_add_sync, int, kAdd)
EMU_REDUCE(__reduce_max_sync, unsigned, kMax)
EMU_REDUCE(__reduce_max_sync, int, kMaxSigned)
EMU_REDUCE(__reduce_min_sync, unsigned, kMin)
EMU_REDUCE(__reduce_min_sync, int, kMinSigned)
EMU_REDUCE(__reduce_and_sync, unsigned, kAnd)
EMU_REDUCE(__reduce_or_sync, unsigned, kOr)
EMU_REDUCE(__reduce_xor_sync, unsigned, kXor)
#undef EMU_REDUCE
#undef EMU_HERE

// ---- memory -------------------------------------------------------------------------------------

template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldca(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldlu(const T* p) {
  return *p;
}
template <class T>
T __ldcv(const T* p) {
  return *p;
}
template <class T>
void __stwb(T* p, T value) {
  *p = value;
}
template <class T>
void __stcg(T* p, T value) {
  *p = value;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
void __stwt(T* p, T value) {
  *p = value;
}

namespace emu {

// *p = update(*p), atomically and without ordering anything else; returns the old value.
template <class T, class Update>
T atomic_update(T* p, Update update) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  using Aliased [[gnu::may_alias]] = Bits;
  Aliased* word = reinterpret_cast<Aliased*>(p);
#if defined(__SANITIZE_THREAD__)
  note_atomic(p);
#endif
  Bits old = __atomic_load_n(word, __ATOMIC_RELAXED), next;
  do {
    next = std::bit_cast<Bits>(T(update(std::bit_cast<T>(old))));
  } while (
      !__atomic_compare_exchange_n(word, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return std::bit_cast<T>(old);
}

// An integer sum wraps.
template <class T>
T wrapping_add(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
  } else {
    return a + b;
  }
}

}  // namespace emu

#define EMU_ATOMIC(name, T, ...)                                                       \
  inline T name(T* p, T v) {                                                           \
    return emu::atomic_update(p, [=]([[maybe_unused]] T old) { return __VA_ARGS__; }); \
  }
#define EMU_INTEGER_ATOMICS(T)                                                     \
  EMU_ATOMIC(atomicAdd, T, emu::wrapping_add(old, v))                              \
  EMU_ATOMIC(atomicMax, T, old > v ? old : v)                                      \
  EMU_ATOMIC(atomicMin, T, old < v ? old : v)                                      \
  EMU_ATOMIC(atomicAnd, T, old& v)                                                 \
  EMU_ATOMIC(atomicOr, T, old | v)                                                 \
  EMU_ATOMIC(atomicXor, T, old ^ v)                                                \
  EMU_ATOMIC(atomicExch, T, v)                                                     \
  inline T atomicCAS(T* p, T compare, T v) {                                       \
    return emu::atomic_update(p, [=](T old) { return old == compare ? v : old; }); \
  }
EMU_INTEGER_ATOMICS(int)
EMU_INTEGER_ATOMICS(unsigned)
EMU_INTEGER_ATOMICS(unsigned long long)
EMU_ATOMIC(atomicAdd, float, old + v)
EMU_ATOMIC(atomicAdd, double, old + v)
EMU_ATOMIC(atomicExch, float, v)
EMU_ATOMIC(atomicSub, int, emu::wrapping_add(old, 0 - v))
EMU_ATOMIC(atomicSub, unsigned, old - v)
#undef EMU_INTEGER_ATOMICS
#undef EMU_ATOMIC
inline unsigned atomicInc(unsigned* p, unsigned last) {
  return emu::atomic_update(p, [=](unsigned old) { return old >= last ? 0u : old + 1; });
}

// ---- floating point: one rounding each; the build has -ffp-contract=off -------------------------

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __drcp_rn(double a) { return 1.0 / a; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }
inline float __double2float_rn(double x) { return float(x); }
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __ull2float_rn(unsigned long long x) { return float(x); }
inline double __ll2double_rn(long long x) { return double(x); }
inline double __ull2double_rn(unsigned long long x) { return double(x); }
inline int __float2int_rn(float x) { return int(std::nearbyint(x)); }
inline int __float2int_rz(float x) { return int(x); }

// ---- integers -----------------------------------------------------------------------------------

#define EMU_MIN_MAX(T)                                       \
  inline constexpr T max(T a, T b) { return a > b ? a : b; } \
  inline constexpr T min(T a, T b) { return a < b ? a : b; }
EMU_MIN_MAX(int)
EMU_MIN_MAX(unsigned)
EMU_MIN_MAX(long)
EMU_MIN_MAX(unsigned long)
EMU_MIN_MAX(long long)
EMU_MIN_MAX(unsigned long long)
#undef EMU_MIN_MAX
inline float max(float a, float b) { return std::fmax(a, b); }
inline float min(float a, float b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline constexpr unsigned max(unsigned a, int b) { return max(a, unsigned(b)); }
inline constexpr unsigned max(int a, unsigned b) { return max(unsigned(a), b); }
inline constexpr unsigned min(unsigned a, int b) { return min(a, unsigned(b)); }
inline constexpr unsigned min(int a, unsigned b) { return min(unsigned(a), b); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)(x)); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline int __mulhi(int a, int b) { return int(std::int64_t(a) * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(std::uint64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return (unsigned long long)(Wide(a) * b >> 64);
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned((std::uint64_t(high) << 32 | low) << (shift & 31) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((std::uint64_t(high) << 32 | low) >> (shift & 31));
}
// Byte i of the result: the byte of b:a that nibble i names; its sign in all bits if bit 3 is set.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned nibble = selector >> 4 * i & 0xf;
    unsigned byte = unsigned(bytes >> 8 * (nibble & 7)) & 0xff;
    if (nibble & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << 8 * i;
  }
  return result;
}
inline unsigned __vmaxu2(unsigned a, unsigned b) {
  return max(a & 0xffffu, b & 0xffffu) | max(a >> 16, b >> 16) << 16;
}
inline unsigned __vmaxu4(unsigned a, unsigned b) {
  unsigned result = 0;
  for (int i = 0; i < 32; i += 8) result |= max(a >> i & 0xffu, b >> i & 0xffu) << i;
  return result;
}
