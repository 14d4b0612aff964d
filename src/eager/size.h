// The filter `size`: let go of the largest candidate; of equal ones, the one that entered the table first.
//
//   ████████████████ this one     ███████     ███
//
// O(log n) notes, pick O(pinned larger ones). A rival in Kirisame et al., "Dynamic tensor rematerialization", ICLR
// 2021. How: by DELTA's director, back by DELTA's prefetch, so that only the choice differs.
#pragma once

#include <functional>
#include <set>
#include <utility>

#include "eager/policy.h"

namespace stowage::eager {

class SizeFilter : public Filter {
 public:
  explicit SizeFilter(ValueTable& table) : table_(table) {}
  void entered(ValueId id) override { by_bytes_.emplace(-table_[id].bytes, id.value); }
  void left(ValueId id) override { by_bytes_.erase({-table_[id].bytes, id.value}); }
  std::optional<ValueId> pick(bool last_resort) override {
    for (const auto& [minus_bytes, row] : by_bytes_) {
      ++table_.counters.looks;
      if (table_.free_to_go(ValueId(row), last_resort)) return ValueId(row);
    }
    return std::nullopt;
  }

 private:
  ValueTable& table_;
  std::set<std::pair<std::int64_t, std::int32_t>> by_bytes_;
};

}  // namespace stowage::eager
