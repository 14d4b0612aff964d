// An op under way: it holds the lock but while its kernel runs, and what it uses is not let go meanwhile.
//
//   values      that it reads or writes. Told to the table as pins only when a victim is looked for, since most ops
//               never meet the limit
//   written     storages whose content changes; another thread's op may write to the same: that content has no recipe
//   moved_on    storages that another thread's op has written to, while this one reads what they held
#pragma once

#include <mutex>

#include "runtime/evict/value.h"

namespace stowage::runtime::evict {

// A tensor that the op under way writes to.
struct Written {
  at::Tensor tensor;
  StoragePtr storage;  // as it was before
  std::int32_t operand = 0;
  std::int16_t in_place_depth = 0;
  bool contended = false;
};

using WrittenTensors = c10::SmallVector<Written, 2>;

struct Running {
  Running(State& state, const OpTraits& op);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  [[nodiscard]] bool uses(const Value& value) const;

  State& state;
  std::unique_lock<StateLock> lock;
  const OpTraits* op = nullptr;
  Values values;
  WrittenTensors written;
  c10::SmallVector<StoragePtr, 1> moved_on;
  Ref<Recipe> recipe;
  bool ready = false;   // all are there
  bool pinned = false;  // in the table
  Running* next = nullptr;
};

// In the table. Pins are nested.
void pin(State& state, const Values& values);
void unpin(State& state, const Values& values);
// What all ops under way use.
void pin_running(State& state);

}  // namespace stowage::runtime::evict
