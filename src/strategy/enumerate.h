// Tiny problems by trying all choices, in integers: needs no solver, and proves costs of any size.
//
//   node 0   a      b          depth first, a node at a time: what the chosen labels and the edges between them cost so far; a branch
//   node 1   c d    c d        that costs no less than the best is left. The limit is looked at where all nodes have chosen.
//
// O(choices x (nodes + edges)).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "strategy/choice_network.h"

namespace stowage {

// The number of choices, or `most` + 1 when there are more.
std::int64_t count_choices(const ChoiceNetwork& network, std::int64_t most);

// The cheapest choice that keeps the limit, the first of equal ones; none: there is none.
std::optional<std::vector<std::int32_t>> cheapest_of_all(const StrategyProblem& problem, const ChoiceNetwork& network);

}  // namespace stowage
