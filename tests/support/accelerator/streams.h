// Streams: queues of jobs, each with a thread of its own that runs them in order.
//
//   host       push(job) ► ticket 7          wait(7)
//                  │                            ▲
//   stream     5 ─ 6 ─ 7 ─► its thread ─────────┘       jobs are copies, marks of events, and waits for other streams
//
// A ticket is a job's number; done(t) says that it and all before it have run. Nothing waits for what is not pushed
// yet, so nothing waits for ever. Stream 0 is the default; the others are a pool that is handed out round and round, as
// on CUDA. Queues and threads live as long as the process.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>

namespace standin {

inline constexpr auto kType = c10::DeviceType::PrivateUse1;
inline constexpr c10::DispatchKey kKey = c10::DispatchKey::PrivateUse1;
inline const c10::Device kDevice(kType, 0);

inline constexpr c10::StreamId kStreams = 33;  // the default, and as many as CUDA has of one priority

using Ticket = std::int64_t;

class Queue {
 public:
  Ticket push(std::function<void()> job);
  [[nodiscard]] Ticket last() const;
  [[nodiscard]] bool done(Ticket ticket) const;
  [[nodiscard]] bool idle() const;
  void wait(Ticket ticket);
  void wait() { wait(last()); }  // for all that was pushed so far

 private:
  void work();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  Ticket pushed_ = 0, done_ = 0;
  bool started_ = false;
};

Queue& queue(c10::StreamId id);
c10::StreamId current_stream();  // of the calling thread
c10::StreamId exchange_stream(c10::StreamId id);
c10::StreamId next_of_pool();
c10::Stream stream(c10::StreamId id);

}  // namespace standin
