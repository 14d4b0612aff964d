#include "order/reuse_branch.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>

#include "graph/ordered_graph.h"
#include "order/greedy.h"

namespace stowage {
namespace {

constexpr std::int64_t kShares = 8;        // nodes that may use up their share of the work
constexpr std::int64_t kNodeWork = 3'000;  // per op, edge and use of a node that is solved at once

// Does `read` die at `op`?
struct DeathQuestion {
  std::int32_t op = 0;
  BufferId read;
  auto operator<=>(const DeathQuestion&) const = default;
};

struct Answer {
  DeathQuestion question;
  bool dies = false;
};

struct Node {
  std::int64_t bound = 0;
  std::int64_t serial = 0;
  std::vector<Answer> answers;
  bool operator<(const Node& other) const {  // the queue's top is the largest
    return bound != other.bound ? bound > other.bound : serial < other.serial;
  }
};

class ReuseBrancher {
 public:
  ReuseBrancher(const OrderModel& model, Ordering best, std::int64_t work, const SolveOrder& solve)
      : model_(model), best_(std::move(best)), work_(work), share_(work / kShares), solve_(solve) {}

  BoundedOrder run(std::int64_t bound) {
    open_.push({bound, 0, {}});
    std::int64_t unsolved = std::numeric_limits<std::int64_t>::max();  // least bound of the nodes given up
    while (!open_.empty() && std::min(open_.top().bound, unsolved) < best_.peak) {
      if (work_ <= 0 || open_.top().bound > unsolved) break;
      const Node node = open_.top();
      open_.pop();
      if (const auto left = expand(node)) unsolved = std::min(unsolved, *left);
    }
    if (!open_.empty()) unsolved = std::min(unsolved, open_.top().bound);
    bound = std::max(bound, std::min(unsolved, best_.peak));
    return {std::move(best_), bound};
  }

 private:
  // The bound of a node that is neither solved nor divided.
  std::optional<std::int64_t> expand(const Node& node) {
    const std::vector<CandidatePair> pairs = answered(node.answers);
    const auto here = with_precedence(relaxed_problem(model_.graph, model_.plain, pairs), edges(node.answers));
    if (!here) return std::nullopt;  // the answers contradict the precedence or each other
    BoundedOrder found =
        solve_(here->problem, greedy(here->problem, GreedyRule::kProgramOrder, node.bound), node.bound, share_);
    work_ -= found.bound < found.order.peak ? share_ : kNodeWork * size_of(here->problem);
    for (std::int32_t& op : found.order.ops) op = here->ids[op];
    const std::vector<std::int64_t> bytes = judged(found.order.ops);
    if (found.bound >= best_.peak) return std::nullopt;
    const std::optional<DeathQuestion> question = doubt(found.order, bytes, pairs);
    if (!question) return found.bound;
    for (const bool dies : {false, true}) {
      Node child{found.bound, ++serial_, node.answers};
      child.answers.push_back({*question, dies});
      open_.push(std::move(child));
    }
    return std::nullopt;
  }

  // What each step of the order takes. Keeps the order if it is the best so far.
  std::vector<std::int64_t> judged(const std::vector<std::int32_t>& order) {
    const OrderedGraph ordered(model_.graph, as_ops(order));
    std::vector<std::int64_t> bytes = step_bytes(ordered, ordered.reuse);
    const std::int64_t peak = *std::max_element(bytes.begin(), bytes.end());
    if (peak < best_.peak) best_ = {order, peak};
    return bytes;
  }

  // Of the open pairs whose r does not die in the order: the one at the largest step, if that is above what the node's
  // problem says.
  [[nodiscard]] std::optional<DeathQuestion> doubt(const Ordering& order, const std::vector<std::int64_t>& bytes,
                                                   const std::vector<CandidatePair>& pairs) const {
    std::vector<std::int32_t> position(order.ops.size());
    for (std::size_t i = 0; i < position.size(); ++i) position[order.ops[i]] = static_cast<std::int32_t>(i);
    const auto dies = [&](const CandidatePair& p) {
      const auto users = model_.graph.uses.users[p.pair.read];
      return std::all_of(users.begin(), users.end(), [&](std::int32_t u) { return position[u] <= position[p.op]; });
    };
    const CandidatePair* worst = nullptr;
    for (const CandidatePair& p : pairs) {
      const std::int64_t least = worst == nullptr ? order.peak : bytes[position[worst->op]];
      if (p.death == Death::kOpen && bytes[position[p.op]] > least && !dies(p)) worst = &p;
    }
    return worst == nullptr ? std::nullopt : std::optional(DeathQuestion{worst->op, worst->pair.read});
  }

  // The pairs as the answers leave them. An r that dies at one op dies at no other.
  [[nodiscard]] std::vector<CandidatePair> answered(const std::vector<Answer>& answers) const {
    std::vector<CandidatePair> pairs = model_.pairs;
    for (const Answer& answer : answers)
      for (CandidatePair& p : pairs) {
        if (p.pair.read != answer.question.read) continue;
        if (p.op == answer.question.op)
          p.death = answer.dies ? Death::kSure : Death::kNever;
        else if (answer.dies)
          p.death = Death::kNever;
      }
    std::erase_if(pairs, [](const CandidatePair& p) { return p.death == Death::kNever; });
    return pairs;
  }

  [[nodiscard]] std::vector<Precedence> edges(const std::vector<Answer>& answers) const {
    std::vector<Precedence> more;
    for (const Answer& answer : answers) {
      if (!answer.dies) continue;
      for (const std::int32_t u : model_.graph.uses.users[answer.question.read])
        if (u != answer.question.op) more.push_back({u, answer.question.op});
    }
    return more;
  }

  const OrderModel& model_;
  Ordering best_;
  std::int64_t work_, share_;
  const SolveOrder& solve_;
  std::int64_t serial_ = 0;
  std::priority_queue<Node> open_;
};

}  // namespace

BoundedOrder branch_on_reuse(const OrderModel& model, Ordering best, std::int64_t bound, std::int64_t work,
                             const SolveOrder& solve) {
  return ReuseBrancher(model, std::move(best), work, solve).run(bound);
}

}  // namespace stowage
