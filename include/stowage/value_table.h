// The one table of an eager budget: where each value is, what it costs, who holds it, and who is told of changes.
//
//   mechanism (runtime/evict)                   table                          policy (src/eager)
//   moves bytes, and says so here  ── notes ──▶ a row for each value ── tells ──▶ Listener: entered, left, released ...
//   where is it, how large?        ◀── reads ──      the clocks      ── reads ──▶ what is it worth, and who may go?
//                                                two queues of copies
//
// A *value* is the content of a storage after one op: immutable, so a host copy of it never goes stale; an in-place op
// makes a new value. Each note is one step of this machine, and the only way to change a row:
//
//            created                  released(drop)
//               │     ┌──────────────────────────────────────────▶ dropped ─┐
//               ▼     │              ◀────────── restored(drop) ────────────┘
//             resident
//               ▲ ▲   │ released(swap)
//   fetch_done  │ │   └─────────────▶ swapped: on the host          died: gone, from anywhere. Its recipe may still be
//               │ └─ restored(swap) ─┤  ▲                           needed by what was made from it, and restored()
//            fetching ◀─fetch_started┘  │                           makes it resident again for that
//               └───── fetch_cancelled ─┘
//
// Not thread-safe: its caller holds a lock. Notes are O(1) but for the length of the two queues; chain_ns() is
// O(ancestors that are not there), cut off after kMostAncestors.
#pragma once

#include <cstdint>
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

struct Row {
  std::int64_t bytes = 0;
  std::int64_t compute_ns = 0;        // of the op that made it; what recomputing it costs when its parents are there
  std::int64_t last_access_tick = 0;  // ticks count ops
  std::int64_t swap_ns = 0;           // measured, out and in together; 0: not swapped so far
  std::vector<ValueId> parents;       // what its recipe reads
  Residence residence = Residence::kResident;
  HostCopy host_copy = HostCopy::kNone;
  bool recomputable = false;
  bool evictable = true;  // false: never (read past the dispatcher, too small, foreign memory)
  bool alive = true;      // false: died(); only recipes of others need it
  bool listed = false;    // a candidate: the policy may pick it
  bool in_use = false;    // the row
  std::int32_t pins = 0;
  std::int32_t soft_pins = 0;  // given up only when nothing else is left
};

struct Counters {
  std::int64_t drops = 0, swap_outs = 0, clean_releases = 0, recomputes = 0, swap_ins = 0;
  std::int64_t dropped_bytes = 0, swapped_out_bytes = 0, swapped_in_bytes = 0, recomputed_bytes = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t early_copies = 0, early_releases = 0, fetches = 0, cancelled_fetches = 0;
  std::int64_t picks = 0, looks = 0;                  // victims asked for, and values looked at to find them
  std::int64_t foreseen_ops = 0, unforeseen_ops = 0;  // of the policy that follows earlier iterations
};

// Is told after the table has changed. A candidate is resident and may be let go: it entered() and has not left().
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void entered(ValueId) {}
  virtual void left(ValueId) {}
  virtual void recipe_changed(ValueId) {}
  virtual void released(ValueId, How) {}  // a fetch that was cancelled, too
  virtual void restored(ValueId) {}       // or a fetch of it has begun
  virtual void waited(ValueId) {}         // the program had to wait for a copy in
  virtual void died(ValueId) {}
  virtual void forgotten(ValueId) {}
};

class ValueTable {
 public:
  explicit ValueTable(const Options& options);
  void tell(Listener& listener) { listeners_.push_back(&listener); }  // in this order; it outlives the last note
  void set_limit(std::int64_t limit_bytes) { options_.limit_bytes = limit_bytes; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] const Row& operator[](ValueId id) const { return rows_[id]; }

  // --- Life.
  // A resident value that the running op made (or that was met first now). Counts as an access.
  ValueId created(std::int64_t bytes, bool evictable = true);
  // It can be made again from `parents` in compute_ns. Parents must stay known until lost_recipe() or forgotten().
  void recipe(ValueId id, std::int64_t compute_ns, std::span<const ValueId> parents);
  void lost_recipe(ValueId id);  // from now on swap only
  // Its storage is gone; the row stays until forgotten(). Meanwhile restored() may make it resident again, for a recipe
  // that needs it, and died() ends that too.
  void died(ValueId id);
  void forgotten(ValueId id);

  // --- Who may go.
  void never_evict(ValueId id) { set_evictable(id, false); }  // its address is known outside
  void may_evict(ValueId id) { set_evictable(id, true); }     // after all
  void pin(ValueId id) { ++rows_[id].pins; }                  // of the running op; nested
  void unpin(ValueId id) { --rows_[id].pins; }
  void soft_pin(ValueId id) { ++rows_[id].soft_pins; }
  void soft_unpin(ValueId id) { --rows_[id].soft_pins; }
  [[nodiscard]] bool free_to_go(ValueId id, bool last_resort) const {  // soft pins count unless `last_resort`
    const Row& row = rows_[id];
    return row.pins == 0 && (last_resort || row.soft_pins == 0);
  }
  [[nodiscard]] bool may_drop(ValueId id) const {
    return rows_[id].recomputable && options_.release != Release::kSwapOnly;
  }
  [[nodiscard]] bool may_swap() const { return options_.release != Release::kDropOnly; }

  // --- Where it is.
  void released(ValueId id, How how);  // kSwap without a host copy stands for a copy that has been made now
  // Resident again, by recomputing or by a copy that was waited for.
  void restored(ValueId id, How how, std::int64_t took_ns);
  void copy_out_started(ValueId id);  // stays resident and evictable
  void copy_out_done(ValueId id);
  void host_copy_lost(ValueId id);                      // the store gave it up
  void fetch_started(ValueId id);                       // its block counts as resident from here on
  void fetch_done(ValueId id, std::int64_t waited_ns);  // the program waited so long for it; 0: it was there in time
  void fetch_cancelled(ValueId id);
  [[nodiscard]] const std::vector<ValueId>& coming_in() const { return coming_in_; }  // in the order of their start
  [[nodiscard]] const std::vector<ValueId>& going_out() const { return going_out_; }
  [[nodiscard]] const std::vector<ValueId>& ghosts() const { return ghosts_; }  // resident for recipes, oldest first

  // --- The clocks: ticks count ops of the program (recomputations are none), nanoseconds pass inside them only.
  void op_begins(std::span<const ValueId> reads);
  void op_ended(std::int64_t compute_ns);
  [[nodiscard]] std::int64_t tick() const { return tick_; }
  [[nodiscard]] std::int64_t now_ns() const { return now_ns_; }

  // --- What it costs. A lane copies one value after the other.
  [[nodiscard]] std::int64_t copy_ns(std::int64_t bytes) const {
    return options_.link_latency_ns + static_cast<std::int64_t>(static_cast<double>(bytes) / bytes_per_ns_);
  }
  [[nodiscard]] std::int64_t out_queue_ns() const { return out_bytes_ == 0 ? 0 : copy_ns(out_bytes_); }
  [[nodiscard]] std::int64_t in_queue_ns() const { return in_bytes_ == 0 ? 0 : copy_ns(in_bytes_); }
  // To recompute it now: its own op and those of its ancestors that are not there, copies in for swapped ones:
  //
  //   d(own 5) ← c gone(own 3) ← b resident                 chain(d) = 5 + 3 + 2
  //                            └ a on the host (copy in 2)
  [[nodiscard]] std::int64_t chain_ns(ValueId id) const;

  // --- Sums.
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  [[nodiscard]] std::size_t in_use() const { return rows_.size() - free_.size(); }  // 0 once all is forgotten
  [[nodiscard]] std::int64_t dropped() const { return dropped_; }                   // values
  [[nodiscard]] std::int64_t resident_bytes() const { return resident_bytes_; }     // fetching ones included
  [[nodiscard]] std::int64_t evictable_bytes() const;  // resident, neither pinned nor kept for good
  [[nodiscard]] std::int64_t covered_bytes() const { return covered_bytes_; }  // candidates with a host copy, or soon
  [[nodiscard]] std::int64_t unlimited_bytes() const { return unlimited_bytes_; }  // resident, were there no limit
  [[nodiscard]] std::int64_t most_unlimited_bytes() const { return most_unlimited_bytes_; }
  Counters counters;

 private:
  void move(ValueId id, Residence to);
  void set_evictable(ValueId id, bool evictable);
  void set_host_copy(ValueId id, HostCopy copy);
  void relist(ValueId id);
  void measured_copy(std::int64_t bytes, std::int64_t took_ns);

  Options options_;
  double bytes_per_ns_;
  std::vector<Listener*> listeners_;
  IdVector<ValueId, Row> rows_;
  std::vector<ValueId> free_;
  std::vector<ValueId> coming_in_, going_out_, ghosts_;
  std::int64_t tick_ = 0, now_ns_ = 0;
  std::int64_t out_bytes_ = 0, in_bytes_ = 0;  // on their way
  std::int64_t dropped_ = 0;
  std::int64_t resident_bytes_ = 0, candidate_bytes_ = 0, covered_bytes_ = 0;
  std::int64_t unlimited_bytes_ = 0, most_unlimited_bytes_ = 0;
  mutable IdVector<ValueId, std::uint32_t> seen_;  // scratch of chain_ns: number of the walk that met the row
  mutable std::uint32_t walk_ = 0;
  mutable std::vector<ValueId> stack_;
};

}  // namespace stowage::eager
