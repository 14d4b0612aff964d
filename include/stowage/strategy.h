// Strategy choice: one strategy per node, so that node and edge costs sum to the least while bytes stay under a limit
// at all times.
//
//   node 0 ── edge ── node 1        cost  = c0[s0] + c1[s1] + e01[s0, s1] + ...
//    c0[s]    e01[s,t]  c1[t]       usage = at each time, the sum of usages of the nodes whose interval covers it, <= usage_limit
//
// This is what is left of automatic parallelism once each operator's placements (the strategies) and the price of
// moving tensors between them (the edges) are known: Moffitt and Fegade, "The ASPLOS 2025 / EuroSys 2025 contest on
// intra-operator parallelism for distributed deep learning" (google/iopddl) publishes such problems, and Zheng et al.,
// "Alpa", OSDI 2022, solves them without the limit as an integer program.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "stowage/outcome.h"

namespace stowage {

// A cost from here on means: not allowed.
inline constexpr std::int64_t kForbiddenCost = 100'000'000'000'000'000;

struct StrategyNode {
  std::int64_t lower = 0;  // its usage counts in [lower, upper)
  std::int64_t upper = 0;
  std::vector<std::int64_t> costs;   // one per strategy, at least one
  std::vector<std::int64_t> usages;  // bytes, one per strategy
};

struct StrategyEdge {
  std::int32_t u = 0;
  std::int32_t v = 0;               // not u
  std::vector<std::int64_t> costs;  // row-major over (strategy of u, strategy of v)
};

struct StrategyProblem {
  std::string name;
  std::vector<StrategyNode> nodes;
  std::vector<StrategyEdge> edges;
  std::optional<std::int64_t> usage_limit;
};

struct StrategyOptions {
  std::int64_t work_limit = 40'000'000'000;  // entries of cost matrices looked at: the limit that repeats
  std::int64_t enumeration_limit = 65'536;   // a problem of at most so many choices is solved by trying all
  std::uint64_t seed = 0;
  std::function<bool()> should_stop;  // outer stop (wall time); empty: never
};

struct StrategyResult {
  Outcome outcome = Outcome::kUnknown;
  std::vector<std::int32_t> strategies;  // one per node; empty when there is nothing to show
  std::int64_t cost = 0;
  std::int64_t bound = 0;            // no choice that keeps the limit costs less
  [[nodiscard]] double gap() const;  // cost / bound - 1; 0 when equal
};

// The cost of a choice, or nothing when it is not allowed: a forbidden strategy or pair, or more usage than the limit.
std::optional<std::int64_t> strategy_cost(const StrategyProblem& problem, const std::vector<std::int32_t>& strategies);

// Throws Error naming the node or edge where the largest costs that are allowed, or the largest usages, add up to 2^62.
void validate(const StrategyProblem& problem);

// The same problem and options give the same result, unless should_stop strikes. Throws what validate() does.
StrategyResult choose_strategies(const StrategyProblem& problem, const StrategyOptions& options);

}  // namespace stowage
