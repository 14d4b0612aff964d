// The ready ops of a walk, kept in the two orders in which searches ask for them.
#pragma once

#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "order/walk.h"

namespace stowage {

class Frontier {
 public:
  Frontier(const OrderProblem& problem, const Walk& walk) : walk_(&walk), key_(problem.ops) {
    for (std::int32_t op = 0; op < problem.ops; ++op) update(op);
  }

  void update(std::span<const std::int32_t> ops) {
    for (const std::int32_t op : ops) update(op);
  }

  // Call after `op` ran, was undone, or changed its figures.
  void update(std::int32_t op) {
    erase(op);
    if (!walk_->ready(op)) return;
    key_[op] = Key{walk_->rise(op), walk_->delta(op)};
    if (key_[op]->delta <= 0)
      falling_.insert({key_[op]->rise, op});
    else
      rising_.insert({key_[op]->delta, key_[op]->rise, op});
  }

  // Ops that do not raise live bytes, by (rise, op).
  [[nodiscard]] const std::set<std::pair<std::int64_t, std::int32_t>>& falling() const { return falling_; }
  // Ops that do, by (delta, rise, op).
  [[nodiscard]] const std::set<std::tuple<std::int64_t, std::int64_t, std::int32_t>>& rising() const { return rising_; }

  // The forced move under `limit`, if there is one.
  [[nodiscard]] std::optional<std::int32_t> forced(std::int64_t limit) const {
    if (falling_.empty() || walk_->live() + falling_.begin()->first > limit) return std::nullopt;
    return falling_.begin()->second;
  }

 private:
  struct Key {
    std::int64_t rise, delta;
  };
  void erase(std::int32_t op) {
    if (!key_[op]) return;
    if (key_[op]->delta <= 0)
      falling_.erase({key_[op]->rise, op});
    else
      rising_.erase({key_[op]->delta, key_[op]->rise, op});
    key_[op].reset();
  }

  const Walk* walk_;
  std::vector<std::optional<Key>> key_;
  std::set<std::pair<std::int64_t, std::int32_t>> falling_;
  std::set<std::tuple<std::int64_t, std::int64_t, std::int32_t>> rising_;
};

}  // namespace stowage
