#include "sharding/peak_row.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace stowage {
namespace {

class RowMaker {
 public:
  RowMaker(const Space& space, std::int32_t op, std::int64_t limit) : space_(space), axes_(space.mesh.axes.size()) {
    row_.op = op;
    row_.limit = static_cast<double>(limit);
    row_.home_bytes.resize(space.homes.size());
    while (space.units_of_program[first_].op.value != op) ++first_;
  }

  PeakRow run() {
    add_alive();
    add_views();
    add_copies();
    return std::move(row_);
  }

 private:
  [[nodiscard]] std::size_t tensors() const { return space_.program->tensors.size(); }
  [[nodiscard]] bool is_view(std::size_t t) const { return space_.program->tensors[t].alias_of.valid(); }
  [[nodiscard]] bool begins_fragment(std::size_t t) const {
    return space_.storage.fragment[t] == static_cast<std::int32_t>(t);
  }

  [[nodiscard]] bool is_alive(std::size_t t) const {
    const std::int32_t maker = space_.storage.maker[t], at = static_cast<std::int32_t>(first_);
    return maker < 0 || (maker <= at && at <= space_.storage.fragment_end[t]);
  }

  // A tensor that the op's first unit reads, changes or makes, and state, count in full.
  [[nodiscard]] double share(std::size_t t) const {
    if (space_.storage.maker[t] < 0) return 1;
    const auto is_own = [&](TensorId used) {
      return used.valid() && space_.storage.fragment[used.index()] == static_cast<std::int32_t>(t);
    };
    const Unit& unit = space_.units_of_program[first_];
    const bool own =
        std::any_of(unit.slots.begin(), unit.slots.end(), [&](const UnitSlot& slot) { return is_own(slot.tensor); }) ||
        std::any_of(unit.outputs.begin(), unit.outputs.end(), is_own);
    return own ? 1 : space_.kept_share;
  }

  void add(std::size_t t) {
    const double counts = share(t);
    if (counts == 0) return;
    const SpaceTensor& tensor = space_.tensors[static_cast<std::size_t>(space_.quotient.tensor_class[t])];
    const auto& codes = space_.homes[static_cast<std::size_t>(tensor.home)].codes;
    auto& bytes = row_.home_bytes[static_cast<std::size_t>(tensor.home)];
    bytes.resize(codes.size(), 0);
    for (std::size_t i = 0; i < codes.size(); ++i)
      bytes[i] += counts * static_cast<double>(
                               largest_bytes(space_.program->tensors[t], tensor.of_root(codes[i], axes_), space_.mesh));
  }

  void add_alive() {
    for (std::size_t t = 0; t < tensors(); ++t)
      if (begins_fragment(t) && !is_view(t) && is_alive(t)) add(t);
  }

  // The fragment at the bottom of a view's chain.
  [[nodiscard]] std::size_t bottom(std::size_t t) const {
    while (is_view(t) && space_.storage.maker[t] >= 0) {
      const Unit& maker = space_.units_of_program[static_cast<std::size_t>(space_.storage.maker[t])];
      t = static_cast<std::size_t>(space_.storage.fragment[maker.slots[0].tensor.index()]);
    }
    return t;
  }

  void add_views() {
    // By what they were made from, where that is not counted itself
    std::map<std::size_t, std::vector<std::size_t>> views;
    for (std::size_t t = 0; t < tensors(); ++t)
      if (begins_fragment(t) && is_view(t) && space_.storage.maker[t] >= 0 && is_alive(t) && !is_alive(bottom(t)))
        views[bottom(t)].push_back(t);
    for (auto& [base, parts] : views) {
      std::sort(parts.begin(), parts.end(), [&](std::size_t a, std::size_t b) { return whole(a) > whole(b); });
      std::int64_t room = whole(base);
      for (const std::size_t t : parts) {
        if (whole(t) > room) continue;
        room -= whole(t);
        add(t);
      }
    }
  }

  [[nodiscard]] std::int64_t whole(std::size_t t) const {
    return largest_bytes(space_.program->tensors[t], kAllWhole, space_.mesh);
  }

  void add_copies() {
    // Unit class, place, output, tensor class
    std::map<std::tuple<std::int32_t, std::int32_t, bool, std::int32_t>, std::int32_t> edges;
    for (std::size_t e = 0; e < space_.edges.size(); ++e) {
      const SpaceEdge& edge = space_.edges[e];
      edges[{space_.units[static_cast<std::size_t>(edge.unit)].unit_class, edge.at, edge.output, edge.tensor_class}] =
          static_cast<std::int32_t>(e);
    }
    std::map<std::int32_t, double> copies;
    for (std::size_t i = first_; i < space_.units_of_program.size() && space_.units_of_program[i].op.value == row_.op;
         ++i) {
      const Unit& unit = space_.units_of_program[i];
      const auto copy = [&](std::size_t at, bool output, TensorId t) {
        const auto edge = edges.find({space_.quotient.unit_class[i], static_cast<std::int32_t>(at), output,
                                      space_.quotient.tensor_class[t.index()]});
        if (edge != edges.end()) copies[edge->second] += 1;
      };
      for (std::size_t s = 0; s < unit.slots.size(); ++s) copy(s, false, unit.slots[s].tensor);
      for (std::size_t o = 0; o < unit.outputs.size(); ++o)
        if (unit.outputs[o].valid()) copy(o, true, unit.outputs[o]);
    }
    row_.copies.assign(copies.begin(), copies.end());
  }

  const Space& space_;
  std::size_t axes_;
  std::size_t first_ = 0;  // unit of the op
  PeakRow row_;
};

}  // namespace

PeakRow make_peak_row(const Space& space, std::int32_t op, std::int64_t limit) {
  return RowMaker(space, op, limit).run();
}

}  // namespace stowage
