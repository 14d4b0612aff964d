#include "runtime/link.h"

#include <sys/prctl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "stowage/error.h"

namespace stowage::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::int64_t kSmallBytes = std::int64_t{64} << 10;
constexpr std::chrono::microseconds kLatency{10};
constexpr std::chrono::microseconds kShortestSleep{200};

// Of a lane, copies are numbered from 0. When a copy ends is known when it is asked for: later sleeps that end late do not add up.
//
//   now ──┐    ┌── free_at                           waiting_   5  7      made by the thread, one after the other
//         max ─┴─▶ + latency + bytes / gbps = end    small_     4  6      made at once by the caller; complete at their ends
class Lane {
 public:
  Lane(std::shared_ptr<HostStore> store, double gbps) : store_(std::move(store)), gbps_(gbps) {}

  ~Lane() {
    {
      const std::lock_guard lock(mutex_);
      quit_ = true;
      ++epoch_;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
  }

  std::int64_t start(const Copy& copy) {
    std::unique_lock lock(mutex_);
    const std::int64_t number = started_++;
    free_at_ = std::max(Clock::now(), free_at_) + kLatency + time_for(copy.bytes);
    const Asked asked{copy, number, free_at_};
    if (copy.bytes <= kSmallBytes) {
      small_.push_back({number, gbps_ > 0 ? free_at_ : Clock::time_point()});
      lock.unlock();
      attempt(asked, 0);
      return number;
    }
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    waiting_.push_back(asked);
    lock.unlock();
    changed_.notify_all();
    return number;
  }

  std::string finish(std::int64_t number) {
    std::unique_lock lock(mutex_);
    if (const auto small = find_small(number); small != small_.end()) {
      const Clock::time_point end = small->end;
      small_.erase(small);
      lock.unlock();
      wait_briefly(end);
      lock.lock();
    } else {
      changed_.wait(lock, [&] { return !open(number); });
    }
    const auto failed = failures_.find(number);
    if (failed == failures_.end()) return {};
    std::string why = std::move(failed->second);
    failures_.erase(failed);
    return why;
  }

  bool complete(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    if (const auto small = find_small(number); small != small_.end()) return Clock::now() >= small->end;
    return !open(number);
  }

  void abandon() {
    std::unique_lock lock(mutex_);
    ++epoch_;
    waiting_.clear();
    small_.clear();
    changed_.notify_all();
    changed_.wait(lock, [&] { return !running_; });
    failures_.clear();
    free_at_ = {};
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

  // Of those that the thread makes: it has not.
  [[nodiscard]] bool open(std::int64_t number) const {
    return running_ == number || std::any_of(waiting_.begin(), waiting_.end(), [&](const Asked& a) { return a.number == number; });
  }

  std::vector<Small>::iterator find_small(std::int64_t number) {
    return std::find_if(small_.begin(), small_.end(), [&](const Small& s) { return s.number == number; });
  }

  void work() {
    prctl(PR_SET_TIMERSLACK, 1'000UL);  // ns: the bucket's sleeps end on time
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return quit_ || !waiting_.empty(); });
      if (quit_) return;
      const Asked next = waiting_.front();
      waiting_.pop_front();
      running_ = next.number;
      const std::uint64_t epoch = epoch_;
      lock.unlock();
      attempt(next, epoch);
      lock.lock();
      running_.reset();
      changed_.notify_all();
    }
  }

  void attempt(const Asked& asked, std::uint64_t epoch) {
    try {
      move(asked, epoch);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      failures_[asked.number] = error.what();
    }
  }

  void move(const Asked& asked, std::uint64_t epoch) {
    const Copy& copy = asked.copy;
    for (std::int64_t done = 0; done < copy.bytes;) {
      const std::int64_t bytes = std::min(kChunkBytes, copy.bytes - done);
      char* device = static_cast<char*>(copy.device) + done;
      if (copy.direction == Copy::Direction::kOut) {
        store_->write(copy.host_offset + done, device, bytes);
      } else {
        store_->read(copy.host_offset + done, device, bytes);
      }
      done += bytes;
      const bool small = copy.bytes <= kSmallBytes;  // whoever needs it waits
      if (gbps_ > 0 && !small && !pass_until(asked.end - time_for(copy.bytes - done), epoch)) return;
    }
  }

  [[nodiscard]] std::chrono::nanoseconds time_for(std::int64_t bytes) const {
    return std::chrono::nanoseconds(gbps_ > 0 ? static_cast<std::int64_t>(static_cast<double>(bytes) / gbps_) : 0);
  }

  // False when the copy was abandoned meanwhile.
  bool pass_until(Clock::time_point time, std::uint64_t epoch) {
    if (Clock::now() >= time) return true;
    std::unique_lock lock(mutex_);
    return !changed_.wait_until(lock, time, [&] { return epoch_ != epoch; });
  }

  // A sleep of a few microseconds would last many.
  static void wait_briefly(Clock::time_point end) {
    while (end - Clock::now() > kShortestSleep) std::this_thread::sleep_for(kShortestSleep);
    while (Clock::now() < end) std::this_thread::yield();
  }

  std::shared_ptr<HostStore> store_;
  double gbps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Asked> waiting_;
  std::vector<Small> small_;              // until they are finished
  std::optional<std::int64_t> running_;   // on the thread
  std::int64_t started_ = 0;
  std::uint64_t epoch_ = 0;  // of abandon()
  std::map<std::int64_t, std::string> failures_;
  Clock::time_point free_at_;
  bool quit_ = false;
  std::thread thread_;
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

std::unique_ptr<Link> threaded_link(std::shared_ptr<HostStore> store, double gbps) {
  return std::make_unique<ThreadedLink>(store, gbps);
}

double measure_gbps(HostStore& store, Link& link) {
  constexpr std::int64_t kBytes = std::int64_t{32} << 20;
  constexpr int kTrials = 5;
  try {
    store.reserve(2 * kBytes);
  } catch (const Error&) {
    return 0;
  }
  std::vector<char> device(2 * kBytes, 1);
  std::vector<double> seen;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Clock::time_point begin = Clock::now();
    const Link::Ticket out = link.start({Copy::Direction::kOut, device.data(), 0, kBytes});
    const Link::Ticket in = link.start({Copy::Direction::kIn, device.data() + kBytes, kBytes, kBytes});
    if (!link.finish(out).empty() || !link.finish(in).empty()) return 0;
    seen.push_back(static_cast<double>(kBytes) / std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  store.release();
  std::sort(seen.begin(), seen.end());
  return seen[kTrials / 2];
}

}  // namespace stowage::runtime
