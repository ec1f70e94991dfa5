#include "tests/emulator/warp_groups.h"

#include <algorithm>

namespace emu {

bool same_place(const Thread& a, const Thread& b) {
  return a.where.line() == b.where.line() &&
         (a.where.file_name() == b.where.file_name() ||
          std::strcmp(a.where.file_name(), b.where.file_name()) == 0);
}

std::string describe(const Thread& thread) {
  const std::string place =
      std::string(thread.where.file_name()) + ":" + std::to_string(thread.where.line());
  switch (thread.state) {
    case State::kExited: return "has exited";
    case State::kAtBarrier: return "waits at the block barrier " + place;
    case State::kInWarpOperation: return "waits in the warp operation " + place;
    case State::kReady: break;
  }
  return "can run";
}

GroupState check_group(const Thread* threads, std::size_t lanes, std::size_t lane) {
  const Thread& first = threads[lane];
  const unsigned mask = first.mask;
  GroupState state;
  if (!(mask >> lane & 1)) {
    state.fault = "a lane is not in the mask of its own warp operation";
    return state;
  }
  // the hardware accepts the full mask in the last, short warp of a block
  if (lanes < 32 && mask >> lanes != 0 && mask != 0xffffffffu) {
    state.fault = "the mask of a warp operation names a lane beyond the block";
    return state;
  }
  for (std::size_t i = 0; i < lanes; ++i) {
    if (!(mask >> i & 1)) continue;
    const Thread& other = threads[i];
    if (other.state == State::kExited) {
      state.fault = "the mask of a warp operation names a lane that has exited";
      return state;
    }
    if (other.state == State::kAtBarrier) {
      state.fault = "the mask of a warp operation names a lane that waits at a block barrier";
      return state;
    }
    if (other.state != State::kInWarpOperation) return state;
    if (other.mask != mask || other.operation != first.operation || !same_place(other, first)) {
      state.fault = "lanes of one mask meet in different warp operations or with different masks";
      return state;
    }
    ++state.size;
  }
  state.complete = true;
  return state;
}

namespace {

std::uint64_t combine(WarpOperation operation, std::uint64_t a, std::uint64_t b) {
  const auto sa = std::int64_t(a), sb = std::int64_t(b);
  const auto ua = std::uint32_t(a), ub = std::uint32_t(b);
  switch (operation) {
    case WarpOperation::kAdd: return a + b;
    case WarpOperation::kMax: return ua > ub ? ua : ub;
    case WarpOperation::kMin: return ua < ub ? ua : ub;
    case WarpOperation::kMaxSigned: return std::uint64_t(sa > sb ? sa : sb);
    case WarpOperation::kMinSigned: return std::uint64_t(sa < sb ? sa : sb);
    case WarpOperation::kAnd: return a & b;
    case WarpOperation::kOr: return a | b;
    case WarpOperation::kXor: return a ^ b;
    case WarpOperation::kSync:
    case WarpOperation::kShuffle:
    case WarpOperation::kBallot: break;
  }
  return 0;
}

}  // namespace

const char* complete_group(Thread* threads, std::size_t lanes, unsigned mask) {
  Thread* first = nullptr;
  std::uint64_t ballot = 0, combined = 0;
  for (std::size_t i = 0; i < lanes; ++i) {
    if (!(mask >> i & 1)) continue;
    Thread& thread = threads[i];
    thread.state = State::kReady;
    if (thread.operation == WarpOperation::kShuffle) {
      const int source = thread.source < 0 ? int(i) : thread.source;
      if (!(mask >> source & 1)) return "a shuffle reads a lane outside its mask";
      // a lane that a short warp lacks: the own value, as for a source out of range
      thread.result = threads[std::size_t(source) < lanes ? std::size_t(source) : i].value;
      continue;
    }
    ballot |= (thread.value & 1) << i;
    combined = first == nullptr ? thread.value : combine(thread.operation, combined, thread.value);
    if (first == nullptr) first = &thread;
  }
  if (first == nullptr) return nullptr;
  const std::uint64_t result = first->operation == WarpOperation::kBallot ? ballot : combined;
  for (std::size_t i = 0; i < lanes; ++i) {
    if (mask >> i & 1) threads[i].result = result;
  }
  return nullptr;
}

}  // namespace emu
