#include "eager/dtr.h"

#include <algorithm>

namespace stowage::eager {

DtrFilter::Links& DtrFilter::links(ValueId id) {
  if (id.index() >= links_.size()) links_.resize(std::max(id.index() + 1, 2 * links_.size()));
  return links_[id];
}

std::int32_t DtrFilter::root(std::int32_t set) {
  while (above_[static_cast<std::size_t>(set)] != set) {
    std::int32_t& up = above_[static_cast<std::size_t>(set)];
    up = above_[static_cast<std::size_t>(up)];  // path halving
    set = up;
  }
  return set;
}

double DtrFilter::cost_ns(ValueId id) {
  const Row& v = table_[id];
  if (!table_.may_drop(id)) return static_cast<double>(2 * table_.copy_ns(v.bytes));
  double cost = static_cast<double>(v.compute_ns) + 1;
  met_.clear();
  const Links& own = links(id);
  for (const auto* side : {&own.parents, &own.children})
    for (const ValueId n : *side) {
      const std::int32_t set = links_[n].set;
      if (set < 0) continue;
      const std::int32_t r = root(set);
      if (std::find(met_.begin(), met_.end(), r) != met_.end()) continue;
      met_.push_back(r);
      cost += std::max(sum_[static_cast<std::size_t>(r)], 0.0);
    }
  return cost;
}

void DtrFilter::reweigh_neighbours(ValueId id) {
  const Links& own = links(id);
  for (const auto* side : {&own.parents, &own.children})
    for (const ValueId n : *side)
      if (index_.holds(n)) index_.reweigh(n, weight(n));
}

void DtrFilter::recipe_changed(ValueId id) {
  unlink(id);
  links(id);
  for (const ValueId parent : table_[id].parents) {
    links(parent).children.push_back(id);
    links_[id].parents.push_back(parent);
  }
  if (index_.holds(id)) index_.reweigh(id, weight(id));
}

void DtrFilter::unlink(ValueId id) {
  for (const ValueId parent : links(id).parents) {
    auto& children = links_[parent].children;
    if (const auto at = std::find(children.rbegin(), children.rend(), id); at != children.rend()) {
      *at = children.back();
      children.pop_back();
    }
  }
  links_[id].parents.clear();
}

// A new set of its own, joined with those of its dropped neighbours.
void DtrFilter::drop(ValueId id) {
  Links& own = links(id);
  if (own.set >= 0) return;
  if (above_.size() > 1024 + 8 * links_.size()) renumber();
  own.set = static_cast<std::int32_t>(above_.size());
  own.cost_in_set = static_cast<double>(table_[id].compute_ns);
  above_.push_back(own.set);
  sum_.push_back(own.cost_in_set);
  for (const auto* side : {&own.parents, &own.children})
    for (const ValueId n : *side) {
      if (links_[n].set < 0) continue;
      const std::int32_t a = root(links_[n].set), b = root(own.set);
      if (a == b) continue;
      above_[static_cast<std::size_t>(b)] = a;
      sum_[static_cast<std::size_t>(a)] += sum_[static_cast<std::size_t>(b)];
    }
  reweigh_neighbours(id);
}

// Sets that nobody is in any more go; the others get new numbers. Amortised O(1) a drop.
void DtrFilter::renumber() {
  std::vector<std::int32_t> number(above_.size(), -1);
  std::vector<double> sums;
  for (Links& l : links_) {
    if (l.set < 0) continue;
    const auto r = static_cast<std::size_t>(root(l.set));
    if (number[r] < 0) {
      number[r] = static_cast<std::int32_t>(sums.size());
      sums.push_back(sum_[r]);
    }
    l.set = number[r];
  }
  sum_ = std::move(sums);
  above_.resize(sum_.size());
  for (std::size_t i = 0; i < above_.size(); ++i) above_[i] = static_cast<std::int32_t>(i);
}

void DtrFilter::undrop(ValueId id) {
  Links& own = links(id);
  if (own.set < 0) return;
  sum_[static_cast<std::size_t>(root(own.set))] -= own.cost_in_set;
  own.set = -1;
  reweigh_neighbours(id);
}

void DtrFilter::released(ValueId id, How how) {
  if (how == How::kDrop) drop(id);
}
void DtrFilter::restored(ValueId id) { undrop(id); }
void DtrFilter::died(ValueId id) {
  if (table_[id].recomputable) drop(id);
}
void DtrFilter::forgotten(ValueId id) {
  undrop(id);
  unlink(id);
  links_[id].children.clear();
}

std::optional<ValueId> DtrFilter::pick(bool last_resort) {
  std::optional<ValueId> found;
  for (int i = 0; i < kMostRetries; ++i) {
    found = index_.best(last_resort);
    if (!found) return found;
    const double now = weight(*found);
    if (now >= index_.weight(*found) * (1 - 1e-9)) return found;
    index_.reweigh(*found, now);  // sets further off have grown since
  }
  return found;
}

}  // namespace stowage::eager
