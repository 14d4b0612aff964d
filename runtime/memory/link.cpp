#include "runtime/memory/link.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/memory/device.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;
constexpr std::chrono::microseconds kLatency{10};
constexpr std::chrono::microseconds kShortestSleep{200};

// How often this process is the child of a fork: threads and locks of before are its parent's.
std::atomic<int> g_forks{0};

int forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++g_forks; });
  (void)registered;
  return g_forks.load();
}

// For tests: how many parts of copies the threads still move before one of them ends; negative: as many as there are.
// And whether there can be others then.
std::atomic<std::int64_t> g_parts_left{-1};
std::atomic<bool> g_no_more_threads{false};

void count_part() {
  if (g_parts_left.load() < 0 || g_parts_left.fetch_sub(1) != 0) return;
  pthread_exit(nullptr);
}

// Of a lane, copies are numbered from 0. When a copy ends is known when it is asked for: later sleeps that end late do
// not add up.
//
//   now ──┐    ┌── free_at                           waiting  5  7      made by the thread, one after the other
//         max ─┴─▶ + latency + bytes / gbps = end    small    4  6      made at once by the caller; complete at their ends
//
// A copy that the thread cannot make (there is none to be had) is made by the caller. A thread that ends, whatever
// ended it, fails the copy that it was making; another one makes those that wait, or whoever needs them. After a fork
// the child's lane begins anew: what was under way is the parent's, and the thread with it.
class Lane {
 public:
  Lane(std::shared_ptr<HostStore> store, double gbps) : store_(std::move(store)), gbps_(gbps), state_(new State) {}

  ~Lane() {
    State* state = here();
    {
      const std::lock_guard lock(state->mutex);
      state->quit = true;
      ++state->epoch;
    }
    state->changed.notify_all();
    if (state->thread.joinable()) state->thread.join();
    delete state;
  }

  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  std::int64_t start(const Copy& copy) {
    State* state = here();
    std::unique_lock lock(state->mutex);
    // So that what fails can be noted when there is no memory.
    state->failures.reserve(state->failures.size() + state->waiting.size() + state->small.size() + 2);
    const std::int64_t number = state->started++;
    state->free_at = std::max(Clock::now(), state->free_at) + kLatency + time_for(copy.bytes);
    const Asked asked{copy, number, state->free_at};
    const bool small = copy.bytes <= kSmallBytes;
    if (small || !has_thread(*state)) {
      state->small.push_back({number, gbps_ > 0 ? state->free_at : Clock::time_point()});
      lock.unlock();
      attempt(*state, asked, 0, /*by_caller=*/true);
      return number;
    }
    state->waiting.push_back(asked);
    lock.unlock();
    state->changed.notify_all();
    return number;
  }

  std::string finish(std::int64_t number) {
    State* state = here();
    std::unique_lock lock(state->mutex);
    if (number < state->first) return "it was under way when the process was forked";
    if (const auto small = find_small(*state, number); small != state->small.end()) {
      const Clock::time_point end = small->end;
      state->small.erase(small);
      lock.unlock();
      wait_briefly(end);
      lock.lock();
    } else {
      while (open(*state, number)) {
        if (!has_thread(*state)) {
          make_one_here(*state, lock);
        } else {
          state->changed.wait(lock, [&] { return state->ended || !open(*state, number); });
        }
      }
    }
    const auto failed = std::find_if(state->failures.begin(), state->failures.end(),
                                     [&](const Failure& f) { return f.number == number; });
    if (failed == state->failures.end()) return {};
    std::string why = std::move(failed->why);
    state->failures.erase(failed);
    return why.empty() ? "the copy failed" : why;
  }

  bool complete(std::int64_t number) {
    State* state = here();
    const std::lock_guard lock(state->mutex);
    if (const auto small = find_small(*state, number); small != state->small.end()) return Clock::now() >= small->end;
    return !open(*state, number);
  }

  void abandon() {
    State* state = here();
    std::unique_lock lock(state->mutex);
    ++state->epoch;
    state->waiting.clear();
    state->small.clear();
    state->changed.notify_all();
    state->changed.wait(lock, [&] { return !state->running; });
    state->failures.clear();
    state->free_at = {};
  }

 private:
  struct Asked {
    Copy copy;
    std::int64_t number = 0;
    Clock::time_point end;
  };
  struct Small {
    std::int64_t number = 0;
    Clock::time_point end;
  };
  struct Failure {
    std::int64_t number = 0;
    std::string why;
  };
  struct State {
    int forks = stowage::runtime::forks();
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<Asked> waiting;
    std::vector<Small> small;             // until they are finished
    std::optional<std::int64_t> running;  // on the thread
    std::int64_t first = 0;               // number of the first copy of this process
    std::int64_t started = 0;
    std::uint64_t epoch = 0;  // of abandon()
    std::vector<Failure> failures;
    Clock::time_point free_at;
    bool quit = false;
    bool ended = false;  // the thread
    std::thread thread;
  };

  // The state of this process. The parent's is left as it is, and never freed: its locks may be held by threads that
  // are not here.
  State* here() {
    State* state = state_.load();
    if (state->forks == g_forks.load()) return state;
    auto* fresh = new State;
    fresh->first = fresh->started = state->started + 1;
    if (state_.compare_exchange_strong(state, fresh)) return fresh;
    delete fresh;
    return state;
  }

  // Noted by the thread itself, however it ends: by its last act, or by an unwinding that comes from outside.
  struct Ending {
    State& state;
    std::unique_lock<std::mutex>& lock;

    ~Ending() {
      if (!lock.owns_lock()) lock.lock();
      state.ended = true;
      if (state.running) state.failures.push_back({*std::exchange(state.running, std::nullopt), {}});
      state.changed.notify_all();
    }
  };

  // Under the lock.
  bool has_thread(State& state) {
    if (state.ended) {
      state.thread.join();
      state.ended = false;
    }
    if (state.thread.joinable()) return true;
    if (g_no_more_threads.load()) return false;
    try {
      state.thread = std::thread([this, &state] { work(state); });
    } catch (const std::system_error&) {  // no more threads for this process
      return false;
    }
    return true;
  }

  // Of those that the thread makes: it has not.
  [[nodiscard]] static bool open(const State& state, std::int64_t number) {
    return state.running == number ||
           std::any_of(state.waiting.begin(), state.waiting.end(), [&](const Asked& a) { return a.number == number; });
  }

  static std::vector<Small>::iterator find_small(State& state, std::int64_t number) {
    return std::find_if(state.small.begin(), state.small.end(), [&](const Small& s) { return s.number == number; });
  }

  void work(State& state) {
    prctl(PR_SET_TIMERSLACK, 1'000UL);  // ns: the bucket's sleeps end on time
    std::unique_lock lock(state.mutex);
    const Ending ending{state, lock};
    for (;;) {
      state.changed.wait(lock, [&] { return state.quit || !state.waiting.empty(); });
      if (state.quit) return;
      make_first(state, lock, /*by_caller=*/false);
    }
  }

  // Without a thread. Another caller may be at it.
  void make_one_here(State& state, std::unique_lock<std::mutex>& lock) {
    if (!state.running) return make_first(state, lock, /*by_caller=*/true);
    state.changed.wait(lock, [&] { return !state.running; });
  }

  // Of those that wait.
  void make_first(State& state, std::unique_lock<std::mutex>& lock, bool by_caller) {
    const Asked next = state.waiting.front();
    state.waiting.pop_front();
    state.running = next.number;
    const std::uint64_t epoch = state.epoch;
    lock.unlock();
    attempt(state, next, epoch, by_caller);
    lock.lock();
    state.running.reset();
    state.changed.notify_all();
  }

  void attempt(State& state, const Asked& asked, std::uint64_t epoch, bool by_caller) {
    std::string why;
    try {
      return move(state, asked, epoch, by_caller);
    } catch (const std::exception& error) {
      try {
        why = error.what();
      } catch (const std::bad_alloc&) {
      }
      // Whatever it is, it must not end the thread; but for an unwinding that ends it, which is no C++ exception
    } catch (...) {
      if (std::current_exception() == nullptr) throw;
    }
    const std::lock_guard lock(state.mutex);
    state.failures.push_back({asked.number, std::move(why)});
  }

  void move(State& state, const Asked& asked, std::uint64_t epoch, bool by_caller) {
    const Copy& copy = asked.copy;
    for (std::int64_t done = 0; done < copy.bytes;) {
      if (!by_caller) count_part();
      const std::int64_t bytes = std::min(kChunkBytes, copy.bytes - done);
      char* device = static_cast<char*>(copy.device) + done;
      if (copy.direction == Copy::Direction::kOut) {
        store_->write(copy.host_offset + done, device, bytes);
      } else {
        store_->read(copy.host_offset + done, device, bytes);
      }
      done += bytes;
      // Of one by the caller, whoever needs it waits.
      if (gbps_ > 0 && !by_caller && !pass_until(state, asked.end - time_for(copy.bytes - done), epoch)) return;
    }
  }

  [[nodiscard]] std::chrono::nanoseconds time_for(std::int64_t bytes) const {
    return std::chrono::nanoseconds(gbps_ > 0 ? static_cast<std::int64_t>(static_cast<double>(bytes) / gbps_) : 0);
  }

  // False when the copy was abandoned meanwhile.
  static bool pass_until(State& state, Clock::time_point time, std::uint64_t epoch) {
    if (Clock::now() >= time) return true;
    std::unique_lock lock(state.mutex);
    return !state.changed.wait_until(lock, time, [&] { return state.epoch != epoch; });
  }

  // A sleep of a few microseconds would last many.
  static void wait_briefly(Clock::time_point end) {
    while (end - Clock::now() > kShortestSleep) std::this_thread::sleep_for(kShortestSleep);
    while (Clock::now() < end) std::this_thread::yield();
  }

  std::shared_ptr<HostStore> store_;
  double gbps_;
  std::atomic<State*> state_;
};

class ThreadedLink final : public Link {
 public:
  ThreadedLink(const std::shared_ptr<HostStore>& store, double gbps) : lanes_{Lane(store, gbps), Lane(store, gbps)} {}

  Ticket start(const Copy& copy) override { return {copy.direction, lane(copy.direction).start(copy)}; }
  std::string finish(Ticket ticket) override { return lane(ticket.direction).finish(ticket.number); }
  bool complete(Ticket ticket) override { return lane(ticket.direction).complete(ticket.number); }
  void abandon() override {
    for (Lane& lane : lanes_) lane.abandon();
  }

 private:
  Lane& lane(Copy::Direction direction) { return lanes_[direction == Copy::Direction::kOut ? 0 : 1]; }

  std::array<Lane, 2> lanes_;
};

}  // namespace

std::int64_t end_copy_thread(std::int64_t after_parts, bool no_more) {
  g_no_more_threads.store(no_more);
  return g_parts_left.exchange(after_parts);
}

std::unique_ptr<Link> threaded_link(std::shared_ptr<HostStore> store, double gbps) {
  return std::make_unique<ThreadedLink>(store, gbps);
}

double measure_gbps(HostStore& store, Link& link, Device& device, std::int64_t room_bytes) {
  constexpr std::int64_t kPart = std::int64_t{64} << 10;
  constexpr int kTrials = 5;
  const std::int64_t bytes = std::min(kTrialBytes, room_bytes) / 2 / kPart * kPart;  // each way
  if (bytes <= 0) return 0;
  try {
    store.reserve(2 * bytes);
  } catch (const Error&) {
    return 0;
  }
  c10::DataPtr memory;
  try {
    memory = device.allocate(2 * bytes);
  } catch (const std::exception&) {
    store.release();
    return 0;
  }
  char* const data = static_cast<char*>(memory.get());
  device.fill(data, 1, 2 * bytes);
  device.wait();
  std::vector<double> seen;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Clock::time_point begin = Clock::now();
    const Link::Ticket out = link.start({Copy::Direction::kOut, data, 0, bytes});
    const Link::Ticket in = link.start({Copy::Direction::kIn, data + bytes, bytes, bytes});
    if (!link.finish(out).empty() || !link.finish(in).empty()) return 0;
    device.wait();
    seen.push_back(static_cast<double>(bytes) / std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  link.abandon();
  store.release();
  std::sort(seen.begin(), seen.end());
  return seen[kTrials / 2];
}

}  // namespace stowage::runtime
