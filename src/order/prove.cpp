#include "order/prove.h"

#include <algorithm>
#include <array>

#include "order/contract.h"
#include "order/decide.h"
#include "order/forced.h"
#include "order/select.h"

namespace stowage {
namespace {

// Weights below this part of the peak; 0: none
constexpr std::array<std::int64_t, 4> kForget = {0, 100'000, 10'000, 1'000};
constexpr int kQuestions = 8;  // about each of these

// Without the weights below `least`.
OrderProblem without_small(const OrderProblem& problem, std::int64_t least) {
  OrderProblem p = problem;
  p.weight.clear();
  p.open_at_start.clear();
  p.open_at_end.clear();
  p.openers = p.closers = Csr{};
  for (std::size_t w = 0; w < problem.weight.size(); ++w) {
    if (problem.weight[w] < least) continue;
    p.weight.push_back(problem.weight[w]);
    p.open_at_start.push_back(problem.open_at_start[w]);
    p.open_at_end.push_back(problem.open_at_end[w]);
    for (auto [from, to] : {std::pair{&problem.openers, &p.openers}, std::pair{&problem.closers, &p.closers}}) {
      to->items.insert(to->items.end(), (*from)[w].begin(), (*from)[w].end());
      to->close_row();
    }
  }
  p.opens = transpose(p.openers, static_cast<std::size_t>(p.ops));
  p.closes = transpose(p.closers, static_cast<std::size_t>(p.ops));
  return p;
}

std::vector<std::int32_t> others(std::int32_t ops, const std::vector<std::int32_t>& taken) {
  std::vector<char> out(ops, 0);
  for (const std::int32_t op : taken) out[op] = 1;
  std::vector<std::int32_t> rest;
  for (std::int32_t op = 0; op < ops; ++op)
    if (!out[op]) rest.push_back(op);
  return rest;
}

// decide() on what forced moves leave; the order of a "yes" is of the whole.
DecisionResult decide_core(const OrderProblem& problem, std::int64_t limit, std::int64_t& work) {
  std::vector<std::int32_t> order = forced_prefix(problem, limit);
  std::vector<char> ran(problem.ops, 0);
  for (const std::int32_t op : order) ran[op] = 1;
  const std::vector<std::int32_t> rest = others(problem.ops, order);
  const OrderProblem after = restricted(problem, rest, ran);
  const std::vector<std::int32_t> late = forced_suffix(after, limit);
  const std::vector<std::int32_t> core = others(after.ops, late);
  work -= 100 * size_of(problem);
  DecisionResult result = decide(restricted(after, core, std::vector<char>(after.ops, 0)), limit, work);
  if (result.decision != Decision::kYes) return result;
  for (const std::int32_t op : result.order) order.push_back(rest[core[op]]);
  for (const std::int32_t op : late) order.push_back(rest[op]);
  result.order = std::move(order);
  return result;
}

// With more precedence, contracted again.
Contracted tightened(const Contracted& small, std::span<const Precedence> edges) {
  if (edges.empty()) return small;
  const auto more = with_precedence(small.problem, edges);
  Contracted again = contracted(more->problem);
  for (auto& group : again.ops) {
    for (std::int32_t& op : group) op = more->ids[op];
    group = small.expanded(group);
  }
  return again;
}

class Prover {
 public:
  Prover(const OrderProblem& problem, Ordering best, std::int64_t bound, std::int64_t& work)
      : problem_(problem), result_{std::move(best), bound}, work_(work) {}

  BoundedOrder run(const std::function<bool()>& should_stop) {
    for (const std::int64_t part : kForget) {
      if (result_.bound >= result_.order.peak || work_ <= 0 || (should_stop && should_stop())) break;
      const std::int64_t least = part == 0 ? 0 : result_.order.peak / part;
      const Contracted small = contracted(least == 0 ? problem_ : without_small(problem_, least));
      work_ -= 500 * size_of(problem_);
      question_all(small, should_stop);
    }
    return std::move(result_);
  }

 private:
  void question_all(const Contracted& small, const std::function<bool()>& should_stop) {
    std::int64_t high = result_.order.peak - 1;  // the least limit not worth asking about again, less one
    const Selection selected = select(small.problem, high, work_);
    if (selected.contradiction) return raise(selected.next_limit);
    const Contracted tight = tightened(small, selected.edges);
    for (int question = 0; question < kQuestions; ++question) {
      if (result_.bound > high || work_ <= 0 || (should_stop && should_stop())) return;
      const std::int64_t limit = question == 0 ? high : result_.bound + (high - result_.bound) / 2;
      if (!ask(tight, limit)) high = limit - 1;
    }
  }

  void raise(std::int64_t bound) { result_.bound = std::max(result_.bound, std::min(bound, result_.order.peak)); }

  // Whether the answer was no. All edges of `tight` hold in orders of a peak below the best known.
  bool ask(const Contracted& tight, std::int64_t limit) {
    std::int64_t share = std::max<std::int64_t>(work_ / 4, 1);
    const std::int64_t given = share;
    const DecisionResult answer = decide_core(tight.problem, limit, share);
    work_ -= given - share;
    if (answer.decision == Decision::kNo) raise(answer.next_limit);
    if (answer.decision == Decision::kYes) offer(tight.expanded(answer.order));
    return answer.decision == Decision::kNo;
  }

  void offer(std::vector<std::int32_t> ops) {
    const std::int64_t bytes = peak(problem_, ops);
    if (bytes < result_.order.peak) result_.order = {std::move(ops), bytes};
  }

  const OrderProblem& problem_;
  BoundedOrder result_;
  std::int64_t& work_;
};

}  // namespace

BoundedOrder prove(const OrderProblem& problem, Ordering best, std::int64_t bound, std::int64_t& work,
                   const std::function<bool()>& should_stop) {
  return Prover(problem, std::move(best), bound, work).run(should_stop);
}

}  // namespace stowage
