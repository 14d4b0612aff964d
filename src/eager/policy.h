// What the Keeper asks of a policy, and the three parts that most are made of.
//
//   Filter     which value goes           told by the table of what enters, leaves, comes and goes; pick()
//   Director   how: drop or swap          choose()
//   Prefetch   what comes back ahead      next()
#pragma once

#include <memory>
#include <optional>

#include "eager/access_history.h"
#include "stowage/eager.h"
#include "stowage/value_table.h"

namespace stowage::eager {

class Filter : public Listener {
 public:
  virtual void accessed(ValueId) {}  // candidates only
  // Only soft-pinned values are left when `last_resort`.
  virtual std::optional<ValueId> pick(bool last_resort) = 0;
};

class Director {
 public:
  virtual ~Director() = default;
  virtual How choose(ValueId value) = 0;  // both are possible
};

class Prefetch {
 public:
  virtual ~Prefetch() = default;
  virtual void swapped(ValueId) = 0;
  virtual void back(ValueId) = 0;  // or gone
  virtual std::optional<ValueId> next(std::int64_t room_bytes) = 0;
};

class Policy : public Filter {
 public:
  virtual How choose(ValueId value) = 0;
  virtual Advice advise(std::int64_t room_bytes) = 0;
};

// Makes the policy of options.policy; throws Error, naming the known ones, when there is none. `history` outlives it.
std::unique_ptr<Policy> make_policy(ValueTable& table, AccessHistory& history);

}  // namespace stowage::eager
