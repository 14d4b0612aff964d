// Memory-insensitive operators, and the segments between them.
//
//   a ─▶ b ─▶ d ─▶ e ─▶ g        a, d and g are comparable with every other op, so their position is the same in every order. What runs
//   └──▶ c ──┘└──▶ f ──┘         between two of them never mixes with the rest: segments [a b c] [d e f] [g] are ordered apart.
//
//   Along a topological order, v is comparable with all ops before it when it is the only sink of the ops up to v (every op reaches a sink),
//   and with all after it when it is the only source of the ops from v on. Both are counted in one sweep each.
//
// ROAM (arXiv 2310.19295) calls v memory-insensitive when its earliest and latest positions, counted by ancestors and
// descendants, are equal: the same ops. Differs: O(V + E) instead of counting all ancestors.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/csr.h"

namespace stowage::roam {

// Positions of the insensitive ops, where row i of `preds` lists positions before i. Rows with `ignored` set take no
// part.
std::vector<std::int32_t> insensitive(const Csr& preds, const std::vector<char>& ignored);

}  // namespace stowage::roam
