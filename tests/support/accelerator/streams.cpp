// Queues, their threads, and each thread's current stream (see streams.h).
#include "streams.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "settings.h"

namespace standin {
namespace {

std::atomic<std::int64_t> g_handed_out{0};
thread_local c10::StreamId tl_stream = 0;

std::array<Queue, kStreams>& queues() {
  static auto* const all = new std::array<Queue, kStreams>();
  return *all;
}

}  // namespace

Ticket Queue::push(std::function<void()> job) {
  TORCH_CHECK(!forked(), "Cannot re-initialize the stand-in in a forked subprocess");
  const std::lock_guard lock(mutex_);
  if (!std::exchange(started_, true)) std::thread([this] { work(); }).detach();
  jobs_.push_back(std::move(job));
  changed_.notify_all();
  return ++pushed_;
}

void Queue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !jobs_.empty(); });
    std::function<void()> job = std::exchange(jobs_.front(), nullptr);
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

Ticket Queue::last() const {
  const std::lock_guard lock(mutex_);
  return pushed_;
}

bool Queue::done(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return done_ >= ticket;
}

bool Queue::idle() const {
  const std::lock_guard lock(mutex_);
  return done_ == pushed_;
}

void Queue::wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= ticket; });
}

Queue& queue(c10::StreamId id) { return queues().at(static_cast<std::size_t>(id)); }
c10::StreamId current_stream() { return tl_stream; }
c10::StreamId exchange_stream(c10::StreamId id) { return std::exchange(tl_stream, id); }
c10::StreamId next_of_pool() { return 1 + g_handed_out.fetch_add(1) % (kStreams - 1); }

c10::Stream stream(c10::StreamId id) { return c10::Stream(c10::Stream::UNSAFE, kDevice, id); }

}  // namespace standin
