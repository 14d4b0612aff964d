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
#include <thread>
#include <vector>

#include "stowage/error.h"

namespace stowage::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kChunkBytes = std::int64_t{1} << 20;
constexpr std::chrono::microseconds kLatency{10};

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
    std::int64_t number = 0;
    {
      const std::lock_guard lock(mutex_);
      if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
      number = started_++;
      waiting_.push_back({copy, Clock::now()});
    }
    changed_.notify_all();
    return number;
  }

  std::string finish(std::int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return finished_ > number; });
    const auto failed = failures_.find(number);
    if (failed == failures_.end()) return {};
    std::string why = std::move(failed->second);
    failures_.erase(failed);
    return why;
  }

  bool complete(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    return finished_ > number;
  }

  void abandon() {
    std::unique_lock lock(mutex_);
    ++epoch_;
    started_ -= static_cast<std::int64_t>(waiting_.size());
    waiting_.clear();
    changed_.notify_all();
    changed_.wait(lock, [&] { return finished_ == started_; });
    failures_.clear();
    free_at_ = {};
  }

 private:
  struct Waiting {
    Copy copy;
    Clock::time_point since;
  };

  void work() {
    prctl(PR_SET_TIMERSLACK, 1'000UL);  // ns: the bucket's sleeps end on time
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return quit_ || !waiting_.empty(); });
      if (quit_) return;
      const Waiting next = waiting_.front();
      waiting_.pop_front();
      std::string failure;
      const std::uint64_t epoch = epoch_;
      lock.unlock();
      try {
        move(next.copy, next.since, epoch);
      } catch (const std::exception& error) {
        failure = error.what();
      }
      lock.lock();
      if (!failure.empty()) failures_[finished_] = failure;
      ++finished_;
      changed_.notify_all();
    }
  }

  // Begins when the copy was asked for or the lane was free by its rate, so that sleeps that end late do not add up.
  void move(const Copy& copy, Clock::time_point since, std::uint64_t epoch) {
    const Clock::time_point begin = std::max(since, free_at_) + kLatency;
    for (std::int64_t done = 0; done < copy.bytes;) {
      const std::int64_t bytes = std::min(kChunkBytes, copy.bytes - done);
      char* device = static_cast<char*>(copy.device) + done;
      if (copy.direction == Copy::Direction::kOut) {
        store_->write(copy.host_offset + done, device, bytes);
      } else {
        store_->read(copy.host_offset + done, device, bytes);
      }
      done += bytes;
      if (gbps_ > 0 && !pass_until(begin + time_for(done), epoch)) return;
    }
    if (gbps_ > 0) free_at_ = begin + time_for(copy.bytes);
  }

  [[nodiscard]] std::chrono::nanoseconds time_for(std::int64_t bytes) const {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(static_cast<double>(bytes) / gbps_));
  }

  // False when the copy was abandoned meanwhile.
  bool pass_until(Clock::time_point time, std::uint64_t epoch) {
    if (Clock::now() >= time) return true;
    std::unique_lock lock(mutex_);
    return !changed_.wait_until(lock, time, [&] { return epoch_ != epoch; });
  }

  std::shared_ptr<HostStore> store_;
  double gbps_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  std::int64_t started_ = 0;
  std::int64_t finished_ = 0;
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
