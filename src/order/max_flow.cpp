#include "order/max_flow.h"

#include <algorithm>

namespace stowage {

std::int32_t FlowNetwork::add_node() {
  first_.push_back(-1);
  return static_cast<std::int32_t>(first_.size()) - 1;
}

void FlowNetwork::add_arc(std::int32_t from, std::int32_t to, std::int64_t capacity) {
  arcs_.push_back({to, first_[from], capacity});
  first_[from] = static_cast<std::int32_t>(arcs_.size()) - 1;
  arcs_.push_back({from, first_[to], 0});
  first_[to] = static_cast<std::int32_t>(arcs_.size()) - 1;
}

std::int64_t FlowNetwork::maximize(std::int32_t s, std::int32_t t, std::int64_t& work) {
  std::int64_t total = 0;
  while (work > 0 && level_nodes(s, t, work)) total += blocking_flow(s, t, work);
  return total;
}

bool FlowNetwork::level_nodes(std::int32_t s, std::int32_t t, std::int64_t& work) {
  level_.assign(first_.size(), -1);
  queue_.assign(1, s);
  level_[s] = 0;
  for (std::size_t head = 0; head < queue_.size() && level_[t] < 0; ++head) {
    for (std::int32_t a = first_[queue_[head]]; a >= 0; a = arcs_[a].next, --work)
      if (arcs_[a].room > 0 && level_[arcs_[a].to] < 0) {
        level_[arcs_[a].to] = level_[queue_[head]] + 1;
        queue_.push_back(arcs_[a].to);
      }
  }
  return level_[t] >= 0;
}

std::int64_t FlowNetwork::blocking_flow(std::int32_t s, std::int32_t t, std::int64_t& work) {
  std::int64_t total = 0;
  next_ = first_;
  std::vector<std::int32_t> path;  // arcs from s to the node at hand
  for (std::int32_t node = s; work > 0;) {
    if (node == t) {
      std::int64_t room = kInfinite;
      for (const std::int32_t a : path) room = std::min(room, arcs_[a].room);
      std::size_t keep = path.size();
      for (std::size_t i = path.size(); i-- > 0;) {
        arcs_[path[i]].room -= room;
        arcs_[path[i] ^ 1].room += room;
        if (arcs_[path[i]].room == 0) keep = i;
      }
      total += room;
      work -= static_cast<std::int64_t>(path.size());
      path.resize(keep);
      node = path.empty() ? s : arcs_[path.back()].to;
      continue;
    }
    std::int32_t& a = next_[node];
    while (a >= 0 && (arcs_[a].room == 0 || level_[arcs_[a].to] != level_[node] + 1)) a = arcs_[a].next, --work;
    if (a >= 0) {
      path.push_back(a);
      node = arcs_[a].to;
    } else if (path.empty()) {
      break;
    } else {
      level_[node] = -1;
      node = arcs_[path.back() ^ 1].to;
      path.pop_back();
    }
  }
  return total;
}

std::vector<char> FlowNetwork::source_side(std::int32_t s) const {
  std::vector<char> reached(first_.size(), 0);
  std::vector<std::int32_t> stack{s};
  reached[s] = 1;
  while (!stack.empty()) {
    const std::int32_t node = stack.back();
    stack.pop_back();
    for (std::int32_t a = first_[node]; a >= 0; a = arcs_[a].next)
      if (arcs_[a].room > 0 && !reached[arcs_[a].to]) {
        reached[arcs_[a].to] = 1;
        stack.push_back(arcs_[a].to);
      }
  }
  return reached;
}

std::vector<char> FlowNetwork::largest_source_side(std::int32_t t) const {
  std::vector<char> side(first_.size(), 1);
  std::vector<std::int32_t> stack{t};
  side[t] = 0;
  while (!stack.empty()) {
    const std::int32_t node = stack.back();
    stack.pop_back();
    for (std::int32_t a = first_[node]; a >= 0; a = arcs_[a].next)
      if (arcs_[a ^ 1].room > 0 && side[arcs_[a].to]) {
        side[arcs_[a].to] = 0;
        stack.push_back(arcs_[a].to);
      }
  }
  return side;
}

}  // namespace stowage
