// What an eager memory budget lets go, how, and what it brings back when. Knows bytes, times and the order of accesses;
// no tensors.
//
//     runtime (hook, allocator, copies)                     Keeper (here)
//     op_begins, op_ended, created, died      ── notes ──▶  table of values, one Policy
//     allocate() would pass the limit         ── victim() ▶ {value, drop | swap}, until it fits
//     after an op                             ── advise() ▶ copy out early | release | fetch | nothing
//
// A *value* is the content of a storage after one op: immutable, so a host copy of it never goes stale; an in-place op
// makes a new value. Its bytes are resident, being fetched, on the host only (swapped), nowhere but recomputable
// (dropped), or gone: the storage died, but the recipe may still be needed by what was made from it. The Keeper is not
// thread-safe: its caller holds a lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "stowage/ids.h"

namespace stowage::eager {

using ValueId = Id<struct ValueTag>;  // row of the table; used again after forgotten()

enum class Residence : std::uint8_t { kResident, kFetching, kSwapped, kDropped, kGone };
enum class HostCopy : std::uint8_t { kNone, kOnItsWay, kClean };
enum class How : std::uint8_t { kDrop, kSwap };
enum class Release : std::uint8_t { kBoth, kDropOnly, kSwapOnly };

struct Value {
  std::int64_t bytes = 0;
  std::int64_t compute_ns = 0;        // of the op that made it; what recomputing it costs when its parents are there
  std::int64_t last_access_tick = 0;  // ticks count ops
  std::int64_t swap_ns = 0;           // measured, out and in together; 0: not swapped so far
  std::vector<ValueId> parents;       // what its recipe reads
  Residence residence = Residence::kResident;
  HostCopy host_copy = HostCopy::kNone;
  bool recomputable = false;
  bool evictable = true;  // false: never (read past the dispatcher, too small, foreign memory)
  bool alive = true;      // the program holds its storage; false: only recipes of others need it
  bool listed = false;    // the policy may pick it
  bool in_use = false;    // the row
  std::int32_t pins = 0;
  std::int32_t soft_pins = 0;  // given up only when nothing else is left
};

struct Options {
  std::string policy = "default";  // policy_names()
  Release release = Release::kBoth;
  bool prefetch = true;
  double link_bytes_per_ns = 12;  // each direction; the first guess, until copies have been measured
  std::int64_t link_latency_ns = 10'000;
  std::int64_t limit_bytes = 0;  // of resident bytes; 0: none
  std::uint64_t seed = 0;        // of the policy `random`
  int most_fetches = 5;          // in flight
};

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

struct Counters {
  std::int64_t drops = 0, swap_outs = 0, clean_releases = 0, recomputes = 0, swap_ins = 0;
  std::int64_t dropped_bytes = 0, swapped_out_bytes = 0, swapped_in_bytes = 0, recomputed_bytes = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t early_copies = 0, early_releases = 0, fetches = 0, cancelled_fetches = 0;
  std::int64_t picks = 0, looks = 0;                  // victims asked for, and values looked at to find them
  std::int64_t foreseen_ops = 0, unforeseen_ops = 0;  // of the policy that follows earlier iterations
};

class AccessHistory;
class Policy;
class ValueTable;

class Keeper {
 public:
  explicit Keeper(const Options& options);  // throws Error for a policy that there is not
  void set_limit(std::int64_t limit_bytes);
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  // --- Values. O(1) notes, but for the parents' count and the logarithm of an index.
  // A resident value that the running op made (or that was met first now). Counts as an access.
  ValueId created(std::int64_t bytes, bool evictable = true);
  // It can be made again from `parents` in compute_ns. Parents must stay known until lost_recipe() or forgotten().
  void recipe(ValueId value, std::int64_t compute_ns, std::span<const ValueId> parents);
  void lost_recipe(ValueId value);  // from now on swap only
  void never_evict(ValueId value);  // its address is known outside
  void may_evict(ValueId value);    // after all
  void pin(ValueId value);          // of the running op; nested
  void unpin(ValueId value);
  void soft_pin(ValueId value);
  void soft_unpin(ValueId value);
  // Its storage is gone; the row stays until forgotten(). Meanwhile restored() may make it resident again, for a recipe
  // that needs it, and died() ends that too.
  void died(ValueId value);
  void forgotten(ValueId value);

  // --- Ops of the program, in order (recomputations are none). `signature`: of operator, types and numbers of
  // dimensions, but not of sizes, so that a step of another length still looks alike. Reads: in the order of the
  // arguments, the same value perhaps twice.
  void op_begins(std::uint64_t signature, std::span<const ValueId> reads);
  // With what it made, in the order of its results; compute_ns without restoring and waiting.
  void op_ended(std::int64_t compute_ns, std::span<const ValueId> made);

  // --- Releasing. victim() changes nothing: the runtime does it and says so by released(). nullopt: what is
  // left is pinned, cannot be, or is being fetched: fetches may be cancelled.
  // How is kSwap whenever a host copy is there or on its way (then wait for it: its source is being read).
  std::optional<Victim> victim();
  void released(ValueId value, How how);  // kSwap without a clean copy stands for a copy that has been made now
  // Resident again, by recomputing or by a copy that was waited for
  void restored(ValueId value, How how, std::int64_t took_ns);
  void host_copy_lost(ValueId value);  // the store gave it up

  // --- Beside the kernels. To be asked after each op, until kNone; room_bytes: limit - resident - reserved.
  Advice advise(std::int64_t room_bytes);
  void copy_out_started(ValueId value);  // stays resident and evictable
  void copy_out_done(ValueId value);
  void fetch_started(ValueId value);                       // its block counts as resident from here on
  void fetch_done(ValueId value, std::int64_t waited_ns);  // the program waited so long for it; 0: it was there in time
  void fetch_cancelled(ValueId value);

  // --- To look at.
  [[nodiscard]] const Value& operator[](ValueId value) const;
  [[nodiscard]] std::int64_t tick() const;
  [[nodiscard]] const Counters& counters() const;
  // To recompute it now: its own op and those of its ancestors that are not there, copies in for swapped ones.
  [[nodiscard]] std::int64_t chain_ns(ValueId value) const;
  [[nodiscard]] std::int64_t resident_bytes() const;   // of known values, fetching ones included
  [[nodiscard]] std::int64_t evictable_bytes() const;  // resident, neither pinned nor kept for good
  [[nodiscard]] std::size_t values() const;            // rows in use: 0 once all is forgotten

 private:
  void relist(ValueId value);
  void note_host_copy(Value& row, HostCopy copy);
  Value& row(ValueId value);

  std::unique_ptr<ValueTable> table_;
  std::unique_ptr<AccessHistory> history_;
  std::unique_ptr<Policy> policy_;
};

// "default", "delta", "dtr", "capuchin", "lru", "size", "random".
std::span<const char* const> policy_names();

}  // namespace stowage::eager
