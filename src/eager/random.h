// The filter `random`: each candidate alike. The floor that any rule has to beat.
//
//   members   a b c d e      pick: a seeded place, then the next one that is not pinned
//
// O(1) notes, pick O(pinned ones met). A rival in Kirisame et al., "Dynamic tensor rematerialization", ICLR 2021. How:
// by DELTA's director, back by DELTA's prefetch, so that only the choice differs.
#pragma once

#include <vector>

#include "base/random.h"
#include "eager/policy.h"

namespace stowage::eager {

class RandomFilter : public Filter {
 public:
  explicit RandomFilter(ValueTable& table) : table_(table), random_(table.options().seed) {}

  void entered(ValueId id) override {
    if (id.index() >= place_.size()) place_.resize(id.index() + 1, -1);
    place_[id.index()] = static_cast<std::int32_t>(members_.size());
    members_.push_back(id);
  }
  void left(ValueId id) override {
    const std::int32_t place = place_[id.index()];
    members_[static_cast<std::size_t>(place)] = members_.back();
    place_[members_.back().index()] = place;
    members_.pop_back();
  }
  std::optional<ValueId> pick(bool last_resort) override {
    const std::size_t n = members_.size();
    const std::size_t start = n == 0 ? 0 : random_.next() % n;
    for (std::size_t i = 0; i < n; ++i) {
      const ValueId id = members_[(start + i) % n];
      ++table_.counters.looks;
      if (table_.free_to_go(id, last_resort)) return id;
    }
    return std::nullopt;
  }

 private:
  ValueTable& table_;
  Random random_;
  std::vector<ValueId> members_;
  std::vector<std::int32_t> place_;  // by row
};

}  // namespace stowage::eager
