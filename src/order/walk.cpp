#include "order/walk.h"

namespace stowage {

Walk::Walk(const OrderProblem& problem)
    : problem_(&problem),
      live_(problem.base),
      waiting_(problem.ops),
      done_(problem.ops, 0),
      up_(problem.ops, 0),
      down_(problem.ops, 0),
      opened_(problem.weight.size()),
      left_(problem.weight.size()),
      last_closer_(problem.weight.size(), 0) {
  for (std::int32_t op = 0; op < problem.ops; ++op) waiting_[op] = static_cast<std::int32_t>(problem.preds[op].size());
  for (std::size_t w = 0; w < problem.weight.size(); ++w) {
    opened_[w] = problem.open_at_start[w];
    left_[w] = static_cast<std::int32_t>(problem.closers[w].size()) + problem.open_at_end[w];
    for (const std::int32_t op : problem.closers[w]) last_closer_[w] ^= op;
    if (opened_[w] != 0) live_ += problem.weight[w];
    if (opened_[w] == 0)
      for (const std::int32_t op : problem.openers[w]) up_[op] += problem.weight[w];
    if (left_[w] == 1 && !problem.open_at_end[w]) down_[last_closer_[w]] += problem.weight[w];
  }
  order_.reserve(problem.ops);
}

std::span<const std::int32_t> Walk::run(std::int32_t op) {
  touched_.clear();
  done_[op] = 1;
  order_.push_back(op);
  for (const std::int32_t w : problem_->opens[op]) open(w, op);
  for (const std::int32_t w : problem_->closes[op]) close(w, op);
  for (const std::int32_t s : problem_->succs[op])
    if (--waiting_[s] == 0) touched_.push_back(s);
  return touched_;
}

void Walk::undo() {
  const std::int32_t op = order_.back();
  order_.pop_back();
  for (const std::int32_t s : problem_->succs[op]) ++waiting_[s];
  for (const std::int32_t w : problem_->closes[op]) unclose(w, op);
  for (const std::int32_t w : problem_->opens[op]) unopen(w, op);
  done_[op] = 0;
}

void Walk::open(std::int32_t weight, std::int32_t by) {
  if (opened_[weight]++ != 0) return;
  live_ += problem_->weight[weight];
  for (const std::int32_t op : problem_->openers[weight])
    if (op != by) {
      up_[op] -= problem_->weight[weight];
      touched_.push_back(op);
    }
}

void Walk::unopen(std::int32_t weight, std::int32_t by) {
  if (--opened_[weight] != 0) return;
  live_ -= problem_->weight[weight];
  for (const std::int32_t op : problem_->openers[weight])
    if (op != by) up_[op] += problem_->weight[weight];
}

void Walk::close(std::int32_t weight, std::int32_t by) {
  last_closer_[weight] ^= by;
  if (--left_[weight] == 0) live_ -= problem_->weight[weight];
  if (left_[weight] != 1 || problem_->open_at_end[weight]) return;
  down_[last_closer_[weight]] += problem_->weight[weight];
  touched_.push_back(last_closer_[weight]);
}

void Walk::unclose(std::int32_t weight, std::int32_t by) {
  if (left_[weight] == 1 && !problem_->open_at_end[weight]) down_[last_closer_[weight]] -= problem_->weight[weight];
  if (left_[weight]++ == 0) live_ += problem_->weight[weight];
  last_closer_[weight] ^= by;
}

}  // namespace stowage
