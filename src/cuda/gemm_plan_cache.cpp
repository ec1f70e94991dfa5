#include "src/cuda/gemm_plan.h"

namespace fp8amp::gpu {

std::size_t PlanCache::Hash::operator()(const MatmulProblem& p) const {
  std::uint64_t h = 0;
  const auto mix = [&h](std::uint64_t value) {
    h = (h ^ value) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  };
  const auto mix_operand = [&](const MatmulOperand& x) {
    mix(x.type);
    mix(x.k_contiguous);
    mix(static_cast<std::uint64_t>(x.leading_dimension));
    mix(static_cast<std::uint64_t>(x.scale_mode));
    mix(x.alignment);
  };
  for (std::int64_t size : {p.m, p.n, p.k, p.d_leading_dimension})
    mix(static_cast<std::uint64_t>(size));
  mix_operand(p.a);
  mix_operand(p.b);
  mix(p.d_type);
  mix(p.d_alignment);
  mix(p.has_bias | p.accumulate << 1 | p.fast_accumulation << 2);
  return h;
}

std::shared_ptr<MatmulPlan> PlanCache::find(const MatmulProblem& problem) {
  const auto found = index_.find(problem);
  if (found == index_.end()) {
    ++counts_.misses;
    return nullptr;
  }
  ++counts_.hits;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->second;
}

void PlanCache::insert(const MatmulProblem& problem, std::shared_ptr<MatmulPlan> plan) {
  entries_.emplace_front(problem, std::move(plan));
  index_.emplace(problem, entries_.begin());
  if (entries_.size() <= capacity_) return;
  index_.erase(entries_.back().first);
  entries_.pop_back();  // a thread that runs it holds it by its own shared_ptr
  ++counts_.dropped;
}

PlanCache::Counts PlanCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace fp8amp::gpu
