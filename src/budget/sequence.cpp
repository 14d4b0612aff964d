#include "budget/sequence.h"

#include <algorithm>
#include <numeric>

namespace stowage::budget {

Sequence Sequence::of(std::span<const OpId> order) {
  Sequence result;
  for (const OpId id : order) {
    result.line.push_back(static_cast<Node>(result.op.size()));
    result.op.push_back(id.value);
    result.repeat.push_back(0);
  }
  return result;
}

void edit(Sequence& sequence, std::span<const Insertion> insertions, const std::vector<char>& removed) {
  const auto gone = [&](Node node) { return static_cast<std::size_t>(node) < removed.size() && removed[node] != 0; };
  std::vector<std::size_t> order(insertions.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return insertions[a].before < insertions[b].before; });
  std::vector<Node> line, stands_for(sequence.op.size(), -1);  // a removed node: the next one that stays
  line.reserve(sequence.line.size() + insertions.size());
  Node next = -1;
  for (auto node = sequence.line.rbegin(); node != sequence.line.rend(); ++node)
    stands_for[*node] = gone(*node) ? next : next = *node;
  std::size_t done = 0;
  for (std::size_t position = 0; position <= sequence.line.size(); ++position) {
    for (; done < order.size() && insertions[order[done]].before == static_cast<std::int32_t>(position); ++done)
      line.push_back(insertions[order[done]].node);
    if (position < sequence.line.size() && !gone(sequence.line[position])) line.push_back(sequence.line[position]);
  }
  sequence.line = std::move(line);
  for (Swap& swap : sequence.swaps)
    for (Node* node : {&swap.out_at, &swap.out_by, &swap.in_from})
      if (*node >= 0) *node = stands_for[*node];
  std::erase_if(sequence.swaps, [](const Swap& s) { return s.out_by == kEnd || s.out_by == s.in_from; });
}

}  // namespace stowage::budget
