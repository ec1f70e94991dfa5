// The library's own thread pool: one job at a time, split into ranges; the calling thread works
// too.
#include "fp8amp/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "fp8amp/error.h"

namespace fp8amp {
namespace {

class ThreadPool {
 public:
  explicit ThreadPool(int n) : size_(n) {}

  int size() const { return size_.load(std::memory_order_relaxed); }

  void resize(int n) {
    if (inside_)
      throw Error("set_num_threads: must be called outside parallel_for, got a call inside");
    std::lock_guard serial(job_mutex_);
    stop_and_join();
    size_.store(n, std::memory_order_relaxed);
  }

  void run(std::int64_t begin, std::int64_t end, std::int64_t grain, const RangeFunction& body) {
    const std::int64_t most = (end - begin - 1) / grain + 1;
    const std::int64_t parts = std::min<std::int64_t>(size(), most);
    // A nested call, or one while another thread's job is running, works alone: no deadlock, same
    // result.
    std::unique_lock serial(job_mutex_, std::defer_lock);
    if (parts <= 1 || inside_ || !serial.try_lock()) return body(begin, end);
    start_workers();
    Job job(begin, end, parts, body);
    {
      std::lock_guard lock(mutex_);
      job_ = &job;
      ++generation_;
    }
    wake_.notify_all();
    work(job);
    std::unique_lock lock(mutex_);
    job_ = nullptr;
    done_.wait(lock, [&] { return job.workers == 0; });
    if (job.error) std::rethrow_exception(job.error);
  }

 private:
  struct Job {
    Job(std::int64_t b, std::int64_t e, std::int64_t p, const RangeFunction& f)
        : begin(b), end(e), parts(p), body(&f) {}
    std::int64_t begin, end, parts;
    const RangeFunction* body;
    std::atomic<std::int64_t> next{0};
    int workers = 0;             // guarded by mutex_
    std::exception_ptr error{};  // guarded by mutex_
  };

  void work(Job& job) {
    inside_ = true;
    const std::int64_t n = job.end - job.begin, least = n / job.parts, longer = n % job.parts;
    const auto start = [&](std::int64_t i) { return job.begin + least * i + std::min(i, longer); };
    for (std::int64_t i; (i = job.next.fetch_add(1)) < job.parts;) try {
        (*job.body)(start(i), start(i + 1));
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!job.error) job.error = std::current_exception();
      }
    inside_ = false;
  }

  void start_workers() {  // under job_mutex_
    while (static_cast<int>(threads_.size()) < size() - 1) try {
        threads_.emplace_back([this, seen = generation_]() mutable {
          std::unique_lock lock(mutex_);
          for (;;) {
            wake_.wait(lock, [&] { return stop_ || (job_ && generation_ != seen); });
            if (stop_) return;
            seen = generation_;
            Job& job = *job_;
            ++job.workers;
            lock.unlock();
            work(job);
            lock.lock();
            if (--job.workers == 0) done_.notify_all();
          }
        });
      } catch (const std::system_error&) {
        return;  // as many as the machine gives: the caller does what they do not
      }
  }

  void stop_and_join() {  // under job_mutex_
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
    stop_ = false;
  }

  std::atomic<int> size_;
  std::mutex job_mutex_;  // one job at a time
  std::mutex mutex_;      // guards all below
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  Job* job_ = nullptr;
  std::uint64_t generation_ = 0;
  bool stop_ = false;
  static thread_local bool inside_;
};

thread_local bool ThreadPool::inside_ = false;

// Never destroyed: a forked child has the object but not its threads, and perhaps a mutex that one
// of them held. It gets a pool of its own.
ThreadPool& pool() {
  static std::atomic<ThreadPool*> pool = [] {
    pthread_atfork(nullptr, nullptr, [] { pool = new ThreadPool(pool.load()->size()); });
    return new ThreadPool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  }();
  return *pool;
}

ParallelFor& executor() {
  static ParallelFor executor;
  return executor;
}

}  // namespace

void set_parallel_for(ParallelFor e) { executor() = std::move(e); }

void set_num_threads(int n) {
  if (n < 1) throw Error("set_num_threads: n must be >= 1, got " + std::to_string(n));
  pool().resize(n);
}

int num_threads() { return pool().size(); }

void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                  const RangeFunction& body) {
  if (begin >= end) return;
  grain = std::max<std::int64_t>(grain, 1);
  if (executor()) return executor()(begin, end, grain, body);
  pool().run(begin, end, grain, body);
}

}  // namespace fp8amp
