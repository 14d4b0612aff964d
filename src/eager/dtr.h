// DTR: let go of what is cheap to recompute together with its neighbours that are gone, large, and unused for long.
//
// Statement: the least h(v) = (c(v) + sum of c over the evicted neighbourhood of v) / (m s), for compute time c, m
// bytes and staleness s.
//
//        a ──▶ b̶ ──▶ v ──▶ d̶ ──▶ e̶          b, d, e are dropped: recomputing v needs b, and d and e will need v
//              └──────┬─────┴────┘           sets {b} and {d, e} hang on v:   h(v) = (c_v + c_b + c_d + c_e) / (m s)
//
// The neighbourhood is the paper's e*: dropped values that are parents or children of each other are joined in
// union-find sets with the sum of their costs, and v pays for the sets of its dropped parents and children. Restoring
// takes a value's cost from its set, which stays joined (union-find cannot split): the approximation of the paper. Dead
// values whose recipe is still needed count as dropped.
//
// Notes O(parents + children); pick O(distinct classes of bytes / cost + looks), and a value's weight is brought up to
// date when it is picked or a direct neighbour changes.
// Kirisame et al., "Dynamic tensor rematerialization", ICLR 2021 (h_DTR^eq). Differs: the published prototype samples
// sqrt(n) candidates and skips values below 1 % of the mean; here all are in an index. What cannot be recomputed is
// swapped (DTR: never let go), with twice the copy time as its cost; what can be is dropped.
#pragma once

#include <algorithm>
#include <vector>

#include "eager/policy.h"
#include "eager/staleness_index.h"

namespace stowage::eager {

class DtrFilter : public Filter {
 public:
  explicit DtrFilter(ValueTable& table) : table_(table), index_(table) {}

  void entered(ValueId id) override { index_.insert(id, weight(id)); }
  void left(ValueId id) override { index_.erase(id); }
  void accessed(ValueId id) override { index_.touch(id); }
  void recipe_changed(ValueId id) override;
  void released(ValueId id, How how) override;
  void restored(ValueId id) override;
  void died(ValueId id) override;
  void forgotten(ValueId id) override;
  std::optional<ValueId> pick(bool last_resort) override;

  // Cost of the value with its evicted neighbourhood. For tests too.
  [[nodiscard]] double cost_ns(ValueId id);

 private:
  static constexpr int kMostRetries = 16;
  struct Links {
    std::vector<ValueId> parents, children;
    std::int32_t set = -1;  // -1: not dropped
    double cost_in_set = 0;
  };

  double weight(ValueId id) { return static_cast<double>(table_[id].bytes) / std::max(cost_ns(id), 1.0); }
  Links& links(ValueId id);
  std::int32_t root(std::int32_t set);
  void drop(ValueId id);
  void undrop(ValueId id);
  void unlink(ValueId id);
  void reweigh_neighbours(ValueId id);
  void renumber();

  ValueTable& table_;
  StalenessIndex index_;
  IdVector<ValueId, Links> links_;
  std::vector<std::int32_t> above_;  // union-find
  std::vector<double> sum_;          // of a root
  std::vector<std::int32_t> met_;    // scratch
};

class DtrDirector : public Director {
 public:
  How choose(ValueId) override { return How::kDrop; }
};

}  // namespace stowage::eager
