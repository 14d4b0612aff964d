// Copies of values on the host, and the two lanes that carry them.
//
//   out    copy_out(v)   waited for ──► v.host ──► given back by drop(), when the value has gone for good
//          start_out(v)  beside the kernels, finish_out(v) waits for the rest
//   in     start_in(v, block) ... finish_in(v) gives the block back, filled; cancel_in(v)
//
// A copy that the link fails to make is made by hand: its source is there until then. Each step is said in the table,
// which also keeps the two queues. All under the lock.
#pragma once

#include <memory>

#include "runtime/evict/host_heap.h"
#include "runtime/evict/value.h"

namespace stowage::runtime::evict {

class HostCopies {
 public:
  explicit HostCopies(State& state)
      : state_(state),
        heap_(std::make_shared<HostHeap>(state.options.host_limit_bytes, state.device, !state.on_host(),
                                         state.on_host() ? state.options.homes : nullptr)),
        link_(state.on_host() ? threaded_link(heap_, state.options.link_gbps) : state.device.link(heap_)) {}

  // False when the host store is full. The caller says in the table that the value is swapped.
  bool copy_out(Value& value, const void* data);
  // False when it is not there to be copied, pinned (it may be written to), or the host store is full.
  bool start_out(Value& value);
  void finish_out(Value& value);  // where it fails for good, there is no copy
  void drop(Value& value);
  // The copy of a value that is swapped, as memory of its own; null where it is not a region of a file.
  c10::DataPtr hand_over(Value& value);

  void start_in(Value& value, c10::DataPtr block);
  c10::DataPtr finish_in(Value& value);  // the caller puts the block where it belongs, and says so in the table
  void cancel_in(Value& value);
  // Waited for at once; nanoseconds that took.
  std::int64_t copy_in(const Value& value, void* into);

  [[nodiscard]] bool complete(const Link::Ticket& ticket) { return link_->complete(ticket); }
  [[nodiscard]] HostHeap& heap() const { return *heap_; }

 private:
  // Copies that are waited for at once go by the link, too: on the host only where it is held to a bandwidth.
  [[nodiscard]] bool by_link() const { return state_.options.link_gbps > 0 || !state_.on_host(); }
  Link::Ticket send(const Copy& copy);

  State& state_;
  std::shared_ptr<HostHeap> heap_;
  std::unique_ptr<Link> link_;
  int started_ = 0;    // since the link's tickets began anew
  int under_way_ = 0;  // tickets that are not finished
};

}  // namespace stowage::runtime::evict
