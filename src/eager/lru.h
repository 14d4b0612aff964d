// The filter `lru`: let go of the candidate that has not been used for longest.
//
//   oldest ◀─ · ◀─ · ◀─ · ◀─ newest        one list; an access moves to the end
//
// O(1) notes, pick O(pinned older ones). A rival in Kirisame et al., "Dynamic tensor rematerialization", ICLR 2021.
// How: by DELTA's director, back by DELTA's prefetch, so that only the choice differs.
#pragma once

#include "eager/policy.h"
#include "eager/staleness_index.h"

namespace stowage::eager {

class LruFilter : public Filter {
 public:
  explicit LruFilter(ValueTable& table) : index_(table) {}
  void entered(ValueId id) override { index_.insert(id, 1); }
  void left(ValueId id) override { index_.erase(id); }
  void accessed(ValueId id) override { index_.touch(id); }
  std::optional<ValueId> pick(bool last_resort) override { return index_.best(last_resort); }

 private:
  StalenessIndex index_;
};

}  // namespace stowage::eager
