// The thread pool: coverage, nesting, exceptions, resizing, calls from several threads. Also run
// under ThreadSanitizer.
#include <fp8amp/error.h>
#include <fp8amp/parallel.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <limits>
#include <stdexcept>
#include <thread>
#include <vector>

namespace fp8amp {
namespace {

class Parallel : public testing::Test {
 protected:
  void TearDown() override { set_num_threads(2); }
};

std::vector<int> visits(std::int64_t n, std::int64_t grain) {
  std::vector<std::atomic<int>> seen(static_cast<std::size_t>(n));
  parallel_for(0, n, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++seen[static_cast<std::size_t>(i)];
  });
  return {seen.begin(), seen.end()};
}

TEST_F(Parallel, VisitsEveryIndexOnce) {
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    for (std::int64_t n : {0, 1, 2, 7, 1000})
      for (std::int64_t grain : {1, 3, 1000, 5000})
        EXPECT_EQ(visits(n, grain), std::vector<int>(static_cast<std::size_t>(n), 1))
            << threads << " threads, n " << n;
  }
}

TEST_F(Parallel, RangesRespectTheGrain) {
  set_num_threads(8);
  std::atomic<int> calls{0};
  parallel_for(0, 100, 50, [&](std::int64_t, std::int64_t) { ++calls; });
  EXPECT_EQ(calls, 2);
}

TEST_F(Parallel, NestedCallsDoNotDeadlock) {
  set_num_threads(2);
  std::atomic<std::int64_t> sum{0};
  parallel_for(0, 4, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      parallel_for(0, 10, 1, [&](std::int64_t b, std::int64_t e) { sum += e - b; });
  });
  EXPECT_EQ(sum, 40);
}

TEST_F(Parallel, ExceptionsReachTheCallerAndThePoolSurvives) {
  set_num_threads(2);
  EXPECT_THROW(parallel_for(0, 10, 1,
                            [](std::int64_t, std::int64_t) { throw std::runtime_error("inside"); }),
               std::runtime_error);
  EXPECT_EQ(visits(100, 1), std::vector<int>(100, 1));
}

TEST_F(Parallel, SeveralCallersAtOnce) {
  set_num_threads(2);
  std::atomic<std::int64_t> sum{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int r = 0; r < 50; ++r)
        parallel_for(0, 100, 10, [&](std::int64_t b, std::int64_t e) { sum += e - b; });
    });
  for (std::thread& t : callers) t.join();
  EXPECT_EQ(sum, 4 * 50 * 100);
}

TEST_F(Parallel, RefusesNoThreads) {
  EXPECT_THROW(set_num_threads(0), Error);
  EXPECT_THROW(set_num_threads(-3), Error);
}

TEST_F(Parallel, RefusesToResizeInsideABody) {
  set_num_threads(2);
  EXPECT_THROW(parallel_for(0, 8, 1, [](std::int64_t, std::int64_t) { set_num_threads(3); }),
               Error);
  EXPECT_EQ(num_threads(), 2);
  EXPECT_EQ(visits(100, 1), std::vector<int>(100, 1));
}

TEST_F(Parallel, ExtremeRanges) {
  set_num_threads(4);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(visits(8, kMost), std::vector<int>(8, 1));
  for (std::int64_t begin : {std::int64_t{0}, std::int64_t{1} << 62, -kMost / 2}) {
    const std::int64_t end = begin < 0 ? kMost / 2 : kMost;
    std::atomic<std::int64_t> covered{0};
    std::atomic<bool> bad{false};
    parallel_for(begin, end, 1, [&](std::int64_t b, std::int64_t e) {
      if (b < begin || e < b || end < e) bad = true;
      covered += e - b;
    });
    EXPECT_FALSE(bad);
    EXPECT_EQ(covered, end - begin);
  }
}

// Sanitizers neither start threads in a child nor live without memory.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// The child has none of the parent's threads, and perhaps a mutex that one of them held.
TEST_F(Parallel, ForkedChildrenHaveAPoolOfTheirOwn) {
  if (kSanitized) GTEST_SKIP();
  set_num_threads(3);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) visits(100, 1);
  });
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);  // a hang ends as a signal
      const bool before = num_threads() == 3 && visits(100, 1) == std::vector<int>(100, 1);
      set_num_threads(2);
      _exit(before && visits(100, 1) == std::vector<int>(100, 1) ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
  stop = true;
  busy.join();
}

// With no memory for the stacks of more threads the caller works alone.
TEST_F(Parallel, FewerThreadsThanWanted) {
  if (kSanitized) GTEST_SKIP();
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    set_num_threads(4);
    const rlimit none{0, 0};
    setrlimit(RLIMIT_AS, &none);
    std::int64_t sum = 0;
    parallel_for(0, 100, 1, [&](std::int64_t b, std::int64_t e) { sum += e - b; });
    _exit(sum == 100 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(Parallel, AnotherExecutorTakesOver) {
  int calls = 0;
  set_parallel_for(
      [&](std::int64_t begin, std::int64_t end, std::int64_t, const RangeFunction& body) {
        ++calls;
        body(begin, end);
      });
  EXPECT_EQ(visits(10, 1), std::vector<int>(10, 1));
  set_parallel_for({});
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(visits(10, 1), std::vector<int>(10, 1));
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace fp8amp
