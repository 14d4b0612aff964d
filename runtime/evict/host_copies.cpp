#include "runtime/evict/host_copies.h"

#include <utility>

namespace stowage::runtime::evict {

// An accelerator's link keeps an event for each ticket: now and then, while no copy is under way, they begin anew.
Link::Ticket HostCopies::send(const Copy& copy) {
  constexpr int kMostTickets = 256;
  if (++started_ > kMostTickets && !state_.on_host() && under_way_ == 0) {
    link_->abandon();
    started_ = 1;
  }
  return link_->start(copy);
}

bool HostCopies::copy_out(Value& value, const void* data) {
  finish_out(value);
  if (value.host != nullptr) return true;
  const std::int64_t bytes = value.bytes();
  void* host = heap_->take(bytes);
  if (host == nullptr) return false;
  const std::int64_t start = now_ns();
  std::string failure = "not over the link";
  if (by_link()) {
    try {
      failure = link_->finish(send({Copy::Direction::kOut, const_cast<void*>(data), HostHeap::offset(host), bytes}));
    } catch (const std::exception&) {  // then by hand
    }
    state_.stats.stall_ns += now_ns() - start;
  }
  if (!failure.empty() && !heap_->fill(host, data, bytes)) {
    heap_->give_back(host, bytes);
    return false;
  }
  value.host = host;
  state_.stats.swapped_bytes += bytes;
  return true;
}

bool HostCopies::start_out(Value& value) {
  if (value.host != nullptr || !value.resident() || value.holder() == nullptr || value.pins() > 0) return false;
  const std::int64_t bytes = value.bytes();
  void* host = heap_->take(bytes);
  if (host == nullptr) return false;
  void* data = value.holder()->_mutable_data_ptr_no_checks().get();
  if (data == nullptr) {  // it is dying in another thread
    heap_->give_back(host, bytes);
    return false;
  }
  try {
    state_.table.copy_out_started(value.id);
    value.going_out = send({Copy::Direction::kOut, data, HostHeap::offset(host), bytes});
    ++under_way_;
  } catch (...) {
    state_.table.host_copy_lost(value.id);
    heap_->give_back(host, bytes);
    throw;
  }
  value.host = host;
  state_.stats.swapped_bytes += bytes;
  return true;
}

void HostCopies::finish_out(Value& value) {
  if (!value.going_out) return;
  const std::int64_t start = now_ns();
  const std::string failure = link_->finish(*std::exchange(value.going_out, std::nullopt));
  --under_way_;
  const bool lost = !failure.empty() && value.holder() != nullptr &&
                    !heap_->fill(value.host, value.holder()->_mutable_data_ptr_no_checks().get(), value.bytes());
  state_.stats.stall_ns += now_ns() - start;
  state_.table.copy_out_done(value.id);
  if (!lost) return;
  heap_->give_back(std::exchange(value.host, nullptr), value.bytes());
  state_.table.host_copy_lost(value.id);
}

void HostCopies::drop(Value& value) {
  finish_out(value);
  if (value.host == nullptr) return;
  heap_->give_back(std::exchange(value.host, nullptr), value.bytes());
  state_.table.host_copy_lost(value.id);
}

c10::DataPtr HostCopies::hand_over(Value& value) {
  finish_out(value);
  c10::DataPtr memory = heap_->hand_over(value.host, value.bytes());
  if (memory) value.host = nullptr;
  return memory;
}

void HostCopies::start_in(Value& value, c10::DataPtr block) {
  const std::int64_t bytes = value.bytes();
  if (state_.options.poison) state_.device.fill(block.get(), 0xCD, bytes);
  state_.table.fetch_started(value.id);
  try {
    value.coming_in = send({Copy::Direction::kIn, block.get(), HostHeap::offset(value.host), bytes});
    ++under_way_;
  } catch (...) {
    state_.table.fetch_cancelled(value.id);
    throw;
  }
  value.incoming = std::move(block);
  state_.record(Event::Kind::kFetch, bytes, value.origin);
}

c10::DataPtr HostCopies::finish_in(Value& value) {
  const std::string failure = link_->finish(*std::exchange(value.coming_in, std::nullopt));
  --under_way_;
  c10::DataPtr block = std::exchange(value.incoming, c10::DataPtr());
  if (!failure.empty()) heap_->copy_out_of(value.host, block.get(), value.bytes());
  return block;
}

void HostCopies::cancel_in(Value& value) {
  link_->finish(*std::exchange(value.coming_in, std::nullopt));
  --under_way_;
  const c10::DataPtr unused = std::exchange(value.incoming, c10::DataPtr());
  state_.table.fetch_cancelled(value.id);
}

std::int64_t HostCopies::copy_in(const Value& value, void* into) {
  const std::int64_t bytes = value.bytes();
  const std::int64_t start = now_ns();
  std::string failure = "not over the link";
  if (by_link()) {
    failure = link_->finish(send({Copy::Direction::kIn, into, HostHeap::offset(value.host), bytes}));
  }
  if (!failure.empty()) heap_->copy_out_of(value.host, into, bytes);
  return now_ns() - start;
}

}  // namespace stowage::runtime::evict
