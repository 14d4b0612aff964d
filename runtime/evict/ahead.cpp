#include "runtime/evict/ahead.h"

#include "runtime/evict/block.h"
#include "runtime/evict/running.h"

namespace stowage::runtime::evict {

void Ahead::follow_advice() {
  pin_running(state_);  // what other threads' ops use is not let go
  poll();
  using Kind = stowage::eager::Advice::Kind;
  for (int asked = 0; asked < kMostAdvice; ++asked) {
    const stowage::eager::Advice advice = state_.keeper.advise(state_.limit_bytes - state_.live_bytes());
    if (advice.kind == Kind::kNone) return;
    Value& value = state_.at(advice.value);
    if (advice.kind == Kind::kFetch && !start_fetch(value)) return;
    if (advice.kind == Kind::kCopyOut && !copies_.start_out(value)) return;
    if (advice.kind == Kind::kRelease && (!value.resident() || value.pins() > 0 || !room_.let_go(value, advice.how)))
      return;
  }
}

// Copies that are complete by now are taken note of.
void Ahead::poll() {
  const stowage::eager::ValueTable& table = state_.table;
  for (std::size_t i = 0; i < table.coming_in().size();) {
    Value& value = state_.at(table.coming_in()[i]);
    copies_.complete(*value.coming_in) ? finish(value, false) : static_cast<void>(++i);
  }
  for (std::size_t i = 0; i < table.going_out().size();) {
    Value& value = state_.at(table.going_out()[i]);
    copies_.complete(*value.going_out) ? copies_.finish_out(value) : static_cast<void>(++i);
  }
}

// False when it does not fit now.
bool Ahead::start_fetch(Value& value) {
  graph_.bury_if_dead(value);
  if (value.residence() != Residence::kSwapped || value.host == nullptr || value.at_hand() ||
      value.bytes() > state_.limit_bytes - state_.live_bytes())
    return false;
  copies_.start_in(value, state_.block_of(value.bytes()));
  return true;
}

void Ahead::finish(Value& value, bool waited_for) {
  graph_.bury_if_dead(value);
  if (value.residence() != Residence::kFetching) return;
  const std::int64_t start = now_ns();
  c10::DataPtr block = copies_.finish_in(value);
  const std::int64_t took_ns = now_ns() - start;
  const std::int64_t waited_ns = waited_for ? took_ns : 0;
  state_.stats.stall_ns += waited_ns;
  bool there = false;
  try {
    there = put(value, block);
  } catch (...) {
    state_.table.fetch_cancelled(value.id);
    throw;
  }
  if (!there) return state_.table.fetch_cancelled(value.id);
  ++state_.stats.swaps_in;
  state_.stats.swapped_in_bytes += value.bytes();
  state_.table.fetch_done(value.id, waited_ns);
}

void Ahead::finish_all() {
  const stowage::eager::ValueTable& table = state_.table;
  while (!table.coming_in().empty()) finish(state_.at(table.coming_in().back()), false);
  while (!table.going_out().empty()) copies_.finish_out(state_.at(table.going_out().back()));
}

}  // namespace stowage::runtime::evict
