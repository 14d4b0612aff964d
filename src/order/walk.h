// A walk through the states of an OrderProblem: run a ready op, take the last one back.
//
//   ∅ ──run(a)──▶ {a} ──run(b)──▶ {a,b} ──undo()──▶ {a}
//
// For each op it keeps what running it now would open and close, so that looking at a move costs O(1) and making one
// costs the op's degree. Ops whose figures or readiness a move changed are told to the caller, who keeps them in
// whatever order it likes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "order/problem.h"

namespace stowage {

class Walk {
 public:
  explicit Walk(const OrderProblem& problem);

  [[nodiscard]] bool done(std::int32_t op) const { return done_[op] != 0; }
  [[nodiscard]] bool ready(std::int32_t op) const { return waiting_[op] == 0 && !done_[op]; }
  [[nodiscard]] std::int64_t live() const { return live_; }
  [[nodiscard]] const std::vector<std::int32_t>& order() const { return order_; }

  // What a ready op would take and leave if it ran now.
  // Its step above live()
  [[nodiscard]] std::int64_t rise(std::int32_t op) const { return up_[op] + problem_->extra[op]; }
  // Its change of live()
  [[nodiscard]] std::int64_t delta(std::int32_t op) const { return up_[op] - down_[op]; }

  // Runs a ready op. Returns the ops that became ready or whose figures changed; valid until the next call. May name an
  // op twice.
  std::span<const std::int32_t> run(std::int32_t op);
  void undo();  // takes the latest run back

 private:
  void open(std::int32_t weight, std::int32_t by);
  void close(std::int32_t weight, std::int32_t by);
  void unopen(std::int32_t weight, std::int32_t by);
  void unclose(std::int32_t weight, std::int32_t by);

  const OrderProblem* problem_;
  std::int64_t live_ = 0;
  std::vector<std::int32_t> waiting_;  // per op: preds not yet run
  std::vector<char> done_;
  std::vector<std::int64_t> up_, down_;  // per op
  // Per weight: openers run (plus one if open at the start), closers to run (plus one
  std::vector<std::int32_t> opened_, left_;
  // if open at the end)
  // Per weight: the closers to run, xor-ed: the last one when only one is left
  std::vector<std::int32_t> last_closer_;
  std::vector<std::int32_t> order_, touched_;
};

}  // namespace stowage
