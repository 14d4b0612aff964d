// The values of a program and their recipes: who needs whom, and what happens to a value from its first meeting to its
// end.
//
//   meet ──► resident ──► let go / brought back ──► its storage dies or is written to
//                                                     │ has a recipe: a ghost; gone when nobody reads it
//                                                     │ none, and something dropped needs it: its bytes are kept, or go to the host
//                                                     └ none: what was made from it has no recipe any more
//
// graph.cpp: the questions that need more than one value. lives.cpp: beginning and changing. deaths.cpp: ending, also
// in threads that hold no lock. All under the lock, but for the three that a dying storage calls, which take it.
#pragma once

#include <condition_variable>
#include <mutex>

#include "runtime/evict/awake.h"
#include "runtime/evict/host_copies.h"
#include "runtime/evict/undo_log.h"
#include "runtime/evict/value.h"

namespace stowage::runtime::evict {

class Graph {
 public:
  Graph(State& state, HostCopies& copies, UndoLog& undo, Awake& awake)
      : state_(state), copies_(copies), undo_(undo), awake_(awake) {}
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // --- Who needs whom.
  // Some value that is dropped, or waits to be made again, cannot be without this one's bytes.
  [[nodiscard]] bool needed(const Value& value) const;
  // Its bytes are lost: nothing can be made from it any more.
  void forget_readers(Value& value);
  // The value is the recipe's result at `position`; making it took so long.
  void give_recipe(Value& value, const Ref<Recipe>& recipe, std::int32_t position, std::int64_t took_ns);
  // Its recipe cannot be used any more.
  void lose_recipe(Value& value);

  // --- Beginning and changing.
  // Null for memory that is foreign, or none. `made` by `origin`, or met there.
  Value* meet(const at::Tensor& tensor, const OpTraits* origin, bool made);
  // Takes the value off its storage, whose content is about to change; its bytes are still there. Throws before
  // anything has changed. `recipe_follows`: of the op that changes it, which reads what was there.
  void take_off(Value& value, bool recipe_follows = false);
  // Somebody has the address, may write through it, and may keep it: what the storage held so far is a value of the
  // past, and what it holds from now on never leaves and is nobody's operand for a recipe.
  void known_outside(c10::StorageImpl* storage);
  // The evicted storage holds, instead of `now`, what lies on the host at `host`.
  void hold_on_host(c10::StorageImpl& storage, Value& now, void* host);

  // --- Ending.
  // What the storage's value has on the host becomes the storage's memory, and the value ends. Left as it is where that
  // cannot be.
  void leave_at_home(Value& value);
  // True: the block stays, without a storage of the program's.
  bool block_dies(void* data) noexcept;
  void evicted_storage_dies(Value* mark) noexcept;
  void value_dies(Value& value);  // in its destructor: releases what it holds elsewhere
  // An evicted storage that nobody has any more is taken apart by its last owner without a lock, and nothing may be put
  // into it. Its value parts from it now; the context keeps its reference until the owner's thread has its turn.
  void bury_if_dead(Value& value);
  // Every value ends here, or all but those that are known outside. Storages keep their blocks; one whose content is
  // lost stays without, and says so when it is read.
  void release_all(bool known_outside_too);
  // Until the threads of all storages that were found dead have said so.
  void wait_for_burials(std::unique_lock<StateLock>& lock);
  void after_fork();

  std::int64_t recipes = 0;  // alive

 private:
  bool needed(const Value& value, std::vector<const Value*>& seen) const;
  void note_row(Value& value, std::int64_t bytes, bool evictable);
  Ref<Value> successor(const Value& past, c10::StorageImpl* storage);
  bool must_be_kept(Value& value);
  void give_up(Value& value);
  void storage_died(Value& value);
  void part(Value& value);

  State& state_;
  HostCopies& copies_;
  UndoLog& undo_;
  Awake& awake_;
  std::condition_variable_any told_;
  int untold_ = 0;  // storages found dead whose threads have yet to say so
};

}  // namespace stowage::runtime::evict
