#include "sharding/waits.h"

#include <map>
#include <tuple>

namespace stowage {
namespace {

class Marker {
 public:
  explicit Marker(Space& space) : space_(space), seen_(space.edges.size(), 0) {
    for (std::size_t e = 0; e < space.edges.size(); ++e) {
      const SpaceEdge& edge = space.edges[e];
      edges_[{space.unit_of(edge).unit_class, edge.at, edge.output, edge.tensor_class}] = e;
    }
  }

  void run() {
    std::size_t last = units().size();  // the latest kernel
    for (std::size_t i = 0; i < units().size(); ++i) {
      if (space_.is_still(i)) continue;
      if (last < i) mark_path(last, i);
      last = i;
    }
    for (std::size_t e = 0; e < seen_.size(); ++e) mark_edge(space_.edges[e], seen_[e]);
  }

 private:
  void mark_edge(SpaceEdge& edge, std::int32_t seen) const {
    edge.late = space_.late[static_cast<std::size_t>(space_.unit_of(edge).unit_class)] != 0;
    edge.waited = !edge.late && !edge.written && seen > 0 && seen == edge.count;
  }

  struct Made {
    std::size_t unit = 0, output = 0;
  };

  [[nodiscard]] const std::vector<Unit>& units() const { return space_.units_of_program; }

  void mark_path(std::size_t first, std::size_t last) {
    std::map<std::int32_t, Made> path;  // tensors of `first`, and views of them
    for (std::size_t i = first; i < last; ++i) {
      const Unit& unit = units()[i];
      if (i > first && (unit.slots.empty() || !path.contains(unit.slots[0].tensor.value))) continue;
      for (std::size_t o = 0; o < unit.outputs.size(); ++o)
        if (unit.outputs[o].valid()) path[unit.outputs[o].value] = {i, o};
    }
    for (std::size_t s = 0; s < units()[last].slots.size(); ++s) {
      auto at = path.find(units()[last].slots[s].tensor.value);
      if (at == path.end() || is_untouched(last, s)) continue;
      mark(last, s, false, at->first);
      while (true) {
        const auto [unit, output] = at->second;
        mark(unit, output, true, at->first);
        if (unit == first) return;
        at = path.find(units()[unit].slots[0].tensor.value);
        mark(unit, 0, false, at->first);
      }
    }
  }

  [[nodiscard]] bool is_untouched(std::size_t unit, std::size_t slot) const {
    const UnitType& type = space_.types[static_cast<std::size_t>(space_.type_of_unit[unit])];
    return axis_code(type.strategies[0].in[slot], 0) == kUntouched;
  }

  void mark(std::size_t unit, std::size_t at, bool output, std::int32_t tensor) {
    const auto edge = edges_.find({space_.quotient.unit_class[unit], static_cast<std::int32_t>(at), output,
                                   space_.quotient.tensor_class[static_cast<std::size_t>(tensor)]});
    if (edge != edges_.end()) ++seen_[edge->second];
  }

  Space& space_;
  std::map<std::tuple<std::int32_t, std::int32_t, bool, std::int32_t>, std::size_t> edges_;
  std::vector<std::int32_t> seen_;  // per edge
};

}  // namespace

void mark_waits(Space& space) { Marker(space).run(); }

std::vector<char> find_late(const Space& space) {
  std::vector<char> late(space.quotient.units.size(), 1);
  bool is_late = true;
  for (std::size_t i = space.units_of_program.size(); i-- > 0;) {
    is_late = is_late && space.program->ops[space.units_of_program[i].op.index()].phase == Phase::kOptimizer;
    if (!is_late) late[static_cast<std::size_t>(space.quotient.unit_class[i])] = 0;
  }
  return late;
}

}  // namespace stowage
