// What an eager memory budget lets go, how, and what it brings back when. Knows bytes, times and the order of accesses;
// no tensors.
//
//     mechanism (hook, allocator, copies)                   Keeper (here)
//     op_begins, op_ended                     ── notes ──▶  history of accesses, one Policy over the table of values
//     allocate() would pass the limit         ── victim() ▶ {value, drop | swap}, until it fits
//     after an op                             ── advise() ▶ copy out early | release | fetch | nothing
//
// Neither changes the table: the mechanism does what is named, and says so there (value_table.h), whereof the policy is
// told. The Keeper is not thread-safe: its caller holds a lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "stowage/value_table.h"

namespace stowage::eager {

struct Victim {
  ValueId value;
  How how = How::kSwap;
};

struct Advice {
  enum class Kind : std::uint8_t { kNone, kCopyOut, kRelease, kFetch };
  Kind kind = Kind::kNone;
  ValueId value;
  How how = How::kSwap;  // of kRelease
};

class AccessHistory;
class Policy;

class Keeper {
 public:
  explicit Keeper(ValueTable& table);  // of its options; throws Error for a policy that there is not
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // --- Ops of the program, in order (recomputations are none). `signature`: of operator, types and numbers of
  // dimensions, but not of sizes, so that a step of another length still looks alike. Reads: in the order of the
  // arguments, the same value perhaps twice.
  void op_begins(std::uint64_t signature, std::span<const ValueId> reads);
  // With what it made, in the order of its results; compute_ns without restoring and waiting.
  void op_ended(std::int64_t compute_ns, std::span<const ValueId> made);

  // --- Releasing. nullopt: what is left is pinned, cannot be, or is being fetched: fetches may be cancelled.
  // How is kSwap whenever a host copy is there or on its way (then wait for it: its source is being read).
  std::optional<Victim> victim();

  // --- Beside the kernels. To be asked after each op, until kNone; room_bytes: limit - resident - reserved.
  Advice advise(std::int64_t room_bytes);

 private:
  ValueTable& table_;
  std::unique_ptr<AccessHistory> history_;
  std::unique_ptr<Policy> policy_;
};

// "default", "delta", "dtr", "capuchin", "lru", "size", "random".
std::span<const char* const> policy_names();

}  // namespace stowage::eager
