#include "order/branch.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <queue>

#include "order/bound.h"
#include "order/min_cut.h"
#include "order/must_live.h"
#include "order/pinch.h"

namespace stowage {
namespace {

constexpr int kCutsPerNode = 24;
constexpr std::array kRules = {DivisionRule{CutSide::kSmallest, 12}, DivisionRule{CutSide::kSmallest, 0},
                               DivisionRule{CutSide::kLargest, 12}};

struct Node {
  std::int64_t bound = 0;
  std::int64_t serial = 0;  // older first among equals
  std::vector<Precedence> edges;
  bool operator<(const Node& other) const {  // the queue's top is the largest
    return bound != other.bound ? bound > other.bound : serial > other.serial;
  }
};

class Brancher {
 public:
  Brancher(const OrderProblem& problem, Ordering start, std::int64_t& work) : problem_(problem), work_(work) {
    best_ = std::move(start);
  }

  BranchResult run(std::int64_t bound, const std::function<bool()>& should_stop) {
    open_.push({bound, 0, {}});
    while (!open_.empty() && open_.top().bound < best_.peak) {
      bound = std::max(bound, open_.top().bound);
      if (work_ <= 0 || (should_stop && should_stop())) return {std::move(best_), bound};
      const Node node = open_.top();
      open_.pop();
      expand(node);
    }
    bound = best_.peak;
    return {std::move(best_), bound};
  }

 private:
  void expand(const Node& node) {
    const auto here = with_precedence(problem_, node.edges);
    const std::optional<Conflict> conflict = try_pinch(*here, node.bound);
    if (!conflict) return;                                               // an order meets the node's bound
    if (conflict->op < 0) return push(node.bound, node.edges), give_up();  // work ran out within pinch()
    const Cut wish = min_cut(here->problem, conflict->op, CutSide::kSmallest, work_);
    if (wish.before.empty()) return push(node.bound, node.edges), give_up();
    const std::int32_t x = other_side(here->problem, *conflict, wish.before);
    if (x < 0) return push(std::max(wish.step_bytes, node.bound + 1), node.edges);
    const std::int32_t a = here->ids[conflict->op], b = here->ids[x];
    for (const Precedence edge : {Precedence{a, b}, Precedence{b, a}}) {
      std::vector<Precedence> edges = node.edges;
      edges.push_back(edge);
      push(std::max(node.bound, node_bound(edges)), std::move(edges));
    }
  }

  // Improves the best order. Nothing when an order meets the bound; else the conflict of the best try.
  std::optional<Conflict> try_pinch(const Renumbered& here, std::int64_t bound) {
    Conflict conflict;
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const DivisionRule rule : kRules) {
      PinchResult found = pinch(here.problem, bound, rule, work_);
      if (found.order.peak < best_.peak) {
        best_.peak = found.order.peak;
        best_.ops.clear();
        for (const std::int32_t op : found.order.ops) best_.ops.push_back(here.ids[op]);
      }
      if (found.order.peak <= bound) return std::nullopt;
      if (found.conflict.op < 0 || (conflict.op >= 0 && found.order.peak >= least)) continue;
      conflict = std::move(found.conflict);
      least = found.order.peak;
    }
    return conflict;
  }

  void give_up() { work_ = std::min<std::int64_t>(work_, 0); }

  void push(std::int64_t bound, std::vector<Precedence> edges) {
    if (bound < best_.peak) open_.push({bound, ++serial_, std::move(edges)});
  }

  // The heaviest op that was put on one side of the conflict's op while its best state has it on the other.
  std::int32_t other_side(const OrderProblem& here, const Conflict& conflict, const std::vector<char>& wish) {
    const std::vector<std::int64_t> live = must_live(here);
    work_ -= sweep_work(here, here.ops);
    std::int32_t x = -1;
    for (std::int32_t op = 0; op < here.ops; ++op) {
      const bool misplaced = (conflict.ran[op] && !wish[op]) || (conflict.later[op] && wish[op]);
      if (misplaced && op != conflict.op && (x < 0 || live[op] > live[x])) x = op;
    }
    return x;
  }

  std::int64_t node_bound(const std::vector<Precedence>& edges) {
    const auto child = with_precedence(problem_, edges);
    if (!child) return std::numeric_limits<std::int64_t>::max();  // the edges close a cycle: no order
    return cut_bound(child->problem, critical_ops(child->problem, work_), kCutsPerNode, best_.peak, work_);
  }

  const OrderProblem& problem_;
  std::int64_t& work_;
  Ordering best_;
  std::int64_t serial_ = 0;
  std::priority_queue<Node> open_;
};

}  // namespace

BranchResult branch(const OrderProblem& problem, Ordering start, std::int64_t bound, std::int64_t& work,
                    const std::function<bool()>& should_stop) {
  return Brancher(problem, std::move(start), work).run(bound, should_stop);
}

}  // namespace stowage
