#include "sharding/merged_axes.h"

#include <algorithm>
#include <unordered_map>

namespace stowage {
namespace {

Code split(Code code, std::size_t first, std::size_t axes) {
  Code whole = 0;
  for (std::size_t a = 0; a < axes; ++a) whole = with_axis(whole, a, axis_code(code, a > first ? a - 1 : a));
  return whole;
}

template <typename T>
std::int32_t position(const std::vector<T>& values, const T& value) {
  const auto at = std::find(values.begin(), values.end(), value);
  return at == values.end() ? -1 : static_cast<std::int32_t>(at - values.begin());
}

}  // namespace

Mesh merge_axes(const Mesh& mesh, std::size_t first) {
  Mesh merged = mesh;
  MeshAxis& one = merged.axes[first];
  const MeshAxis& other = mesh.axes[first + 1];
  one.size *= other.size;
  one.gbps = std::min(one.gbps, other.gbps);
  one.latency_ns = std::max(one.latency_ns, other.latency_ns);
  merged.axes.erase(merged.axes.begin() + static_cast<std::ptrdiff_t>(first) + 1);
  return merged;
}

Prices merge_axes(Prices prices, std::size_t first) {
  if (prices.links.empty()) return prices;
  for (auto* links : {&prices.links, &prices.late_links}) {
    (*links)[first] = ((*links)[first] + (*links)[first + 1]) / 2;
    links->erase(links->begin() + static_cast<std::ptrdiff_t>(first) + 1);
  }
  return prices;
}

std::map<std::int32_t, MeshPlacement> merge_axes(const std::map<std::int32_t, MeshPlacement>& fixed,
                                                 std::size_t first) {
  std::map<std::int32_t, MeshPlacement> merged;
  for (auto [tensor, placement] : fixed) {
    if (placement[first] != placement[first + 1]) continue;
    placement.erase(placement.begin() + static_cast<std::ptrdiff_t>(first) + 1);
    merged.emplace(tensor, std::move(placement));
  }
  return merged;
}

Choice split_axes(const Space& whole, const Space& merged, const Choice& choice, std::size_t first) {
  const std::size_t axes = whole.mesh.axes.size();
  Choice found;
  for (const HomeClass& home : whole.homes) {
    const auto example = whole.quotient.tensor_example[static_cast<std::size_t>(home.root)];
    const auto tensor_class = merged.quotient.tensor_class[static_cast<std::size_t>(example)];
    const SpaceTensor& tensor = merged.tensors[static_cast<std::size_t>(tensor_class)];
    const auto h = static_cast<std::size_t>(tensor.home);
    const Code root = merged.homes[h].codes[static_cast<std::size_t>(choice.homes[h])];
    found.homes.push_back(position(home.codes, split(tensor.of_root(root, axes - 1), first, axes)));
  }
  std::unordered_map<std::int32_t, std::size_t> unit_of_class;
  for (std::size_t u = 0; u < merged.units.size(); ++u) unit_of_class.emplace(merged.units[u].unit_class, u);
  for (const SpaceUnit& unit : whole.units) {
    const auto example = whole.quotient.units[static_cast<std::size_t>(unit.unit_class)].example;
    const auto at = unit_of_class.find(merged.quotient.unit_class[static_cast<std::size_t>(example)]);
    std::int32_t same = -1;
    if (at != unit_of_class.end()) {
      const SpaceUnit& there = merged.units[at->second];
      Strategy wanted = merged.strategy(there, there.usable[static_cast<std::size_t>(choice.strategies[at->second])]);
      for (auto* codes : {&wanted.in, &wanted.out})
        for (Code& code : *codes) code = split(code, first, axes);
      for (std::size_t k = 0; k < unit.usable.size() && same < 0; ++k) {
        const Strategy& strategy = whole.strategy(unit, unit.usable[k]);
        if (strategy.in == wanted.in && strategy.out == wanted.out && strategy.recipe == wanted.recipe)
          same = static_cast<std::int32_t>(k);
      }
    }
    found.strategies.push_back(same);
  }
  return found;
}

}  // namespace stowage
