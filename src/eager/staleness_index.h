// The value with the largest weight x staleness, without looking at all of them.
//
// Statement: each member has a weight w > 0 and the tick t of its last access; find the largest w * (now - t + 1). All
// members age, so no heap keeps them in order: the order changes as time goes by. Members are grouped in classes of
// nearly equal weight, and each class is a list in order of last access.
//
//   class [8, 9.5)    oldest ─▶ · ─▶ · ─▶ newest        bound of a class = its upper weight x the staleness of its oldest
//   class [2, 2.4)    oldest ─▶ ·                       classes are opened by falling bound; within one, the list is followed while
//   class [1, 1.2)    oldest ─▶ · ─▶ ·                  upper weight x staleness can still win: the answer is exact
//
// erase, touch, and insert of the newest O(1); best O(classes + what is looked at), usually tens of each for 10,000
// members.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stowage/value_table.h"

namespace stowage::eager {

class StalenessIndex {
 public:
  explicit StalenessIndex(ValueTable& table) : table_(table) {}

  void insert(ValueId id, double weight);
  void erase(ValueId id);                   // nothing when it is not a member
  void touch(ValueId id);                   // it was accessed: the newest of its class
  void reweigh(ValueId id, double weight);  // keeps its place in time
  [[nodiscard]] bool holds(ValueId id) const { return id.index() < nodes_.size() && nodes_[id.index()].list >= 0; }
  [[nodiscard]] double weight(ValueId id) const { return nodes_[id.index()].weight; }

  // Members below `least_bytes` and pinned ones are passed over.
  [[nodiscard]] std::optional<ValueId> best(bool last_resort, std::int64_t least_bytes = 0);

  [[nodiscard]] double score(ValueId id) const;

 private:
  struct Node {
    std::int32_t before = -1, after = -1, list = -1;
    double weight = 0;
  };
  struct List {
    std::int32_t oldest = -1, newest = -1;
    double upper = 0;  // no member weighs more; exact where all weigh the same
  };

  std::int32_t list_of(double weight);
  void link_in_time(ValueId id, std::int32_t list);
  void link_before(std::int32_t row, std::int32_t list, std::int32_t after);  // -1: as the newest

  ValueTable& table_;
  std::vector<Node> nodes_;
  std::vector<List> lists_;                              // by class
  std::vector<std::pair<double, std::int32_t>> bounds_;  // scratch
};

}  // namespace stowage::eager
