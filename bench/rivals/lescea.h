// LESCEA: "least memory expansion", the greedy order that ROAM is compared with (arXiv 2310.19295, baselines).
//
// Of the ready ops that stay within the peak so far, the one that leaves the fewest live bytes; when there is none, the
// one whose peak is least. Equal ones go by name. See list_scheduler.h.
#pragma once

#include <vector>

#include "stowage/graph.h"

namespace stowage::rivals {

std::vector<OpId> lescea_order(const Graph& graph);

}  // namespace stowage::rivals
