#include "order/search.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "graph/ordered_graph.h"
#include "order/bound.h"
#include "order/greedy.h"
#include "order/pinch.h"
#include "order/reuse_branch.h"
#include "order/solve.h"

namespace stowage {
namespace {

constexpr std::size_t kRootCuts = 64;
constexpr std::size_t kPlainCuts = 16;
constexpr std::int64_t kClose = 64;     // a limit this part of the bound above it is close
constexpr int kRepairs = 12;            // of a strained division
constexpr std::int64_t kVariants = 30;  // percent of the work, for other orders of the same peak

bool same_extra(const OrderProblem& a, const OrderProblem& b) { return a.extra == b.extra; }

// What an order really takes.
using Judge = std::function<std::int64_t(std::span<const std::int32_t>)>;

// The orders found, best peak first found first.
class Candidates {
 public:
  Candidates(const OrderProblem& problem, Judge judge)
      : problem_(problem), reversed_(reversed(problem)), judge_(std::move(judge)) {
    std::vector<std::int32_t> program(problem.ops);
    std::iota(program.begin(), program.end(), 0);
    add(std::move(program));
  }

  void add(std::vector<std::int32_t> ops) {
    const std::int64_t bytes = judge_(ops);
    if (!found_.empty() && bytes > peak_) return;
    if (found_.empty() || bytes < peak_) found_.clear();
    peak_ = bytes;
    if (std::find(found_.begin(), found_.end(), ops) == found_.end()) found_.push_back(std::move(ops));
  }

  void add_greedy(std::int64_t limit) {
    for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise}) {
      add(greedy(problem_, rule, limit).ops);
      add(turned(greedy(reversed_, rule, limit).ops));
    }
  }

  // The best order with every forced move as early, and as late, as it goes: its peak stays.
  void add_variants() {
    const std::vector<std::int32_t> best = found_[0];
    const OrderProblem here = restricted(problem_, best, std::vector<char>(problem_.ops, 0));
    for (const bool late : {false, true}) {
      std::vector<std::int32_t> ops = greedy(late ? reversed(here) : here, GreedyRule::kProgramOrder, peak_).ops;
      if (late) ops = turned(std::move(ops));
      for (std::int32_t& op : ops) op = best[op];
      add(std::move(ops));
    }
  }

  void add_pinch(const Contracted& small, std::int64_t limit, std::int64_t& work) {
    for (const DivisionRule rule :
         {DivisionRule{CutSide::kSmallest, kRepairs}, DivisionRule{CutSide::kLargest, kRepairs}})
      if (work > 0) add(small.expanded(pinch(small.problem, limit, rule, work).order.ops));
  }

  [[nodiscard]] std::int64_t least() const { return peak_; }
  [[nodiscard]] const std::vector<std::vector<std::int32_t>>& orders() const { return found_; }

 private:
  // An order of the reversed problem as one of the problem.
  [[nodiscard]] std::vector<std::int32_t> turned(std::vector<std::int32_t> ops) const {
    std::reverse(ops.begin(), ops.end());
    for (std::int32_t& op : ops) op = problem_.ops - 1 - op;
    return ops;
  }

  const OrderProblem& problem_;
  OrderProblem reversed_;
  Judge judge_;
  std::vector<std::vector<std::int32_t>> found_;
  std::int64_t peak_ = 0;
};

// By must-live bytes and minimum cuts at the heaviest ops.
std::int64_t bound_of(const OrderProblem& problem, std::size_t cuts, std::int64_t work) {
  return cut_bound(problem, critical_ops(problem, work), cuts, std::numeric_limits<std::int64_t>::max(), work);
}

// What the orders of plans take: with in-place reuse or without.
struct Question {
  const OrderModel& model;
  bool in_place_reuse;

  [[nodiscard]] const OrderProblem& problem() const { return in_place_reuse ? model.certain : model.plain; }

  // Only where savings depend on the order it has to be asked what they are in it.
  [[nodiscard]] Judge judge() const {
    if (!in_place_reuse || same_extra(model.certain, model.relaxed))
      return [&problem = problem()](std::span<const std::int32_t> order) { return peak(problem, order); };
    return [&graph = model.graph](std::span<const std::int32_t> order) {
      const OrderedGraph ordered(graph, {order.begin(), order.end()});
      return peak_bytes(ordered, ordered.reuse);
    };
  }
};

// From a bound that no known order meets. Cheap looks at both problems first, then constructions, then the rest of the
// work.
class Search {
 public:
  Search(const OrderModel& model, const OrderProblem& problem, Candidates& candidates, const OrderOptions& options)
      : model_(model),
        problem_(problem),
        candidates_(candidates),
        options_(options),
        work_(options.work),
        same_(same_extra(problem, model.relaxed)) {}

  // A bound on all orders.
  std::int64_t run(std::int64_t bound) {
    if (!same_) own_ = contracted(problem_);
    Solver plans(same_ ? model_.small : own_, peak(problem_, best()), bound),
        relaxed(model_.small, peak(model_.relaxed, best()), bound);
    for (Solver* solver : {&plans, &relaxed}) {
      if (solver == &relaxed && same_) continue;
      solver->cut(work_);
      for (const Turn turn : kLook) take(*solver, turn);
    }
    const auto met = [&] { return candidates_.least() <= (same_ ? plans : relaxed).bound(); };
    if (!met()) pinch_down(same_ ? plans : relaxed, 1);
    plans.know(peak(problem_, best()));
    if (!met()) take(plans, kSearch);
    if (!met()) pinch_down(same_ ? plans : relaxed, kLimits);
    plans.know(peak(problem_, best()));
    if (same_) return plans.bound();
    relaxed.know(peak(model_.relaxed, best()));
    if (!met()) take(relaxed, kSearchBound);
    if (met() || !options_.in_place_reuse) return relaxed.bound();
    return branch(relaxed.bound());
  }

  [[nodiscard]] std::int64_t used() const { return options_.work - work_; }

 private:
  static constexpr std::array kLook = {Turn{1, 1}, Turn{5, 3}};  // percent of the work
  static constexpr Turn kSearch{45, 10}, kSearchBound{8, 4};
  static constexpr int kLimits = 8;
  static constexpr std::int64_t kPinch = 55, kBranch = 10;

  [[nodiscard]] const std::vector<std::int32_t>& best() const { return candidates_.orders()[0]; }
  [[nodiscard]] std::int64_t share(std::int64_t percent) const {
    return std::clamp<std::int64_t>(work_, 0, options_.work / 100 * percent);
  }

  void take(Solver& solver, Turn percent) {
    const std::int64_t before = solver.peak();
    solver.turn({share(percent.projection), share(percent.decisions)}, work_, options_.should_stop);
    if (solver.peak() < before) candidates_.add(solver.order());
  }

  // Orders built around minimum cuts, first under a limit close above the bound: a loose one guides less. A limit that
  // is kept to is lowered half the way to what has failed, another is raised half the way to the best order.
  void pinch_down(const Solver& relaxed, int limits) {
    std::int64_t given = share(kPinch), low = relaxed.bound();
    const std::int64_t all = given;
    for (std::int64_t high = candidates_.least();
         limits > 0 && given > 0 && low < high - 1 && relaxed.bound() < candidates_.least(); --limits) {
      const std::int64_t limit = low + std::min((high - low) / 2, relaxed.bound() / kClose);
      bool kept = false;
      const std::array rules = {DivisionRule{CutSide::kLargest, kRepairs},
                                DivisionRule{CutSide::kSmallest, limits == 1 ? 0 : kRepairs}};
      for (const DivisionRule& rule : rules) {
        if (kept || given <= 0) break;
        std::vector<std::int32_t> ops =
            model_.small.expanded(pinch(model_.small.problem, limit, rule, given).order.ops);
        candidates_.add(std::move(ops));
        kept = candidates_.least() <= limit;
      }
      high = std::min(high, candidates_.least());
      if (!kept) low = limit;
    }
    work_ -= all - given;
  }

  std::int64_t branch(std::int64_t bound) {
    const SolveOrder solve_node = [&](const OrderProblem& problem, Ordering from, std::int64_t proven,
                                      std::int64_t work) {
      return solve(contracted(problem), std::move(from), proven, {work, options_.should_stop});
    };
    BoundedOrder result = branch_on_reuse(model_, {best(), candidates_.least()}, bound, share(kBranch), solve_node);
    work_ -= share(kBranch);
    candidates_.add(std::move(result.order.ops));
    return result.bound;
  }

  const OrderModel& model_;
  const OrderProblem& problem_;  // of the plans, pessimistic
  Candidates& candidates_;
  const OrderOptions& options_;
  std::int64_t work_;
  bool same_;
  Contracted own_;  // of the problem of the plans, where it is another one than that of the bound
};

}  // namespace

OrderResult find_order(const OrderModel& model, const OrderOptions& options) {
  const Question question{model, options.in_place_reuse};
  Candidates candidates(question.problem(), question.judge());
  OrderResult result;
  result.bound_bytes = std::max(bound_of(model.small.problem, 0, options.work), model.graph.returned_bytes);
  candidates.add_greedy(result.bound_bytes);
  if (candidates.least() > result.bound_bytes) {
    Search search(model, question.problem(), candidates, options);
    result.bound_bytes = search.run(result.bound_bytes);
    result.work = search.used();
  }
  if (candidates.orders().size() < 2) {  // others of the same peak, for the layout to choose from
    candidates.add_variants();
    candidates.add_greedy(candidates.least());
    const std::int64_t given = options.work / 100 * kVariants;
    std::int64_t left = given;
    candidates.add_pinch(model.small, candidates.least(), left);
    result.work += given - left;
  }
  result.peak_bytes = candidates.least();
  for (const auto& order : candidates.orders()) result.orders.push_back(as_ops(order));
  return result;
}

std::int64_t root_bound(const OrderModel& model, std::int64_t work) {
  return std::max(bound_of(model.small.problem, kRootCuts, work), model.graph.returned_bytes);
}

std::int64_t plain_bound(const OrderModel& model) {
  return bound_of(model.plain, kPlainCuts, std::numeric_limits<std::int64_t>::max());
}

}  // namespace stowage
