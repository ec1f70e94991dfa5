// Adam over a list of tensors, in two launches: prepare (a thread a tensor: is every gradient
// finite? the scalars of the step and the new scales, from bounds) leaves a table in device memory,
// update (a block a chunk of a tensor) reads it; the last block of a tensor writes its scales,
// maxima and step number. The maxima of the gradients take one launch before. Nothing is read by
// the host.
//
// A thread takes 16 elements as the words they are stored in, and works on four of them at a time:
// 24 registers of words at O2 instead of 64 of floats. numerics::adam_element is the definition.
#pragma once
#include "kernels/adam.h"
#include "kernels/adam_step.h"
#include "kernels/cuda/adam_words.cuh"
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/element.h"

namespace fp8amp::kernels::cuda {

using numerics::Draw;

// Tensors of a launch: its parameters are at most 32,764 bytes.
inline constexpr int kMaxAdamTensors = 256, kMaxPassTensors = 1024, kMaxGradTensors = 512;
inline constexpr std::int64_t kAdamChunk = 4 * kThreads * kVector;  // elements of a block

// A tensor in the table: what the pass reads, and what its blocks raise meanwhile.
struct AdamPlan {
  AdamTensor tensor;
  AdamStep step;
  std::uint32_t key, v_key;  // m takes the first draw of `key`, p the second
  std::uint32_t aligned;     // all pointers, to 16 bytes
};
struct AdamWork {
  AdamPlan plan;
  std::uint32_t max_p, max_m, max_v;  // largest codes written
  std::uint32_t blocks_done;
};

struct AdamBatch {  // prepare
  AdamTensor tensors[kMaxAdamTensors];
  int count;
  bool first;      // of the batches of this step
  AdamWork* work;  // [count]
  numerics::AdamHyperparameters hyper;
  const float* lr;  // takes the place of hyper.lr unless null
  std::uint64_t seed;
  const float* grad_scale;  // may be null
  const float* found_inf;   // may be null
  std::uint32_t* skip;      // not 0: no tensor of the step changes
};

struct AdamPass {  // update
  std::int64_t first_block[kMaxPassTensors + 1];
  int count;
  AdamWork* work;  // [count]
  Rounding p_rounding, m_rounding, v_rounding;
  const std::uint32_t* skip;
};

struct GradTensor {
  const void* g;
  const float* scale_inv;  // may be null
  float* amax;             // float[4]
  std::int64_t n;
  DType type;
  bool aligned;
};

struct GradBatch {  // maxima of the gradients
  GradTensor tensors[kMaxGradTensors];
  std::int64_t first_block[kMaxGradTensors + 1];
  int count;
  bool first;                  // of the batches of this step
  std::uint32_t* maxima;       // [count], 0 before
  std::uint32_t* blocks_done;  // 0 before
  const float* grad_scale;     // may be null
  float* found_inf;
};
static_assert(sizeof(AdamBatch) <= 32764 && sizeof(AdamPass) <= 32764 &&
              sizeof(GradBatch) <= 32764);

struct AdamMaximum {
  std::uint32_t p, m, v;
};

// AdamW with the roundings that are the default: it has loops of its own, without choices.
__device__ __forceinline__ bool is_usual(const AdamPass& b, const AdamPlan& plan) {
  return plan.step.scalars.p_l2 == 0.0f && b.p_rounding == Rounding::kStochastic &&
         b.m_rounding == Rounding::kStochastic && b.v_rounding == Rounding::kNearest;
}

// 16 elements of a tensor of these types, and of its compute weight in E4M3 if kWeight. kUsual: as
// is_usual has it, and with none of the other choices.
template <DType P, DType G, DType M, DType V, bool kWeight, bool kUsual>
__device__ __forceinline__ void update_vector(const AdamTensor& x, const AdamPass& b,
                                              const AdamPlan& plan, std::int64_t i,
                                              AdamMaximum& max) {
  Words<P> p;
  Words<G> g;
  Words<M> m;
  Words<V> v;
  [[maybe_unused]] Words<DType::kE4M3> w;
  g.load(x.g, i), m.load(x.m, i), v.load(x.v, i), p.load(x.p, i);
  numerics::AdamScalars s = plan.step.scalars;
  if (kUsual) s.p_l2 = 0.0f;
  const RandomVector words(plan.key, std::uint64_t(i)), v_words(plan.v_key, std::uint64_t(i));
  const Rounding usual = Rounding::kStochastic;
  const Storing store_p{s.p_scale, kUsual ? usual : b.p_rounding, words, Draw::kSecond},
      store_m{s.m_scale, kUsual ? usual : b.m_rounding, words, Draw::kFirst},
      store_v{s.v_scale, kUsual ? Rounding::kNearest : b.v_rounding, v_words, Draw::kFirst};
  AdamMaximum high{};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    float new_p[4], new_m[4], new_v[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pair = k + 4 * half;
      const float2 P2 = p.pair(pair), G2 = g.pair(pair), M2 = m.pair(pair), V2 = v.pair(pair);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const numerics::AdamElement e = numerics::adam_element(s, j ? P2.y : P2.x, j ? G2.y : G2.x,
                                                               j ? M2.y : M2.x, j ? V2.y : V2.x);
        new_p[2 * half + j] = e.p, new_m[2 * half + j] = e.m, new_v[2 * half + j] = e.v;
      }
    }
    store_four<P, false>(p, k, new_p, store_p, high.p, max.p);
    if constexpr (kWeight) {
#pragma unroll
      for (int pair : {k, k + 4}) {
        const float2 master = p.pair(pair);
        w.set_codes(pair,
                    nearest_codes<E4M3>(master.x * plan.step.p_scale_inv * plan.step.w.scale,
                                        master.y * plan.step.p_scale_inv * plan.step.w.scale));
      }
    }
    store_four<M, false>(m, k, new_m, store_m, high.m, max.m);
    store_four<V, true>(v, k, new_v, store_v, high.v, max.v);
  }
  max.p = largest_code<P>(high.p, max.p, store_p.rounding);
  max.m = largest_code<M>(high.m, max.m, store_m.rounding);
  max.v = largest_code<V>(high.v, max.v, store_v.rounding);
  m.store(x.m, i), v.store(x.v, i), p.store(x.p, i);
  if constexpr (kWeight) w.store(x.w, i);
}

// ---- one element of any types
__device__ __forceinline__ std::uint32_t store_any(void* y, DType type, std::int64_t i, float value,
                                                   float scale, Rounding rounding,
                                                   std::uint32_t random, bool second_moment) {
  using namespace numerics;
  const auto code = [&](auto format) -> std::uint32_t {
    using F = decltype(format);
    const typename F::Bits c =
        second_moment ? encode_second_moment<F>(value, scale, rounding, random)
                      : encode<F>(value * scale, rounding, Overflow::kSaturate, random);
    static_cast<typename F::Bits*>(y)[i] = c;
    return c & std::uint32_t(F::kSign - 1);
  };
  switch (type) {
    case DType::kE4M3: return code(E4M3{});
    case DType::kE5M2: return code(E5M2{});
    case DType::kFloat32: static_cast<float*>(y)[i] = value; return magnitude(value);
    default: return code(Fp16{});
  }
}

__device__ inline void update_element(const AdamPass& b, const AdamPlan& plan, std::int64_t i,
                                      AdamMaximum& max) {
  const AdamTensor& x = plan.tensor;
  const numerics::AdamScalars& s = plan.step.scalars;
  const numerics::AdamElement e =
      numerics::adam_element(s, load_element(x.p, x.p_type, i), load_element(x.g, x.g_type, i),
                             load_element(x.m, x.m_type, i), load_element(x.v, x.v_type, i));
  const auto random = [i](Rounding rounding, std::uint32_t key, Draw draw) {
    return rounding == Rounding::kStochastic ? numerics::random_bits(key, std::uint64_t(i), draw)
                                             : 0u;
  };
  max.p =
      numerics::max_bits(max.p, store_any(x.p, x.p_type, i, e.p, s.p_scale, b.p_rounding,
                                          random(b.p_rounding, plan.key, Draw::kSecond), false));
  max.m = numerics::max_bits(max.m, store_any(x.m, x.m_type, i, e.m, s.m_scale, b.m_rounding,
                                              random(b.m_rounding, plan.key, Draw::kFirst), false));
  max.v =
      numerics::max_bits(max.v, store_any(x.v, x.v_type, i, e.v, s.v_scale, b.v_rounding,
                                          random(b.v_rounding, plan.v_key, Draw::kFirst), true));
  if (!x.w) return;
  const float master = load_element(x.p, x.p_type, i);
  store_code(x.w, x.w_type, i,
             is_scaled(x.p_type, x.p_scale_inv) ? master * plan.step.p_scale_inv : master,
             plan.step.w.scale, Rounding::kNearest, Overflow::kSaturate, 0);
}

// The elements [first, last) of a tensor, by the threads of a block; `first` is a multiple of 16.
template <DType P, DType G, DType M, DType V, bool kWeight, bool kUsual = false>
__device__ __forceinline__ void update_vectors(const AdamPass& b, const AdamPlan& plan,
                                               std::int64_t first, std::int64_t last,
                                               AdamMaximum& max) {
  const AdamPlan mine = plan;  // a copy: stores to the tensor do not change it
  const AdamTensor& x = mine.tensor;
  for (std::int64_t i = first / kVector + threadIdx.x; i < last / kVector; i += kThreads)
    update_vector<P, G, M, V, kWeight, kUsual>(x, b, mine, i, max);
}

// By the last block of a tensor. The maxima are read from L2, where the other blocks raised them:
// this SM's L1 may hold an older copy of their line.
__device__ __forceinline__ void finish_tensor(AdamWork& work) {
  finish_adam_step(work.plan.tensor, work.plan.step, __ldcg(&work.max_p), __ldcg(&work.max_m),
                   __ldcg(&work.max_v));
}

inline __global__ void __launch_bounds__(kThreads) adam_kernel(const __grid_constant__ AdamPass b) {
  if (*b.skip != 0) return;
  const int t = tensor_of(b.first_block, b.count, blockIdx.x);
  AdamWork& work = b.work[t];
  const AdamPlan& plan = work.plan;
  const AdamTensor& x = plan.tensor;
  const std::int64_t first = (blockIdx.x - b.first_block[t]) * kAdamChunk,
                     last = first + kAdamChunk < x.n ? first + kAdamChunk : x.n;
  constexpr DType k32 = DType::kFloat32, k16 = DType::kFloat16, k8 = DType::kE4M3;
  const auto is = [&](DType p, DType g, DType m, DType v) {
    return plan.aligned && x.p_type == p && x.g_type == g && x.m_type == m && x.v_type == v;
  };
  AdamMaximum max{};
  std::int64_t done = last / kVector * kVector;
  const bool usual = is_usual(b, plan);
  if (is(k16, k8, k8, k16) && !x.w && usual)
    update_vectors<k16, k8, k8, k16, false, true>(b, plan, first, last, max);
  else if (is(k16, k8, k8, k16) && x.w_type == k8 && x.w && usual)
    update_vectors<k16, k8, k8, k16, true, true>(b, plan, first, last, max);
  else if (is(k16, k8, k8, k16) && !x.w)
    update_vectors<k16, k8, k8, k16, false>(b, plan, first, last, max);
  else if (is(k16, k8, k8, k16) && x.w_type == k8)
    update_vectors<k16, k8, k8, k16, true>(b, plan, first, last, max);
  else if (is(k16, k8, k32, k32) && !x.w)
    update_vectors<k16, k8, k32, k32, false>(b, plan, first, last, max);
  else if (is(k32, k32, k32, k32) && !x.w)
    update_vectors<k32, k32, k32, k32, false>(b, plan, first, last, max);
  else
    done = first;
  for (std::int64_t i = done + threadIdx.x; i < last; i += kThreads)
    update_element(b, plan, i, max);
  const std::uint32_t p = block_max<kThreads>(max.p);
  __syncthreads();
  const std::uint32_t m = block_max<kThreads>(max.m);
  __syncthreads();
  const std::uint32_t v = block_max<kThreads>(max.v);
  if (threadIdx.x != 0) return;
  atomicMax(&work.max_p, p);
  atomicMax(&work.max_m, m);
  atomicMax(&work.max_v, v);
  __threadfence();
  const std::int64_t blocks = b.first_block[t + 1] - b.first_block[t];
  if (atomicAdd(&work.blocks_done, 1u) + 1 != blocks) return;
  __threadfence();
  finish_tensor(work);
}

// ---- before the pass: one block, a thread for each tensor
inline __global__ void __launch_bounds__(kMaxAdamTensors)
    prepare_adam_kernel(const __grid_constant__ AdamBatch b) {
  const int t = static_cast<int>(threadIdx.x);
  const bool bad = (t < b.count && !gradient_is_finite(b.tensors[t].amax[3], b.grad_scale)) ||
                   (b.found_inf && *b.found_inf != 0.0f);
  const int skip = __syncthreads_or(bad);
  if (t == 0 && (b.first || skip)) *b.skip = skip != 0;
  if (t >= b.count || skip) return;
  const AdamTensor& x = b.tensors[t];
  numerics::AdamHyperparameters hyper = b.hyper;
  if (b.lr) hyper.lr = *b.lr;
  AdamWork& work = b.work[t];
  AdamPlan& plan = work.plan;
  plan.tensor = x;
  work.max_p = work.max_m = work.max_v = work.blocks_done = 0;
  plan.step = prepare_adam_step(x, hyper, b.grad_scale ? *b.grad_scale : 1.0f);
  plan.key = numerics::random_key(b.seed, plan.step.t, x.id, kAdamStream);
  plan.v_key = numerics::random_key(b.seed, plan.step.t, x.id, kSecondMomentStream);
  plan.aligned = aligned_to_16(x.p, x.g, x.m, x.v, x.w);
}

// ---- maxima of the gradients
template <DType G>
__device__ __forceinline__ std::uint32_t largest_gradient(const void* g, std::int64_t first,
                                                          std::int64_t last, bool aligned) {
  std::uint32_t max = 0;
  const std::int64_t done = aligned ? last / kVector * kVector : first;
  for (std::int64_t i = first / kVector + threadIdx.x; i < done / kVector; i += kThreads)
    max = numerics::max_bits(max, largest_magnitude(load_vector<G>(g, i)));
  for (std::int64_t i = done + threadIdx.x; i < last; i += kThreads)
    max = numerics::max_bits(max, magnitude(load_element(g, G, i)));
  return max;
}

__device__ __forceinline__ std::uint32_t largest_gradient(const GradTensor& x, std::int64_t first,
                                                          std::int64_t last) {
  switch (x.type) {
    case DType::kFloat32: return largest_gradient<DType::kFloat32>(x.g, first, last, x.aligned);
    case DType::kFloat16: return largest_gradient<DType::kFloat16>(x.g, first, last, x.aligned);
    case DType::kBFloat16: return largest_gradient<DType::kBFloat16>(x.g, first, last, x.aligned);
    case DType::kE4M3: return largest_gradient<DType::kE4M3>(x.g, first, last, x.aligned);
    case DType::kE5M2: return largest_gradient<DType::kE5M2>(x.g, first, last, x.aligned);
  }
  return 0;
}

// By the threads of the last block of a batch.
__device__ __forceinline__ void finish_gradients(const GradBatch& b) {
  bool bad = false;
  for (int t = static_cast<int>(threadIdx.x); t < b.count; t += kThreads) {
    const GradTensor& x = b.tensors[t];
    x.amax[3] = gradient_amax(__uint_as_float(__ldcg(b.maxima + t)), x.scale_inv);
    bad = bad || !gradient_is_finite(x.amax[3], b.grad_scale);
  }
  const int any = __syncthreads_or(bad);
  if (threadIdx.x == 0 && (b.first || any)) *b.found_inf = any ? 1.0f : 0.0f;
}

inline __global__ void __launch_bounds__(kThreads)
    grad_amax_kernel(const __grid_constant__ GradBatch b) {
  FP8AMP_SHARED(std::uint32_t, is_last, [1]);
  const int t = tensor_of(b.first_block, b.count, blockIdx.x);
  const std::int64_t first = (blockIdx.x - b.first_block[t]) * kAdamChunk, n = b.tensors[t].n,
                     last = first + kAdamChunk < n ? first + kAdamChunk : n;
  const std::uint32_t max = block_max<kThreads>(largest_gradient(b.tensors[t], first, last));
  if (threadIdx.x == 0) {
    atomicMax(b.maxima + t, max);
    __threadfence();
    is_last[0] = atomicAdd(b.blocks_done, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!is_last[0]) return;
  __threadfence();
  finish_gradients(b);
}

}  // namespace fp8amp::kernels::cuda
