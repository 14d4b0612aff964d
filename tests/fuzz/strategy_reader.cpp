// The reader of strategy problems on any text.
#include "fuzz/target.h"
#include "stowage/io.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::accepts([&] {
    const StrategyProblem problem = parse_strategy_problem(fuzz::text_of(data, size), "input");
    validate(problem);
    std::vector<std::int32_t> first(problem.nodes.size(), 0);
    strategy_cost(problem, first);
  });
  return 0;
}
