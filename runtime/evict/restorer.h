// Bringing back: copies from the host store, and recomputation through recipes, before anything reads.
//
//   v dropped ── recipe: op(a, b) ──► bring a, b (recursively) ──► run op ──► its block becomes v's
//
// Operands are brought one after the other, and while one is being made the others may have to go again: they are
// pinned softly (given up last), and for good once all are there together. Recomputing a chain of n dropped values
// takes n runs when its intermediates fit; when memory is so short that they do not, work multiplies, and is cut off at
// kMostRuns for one access.
//
// Takes `restoring`, then `lock` for each look: what a value was under one lock it need not be under the next, since
// other threads take notes meanwhile, start fetches of it, or let go of it again.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "runtime/evict/ahead.h"
#include "runtime/evict/recompute.h"

namespace stowage::runtime::evict {

// What holds meanwhile: the limit; or, where nothing may be left away, as little more as is enough.
enum class AllBack : std::uint8_t { kHolds, kWidens };

class Restorer {
 public:
  Restorer(State& state, HostCopies& copies, Graph& graph, Room& room, Ahead& ahead)
      : state_(state),
        copies_(copies),
        graph_(graph),
        room_(room),
        ahead_(ahead),
        recompute_(state, copies, graph, room, *this) {}

  // On return all are there and pinned; the caller unpins. `depth`: of recipes that wait for them.
  void bring(const Values& values, int depth);
  // All of it: the budget sleeps, or ends. Returns "" or what could not be brought back, after all the rest is back.
  std::string bring_all_back(AllBack limit);
  // Where not all fits within the limit: those of these storages that are large lie in the host's file from now on, which
  // is mapped as their memory. What cannot stays as it is.
  void leave_at_home(const std::unordered_set<const c10::StorageImpl*>& which);
  // Of all that is away, with what only Python objects have: the GIL may have to be waited for, so no lock is held
  // meanwhile.
  std::vector<StoragePtr> hold_storages_away();

 private:
  void soft_pin(const Values& values, bool on);
  void start_fetches(const Values& values);
  bool pin_if_all_there(const Values& values);
  void bring_one_by_one(const Values& values, int depth);
  std::int64_t bytes_to_fetch(const Value& value) const;
  std::string bring_each(Values& away, Values& back);
  void restore(Value& value, int depth);
  bool restore_once(Value& value, int depth);
  bool fetch_back(Value& value, std::int64_t bytes);

  State& state_;
  HostCopies& copies_;
  Graph& graph_;
  Room& room_;
  Ahead& ahead_;
  Recompute recompute_;
};

}  // namespace stowage::runtime::evict
