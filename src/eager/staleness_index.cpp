#include "eager/staleness_index.h"

#include <algorithm>
#include <cmath>

namespace stowage::eager {
namespace {

constexpr int kClassesPerOctave = 4;
constexpr int kLowestOctave = -64;
constexpr int kClasses = 160 * kClassesPerOctave;

}  // namespace

std::int32_t StalenessIndex::list_of(double weight) {
  const double octave = std::log2(std::max(weight, 0x1p-63)) - kLowestOctave;
  const auto list = static_cast<std::int32_t>(std::min(octave * kClassesPerOctave, static_cast<double>(kClasses - 1)));
  if (static_cast<std::size_t>(list) >= lists_.size()) lists_.resize(static_cast<std::size_t>(list) + 1);
  return list;
}

void StalenessIndex::link_before(std::int32_t row, std::int32_t list, std::int32_t after) {
  List& l = lists_[static_cast<std::size_t>(list)];
  Node& node = nodes_[static_cast<std::size_t>(row)];
  l.upper = l.oldest < 0 ? node.weight : std::max(l.upper, node.weight);
  node.list = list;
  node.after = after;
  node.before = after < 0 ? l.newest : nodes_[static_cast<std::size_t>(after)].before;
  (node.before < 0 ? l.oldest : nodes_[static_cast<std::size_t>(node.before)].after) = row;
  (after < 0 ? l.newest : nodes_[static_cast<std::size_t>(after)].before) = row;
}

void StalenessIndex::insert(ValueId id, double weight) {
  erase(id);
  if (id.index() >= nodes_.size()) nodes_.resize(std::max(id.index() + 1, 2 * nodes_.size()));
  nodes_[id.index()].weight = weight;
  link_in_time(id, list_of(weight));
}

// From the newest end: mostly it is the newest.
void StalenessIndex::link_in_time(ValueId id, std::int32_t list) {
  std::int32_t after = -1, at = lists_[static_cast<std::size_t>(list)].newest;
  while (at >= 0 && table_[ValueId(at)].last_access_tick > table_[id].last_access_tick) {
    after = at;
    at = nodes_[static_cast<std::size_t>(at)].before;
  }
  link_before(id.value, list, after);
}

void StalenessIndex::erase(ValueId id) {
  if (!holds(id)) return;
  Node& node = nodes_[id.index()];
  List& l = lists_[static_cast<std::size_t>(node.list)];
  (node.before < 0 ? l.oldest : nodes_[static_cast<std::size_t>(node.before)].after) = node.after;
  (node.after < 0 ? l.newest : nodes_[static_cast<std::size_t>(node.after)].before) = node.before;
  node.list = -1;
}

void StalenessIndex::touch(ValueId id) {
  if (!holds(id)) return;
  const std::int32_t list = nodes_[id.index()].list;
  if (lists_[static_cast<std::size_t>(list)].newest == id.value) return;
  erase(id);
  link_before(id.value, list, -1);
}

void StalenessIndex::reweigh(ValueId id, double weight) {
  if (!holds(id)) return;
  const std::int32_t list = list_of(weight);
  if (list != nodes_[id.index()].list) {
    erase(id);
    nodes_[id.index()].weight = weight;
    link_in_time(id, list);
  }
  nodes_[id.index()].weight = weight;
  List& l = lists_[static_cast<std::size_t>(list)];
  l.upper = std::max(l.upper, weight);
}

double StalenessIndex::score(ValueId id) const {
  return nodes_[id.index()].weight * static_cast<double>(table_.tick() - table_[id].last_access_tick + 1);
}

std::optional<ValueId> StalenessIndex::best(bool last_resort, std::int64_t least_bytes) {
  const auto staleness = [&](std::int32_t row) {
    return static_cast<double>(table_.tick() - table_[ValueId(row)].last_access_tick + 1);
  };
  bounds_.clear();
  for (std::size_t l = 0; l < lists_.size(); ++l)
    if (lists_[l].oldest >= 0)
      bounds_.emplace_back(lists_[l].upper * staleness(lists_[l].oldest), static_cast<std::int32_t>(l));
  std::make_heap(bounds_.begin(), bounds_.end());
  std::optional<ValueId> found;
  double most = -1;
  while (!bounds_.empty() && bounds_.front().first > most) {
    const List& l = lists_[static_cast<std::size_t>(bounds_.front().second)];
    for (std::int32_t row = l.oldest; row >= 0 && l.upper * staleness(row) > most;
         row = nodes_[static_cast<std::size_t>(row)].after) {
      const ValueId id(row);
      ++table_.counters.looks;
      if (!table_.free_to_go(id, last_resort) || table_[id].bytes < least_bytes) continue;
      if (const double s = score(id); s > most) {
        most = s;
        found = id;
      }
    }
    std::pop_heap(bounds_.begin(), bounds_.end());
    bounds_.pop_back();
  }
  return found;
}

}  // namespace stowage::eager
