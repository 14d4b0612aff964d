// What the Keeper asks of a policy, and the three parts that most are made of.
//
//   Filter     which value goes           notes of what enters, leaves and is accessed; pick()
//   Director   how: drop or swap          choose()
//   Prefetch   what comes back ahead      next()
//
// A candidate is a value that is resident and may be let go: it entered() and has not left(). Notes come after the
// table has changed.
#pragma once

#include <memory>
#include <optional>

#include "eager/access_history.h"
#include "eager/value_table.h"

namespace stowage::eager {

class Filter {
 public:
  virtual ~Filter() = default;
  virtual void entered(ValueId) = 0;  // it is a candidate now
  virtual void left(ValueId) = 0;     // it is none any more
  virtual void accessed(ValueId) {}   // candidates only
  virtual void recipe_changed(ValueId) {}
  virtual void released(ValueId, How) {}
  virtual void restored(ValueId) {}
  virtual void died(ValueId) {}
  virtual void forgotten(ValueId) {}
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
  virtual void waited(ValueId) {}  // the program had to wait for a copy in
};

// Makes the policy of options.policy; throws Error, naming the known ones, when there is none. `history` outlives it.
std::unique_ptr<Policy> make_policy(ValueTable& table, AccessHistory& history);

}  // namespace stowage::eager
