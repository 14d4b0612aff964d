// Runs of ops, repeats included, on the common scale: made a Plan, laid out by Stowage's layout search, verified by the
// independent checker.
//
//   runs     a    b    c    a    d          a buffer is there from the run that creates it to its last use before the next such run
//   a's      ██████████     ██████
#pragma once

#include <span>

#include "rivals/evaluate.h"
#include "stowage/graph.h"

namespace stowage::rivals {

// Throws Error when the runs are not valid.
Evaluation evaluate_runs(const Graph& graph, std::span<const OpId> runs);

}  // namespace stowage::rivals
