// What the parts of a budget share: the table of values, the limit, the locks, and what the statistics count.
//
//   restoring     one thread brings back at a time; kernels run under it
//     lock        the table, the graph, blocks, all below; no kernel and no Python under it (state_lock.h)
//
// Whoever takes both takes them in this order. What is atomic is read without a lock.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/evict/now.h"
#include "runtime/evict/state_lock.h"
#include "runtime/evict/timeline.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/device.h"
#include "runtime/memory/homes.h"
#include "runtime/memory/owners.h"
#include "stowage/eager.h"
#include "stowage/ids.h"
#include "stowage/value_table.h"

namespace stowage::runtime::evict {

using stowage::eager::How;
using stowage::eager::Release;
using stowage::eager::Residence;
using stowage::eager::ValueId;

struct Running;
struct Value;

struct BudgetOptions {
  c10::Device where = kHost;  // whose bytes are limited
  std::int64_t limit_bytes = 0;
  std::string policy = "default";
  Release release = Release::kBoth;
  double link_gbps = 0;  // 0: as fast as memory is
  bool prefetch = true;
  bool poison = false;           // fill memory that is let go, so that a stale read shows
  bool replay_generator = true;  // false: only for tests that must fail
  std::int64_t host_limit_bytes = 0;
  std::uint64_t seed = 0;
  owners::Lines lines;  // of the user's code, for messages; none: they name operators alone
  // Of the host's own values, what leaves waits in regions of this file; none: in memory
  std::shared_ptr<Homes> homes;
  // The limit is kept as far as what runs lets it be, and passed where it does not
  bool soft = false;
};

struct BudgetStats {
  std::int64_t peak_bytes = 0;
  std::int64_t ops = 0;
  std::int64_t drops = 0, swaps_out = 0, swaps_in = 0, recomputed_ops = 0, snapshots = 0, lost_recipes = 0,
               split_ops = 0;
  std::int64_t swapped_bytes = 0;  // moved to the host
  std::int64_t swapped_in_bytes = 0;
  std::int64_t recompute_ns = 0;
  std::int64_t stall_ns = 0;  // the program waited for copies
  std::int64_t evict_ns = 0;  // choosing and letting go, copies that were waited for included
  std::int64_t out_of_memory = 0;
  std::int64_t short_bytes = 0;  // the most that was missing then
  std::int64_t deepest_recompute = 0;
  std::int64_t notes_lost = 0;  // ops whose results are unknown, as there was no memory for notes
};

struct State {
  explicit State(const BudgetOptions& of_budget)
      : options(of_budget), device(device_at(of_budget.where)), table(table_options(of_budget)) {}

  [[nodiscard]] bool on_host() const { return options.where.is_cpu(); }
  [[nodiscard]] std::int64_t live_bytes() const { return runtime::live_bytes(options.where); }
  [[nodiscard]] std::int64_t peak_bytes() const { return runtime::peak_bytes(options.where); }
  void reset_peak() const { runtime::reset_peak(options.where); }
  // Of the allocator.
  void set_limit(std::int64_t bytes) const { runtime::set_limit(bytes, options.where); }
  [[nodiscard]] c10::DataPtr block_of(std::int64_t bytes) const {
    return device.allocator().allocate(static_cast<std::size_t>(bytes));
  }
  [[nodiscard]] bool at_home() const { return std::this_thread::get_id() == home; }
  [[nodiscard]] Value& at(ValueId id) const { return *by_row[id]; }
  void record(Event::Kind kind, std::int64_t bytes, const OpTraits* op) {
    timeline.add({now_ns() - entered_ns, kind, bytes, op});
  }

  BudgetOptions options;
  Device& device;
  std::unique_ptr<Device::Stream> home_stream;  // that was current when the budget was entered
  mutable StateLock lock;
  mutable RestoringLock restoring{lock};
  stowage::eager::ValueTable table;
  stowage::eager::Keeper keeper{table};
  IdVector<ValueId, Value*> by_row;
  std::vector<Value*> values;  // all, small ones too
  Running* running = nullptr;  // the ops under way
  BudgetStats stats;
  Timeline timeline;
  std::int64_t limit_bytes = std::numeric_limits<std::int64_t>::max();  // as it holds now: none before and after
  std::int64_t entered_ns = 0;
  std::thread::id home;  // that entered
  std::atomic<bool> active{false};

 private:
  static stowage::eager::Options table_options(const BudgetOptions& options) {
    stowage::eager::Options of_table;
    of_table.policy = options.policy;
    of_table.release = options.release;
    of_table.prefetch = options.prefetch;
    of_table.limit_bytes = options.limit_bytes;
    of_table.seed = options.seed;
    if (options.link_gbps > 0) of_table.link_bytes_per_ns = options.link_gbps;
    return of_table;
  }
};

}  // namespace stowage::runtime::evict
