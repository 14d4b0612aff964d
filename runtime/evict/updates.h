// An optimizer step that does not fit is taken back: half of the parameters updated would be neither the old model nor
// the new one.
//
//   step begins ── p.mul_ ── m.lerp_ ── p.addcdiv_ ── ... ── out of memory      every first write to a storage has left a copy of
//        ▲                                                     │                what was there on the host; all are written back
//        └─────────────────────────────────────────────────────┘
//
// The copies cost as much as the state is large, so they are made only while it is unknown whether the step fits: the
// first one of each optimizer, and later ones that begin with more bytes that cannot leave than those that went
// through; not where half of the limit is free.
#pragma once

#include <unordered_map>

#include "runtime/evict/sleep.h"

namespace stowage::runtime::evict {

class Updates {
 public:
  Updates(State& state, Awake& awake, UndoLog& undo, Graph& graph, Sleep& sleep)
      : state_(state), awake_(awake), undo_(undo), graph_(graph), sleep_(sleep) {}

  // Around an optimizer's step, by its thread. They may be nested.
  void begin(std::uint64_t optimizer);
  void end(std::uint64_t optimizer);
  void enters();  // the block begins

  // Under the lock. An op runs: is it one of a step whose writes are saved?
  bool undoing();
  void save(const at::Tensor& tensor) { undo_.save(tensor); }
  // An op of it has not fitted: nothing of the step has happened.
  void roll_back();

 private:
  void forget();

  State& state_;
  Awake& awake_;
  UndoLog& undo_;
  Graph& graph_;
  Sleep& sleep_;
  int under_way_ = 0;
  bool undoing_ = false;
  std::uint64_t optimizer_ = 0;
  std::int64_t fixed_bytes_ = 0;                                  // that could not leave when the update began
  std::unordered_map<std::uint64_t, std::int64_t> went_through_;  // by optimizer: the most of them so far
};

// What a backward pass makes is used at once, or is a parameter's gradient; and what it was made from dies meanwhile,
// so that making it again would mean to run most of the step again. It is swapped or stays. (A backward pass that is
// itself recorded makes activations; and so does a checkpoint's forward inside one.)
bool worth_remembering();

}  // namespace stowage::runtime::evict
