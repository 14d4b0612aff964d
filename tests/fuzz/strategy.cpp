// choose_strategies() on small problems with costs and usages of any size, against trying every choice.
#include <algorithm>
#include <limits>
#include <optional>

#include "fuzz/byte_source.h"
#include "fuzz/target.h"
#include "stowage/strategy.h"

namespace stowage::fuzz {
namespace {

constexpr std::array<std::int64_t, 6> kUnits = {
    1, 1, 1000, std::int64_t{1} << 40, std::int64_t{1} << 52, kForbiddenCost / 20};

StrategyProblem decode(ByteSource& bytes) {
  StrategyProblem problem;
  const std::int64_t cost_unit = bytes.pick(kUnits), usage_unit = bytes.pick(kUnits);
  for (auto i = bytes.draw(1, 6); i > 0; --i) {
    StrategyNode& node = problem.nodes.emplace_back();
    node.lower = bytes.draw(0, 8);
    node.upper = bytes.draw(0, 10);
    for (auto s = bytes.draw(1, 4); s > 0; --s) {
      node.costs.push_back(bytes.draw(0, 20) * cost_unit);
      node.usages.push_back(bytes.draw(0, 20) * usage_unit);
    }
  }
  const auto nodes = std::ssize(problem.nodes);
  for (auto e = nodes > 1 ? bytes.draw(0, 8) : 0; e > 0; --e) {
    StrategyEdge& edge = problem.edges.emplace_back();
    edge.u = static_cast<std::int32_t>(bytes.draw(0, nodes - 1));
    edge.v = static_cast<std::int32_t>((edge.u + bytes.draw(1, nodes - 1)) % nodes);
    const auto strategies = [&](std::int32_t node) {
      return problem.nodes[static_cast<std::size_t>(node)].costs.size();
    };
    for (auto pairs = strategies(edge.u) * strategies(edge.v); pairs > 0; --pairs)
      edge.costs.push_back(bytes.draw(0, 20) * cost_unit);
  }
  if (bytes.chance(70)) problem.usage_limit = bytes.draw(0, 60) * usage_unit;
  return problem;
}

std::optional<std::int64_t> least_cost(const StrategyProblem& problem) {
  std::optional<std::int64_t> least;
  std::vector<std::int32_t> choice(problem.nodes.size(), 0);
  while (true) {
    const auto cost = strategy_cost(problem, choice);
    if (cost) least = std::min(least.value_or(std::numeric_limits<std::int64_t>::max()), *cost);
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == std::ssize(problem.nodes[i].costs)) choice[i++] = 0;
    if (i == choice.size()) return least;
  }
}

void judge(const StrategyProblem& problem, const StrategyResult& result) {
  const auto least = least_cost(problem);
  if (result.outcome == Outcome::kInfeasible) return require(!least, "what is infeasible has no choice");
  if (result.strategies.empty()) return require(result.outcome == Outcome::kUnknown, "there is a choice, or a reason");
  require(strategy_cost(problem, result.strategies) == result.cost, "a choice costs what it says");
  require(least && result.bound <= *least && *least <= result.cost, "the best choice lies between bound and answer");
  require((result.outcome == Outcome::kOptimal) == (result.bound == result.cost),
          "optimal means that the bound is met");
}

}  // namespace
}  // namespace stowage::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::ByteSource bytes(data, size);
  StrategyOptions options;
  options.work_limit = 20'000;
  options.enumeration_limit = bytes.chance(50) ? 0 : 65'536;  // by searching, or by trying all
  options.should_stop = [looks = 0]() mutable { return ++looks > 50; };
  options.seed = static_cast<std::uint64_t>(bytes.draw(0, 3));
  const StrategyProblem problem = fuzz::decode(bytes);
  fuzz::accepts([&] { fuzz::judge(problem, choose_strategies(problem, options)); });
  return 0;
}
