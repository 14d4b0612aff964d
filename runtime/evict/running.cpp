#include "runtime/evict/running.h"

#include <algorithm>
#include <utility>

#include "runtime/evict/block.h"

namespace stowage::runtime::evict {

Running::Running(State& of_budget, const OpTraits& running)
    : state(of_budget), lock(of_budget.lock), op(&running), next(of_budget.running) {
  state.running = this;
}

// However the op ends: its notes are let go of under the lock, as all that touches values.
Running::~Running() {
  if (!lock.owns_lock()) lock.lock();
  Running** link = &state.running;
  while (*link != nullptr && *link != this) link = &(*link)->next;
  if (*link == this) *link = next;  // a child made by fork() has forgotten it
  if (pinned) unpin(state, values);
  values.clear();
  recipe = {};
  for (Written& w : written) {
    state.lock.let_go_after(std::move(w.tensor));
    state.lock.let_go_after(std::move(w.storage));
  }
  for (StoragePtr& storage : moved_on) state.lock.let_go_after(std::move(storage));
}

bool Running::uses(const Value& value) const {
  return std::any_of(values.begin(), values.end(), [&](const Ref<Value>& used) { return used.get() == &value; });
}

void pin(State& state, const Values& values) {
  for (const Ref<Value>& value : values) {
    if (!value->small()) state.table.pin(value->id);
  }
}

void unpin(State& state, const Values& values) {
  for (const Ref<Value>& value : values) {
    if (!value->small()) state.table.unpin(value->id);
  }
}

void pin_running(State& state) {
  for (Running* running = state.running; running != nullptr; running = running->next) {
    if (!running->ready) continue;
    if (!running->pinned) pin(state, running->values);
    running->pinned = true;
    const auto pin_new = [&](const StoragePtr& storage) {  // what another thread has met or made there meanwhile
      const Ref<Value> now(value_in(storage.get()));
      if (!now || running->uses(*now)) return;
      running->values.push_back(now);
      pin(state, {now});
    };
    for (const Written& written : running->written) pin_new(written.storage);
    for (const StoragePtr& storage : running->moved_on) pin_new(storage);
  }
}

}  // namespace stowage::runtime::evict
