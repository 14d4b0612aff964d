#include "sharding/neighbourhood.h"

#include <algorithm>

namespace stowage {
namespace {

bool alike(const std::vector<Code>& a, const std::vector<Code>& b, std::size_t axis) {
  return std::equal(a.begin(), a.end(), b.begin(),
                    [&](Code x, Code y) { return axis_code(x, axis) == axis_code(y, axis); });
}

bool alike(const Strategy& a, const Strategy& b, std::size_t axis) {
  return alike(a.in, b.in, axis) && alike(a.out, b.out, axis);
}

bool alike(Code a, Code b, std::size_t axis) { return axis_code(a, axis) == axis_code(b, axis); }

// On each axis that is not loose like one of `known`; all of them where there is none.
template <typename T>
std::vector<char> crossed(const std::vector<T>& all, const std::vector<T>& known, std::size_t axes, unsigned loose) {
  std::vector<char> inside;
  for (const T& one : all) {
    bool in = true;
    for (std::size_t a = 0; a < axes && in && !known.empty(); ++a)
      in = (loose >> a & 1U) != 0 ||
           std::any_of(known.begin(), known.end(), [&](const T& other) { return alike(one, other, a); });
    inside.push_back(in ? 1 : 0);
  }
  return inside;
}

}  // namespace

Neighbourhood between(const Space& space, const std::vector<Choice>& known, unsigned loose) {
  const std::size_t axes = space.mesh.axes.size();
  Neighbourhood found;
  for (std::size_t h = 0; h < space.homes.size(); ++h) {
    std::vector<Code> said;
    for (const Choice& choice : known)
      if (choice.homes[h] >= 0) said.push_back(space.homes[h].codes[static_cast<std::size_t>(choice.homes[h])]);
    found.homes.push_back(crossed(space.homes[h].codes, said, axes, loose));
  }
  for (std::size_t u = 0; u < space.units.size(); ++u) {
    const SpaceUnit& unit = space.units[u];
    std::vector<Strategy> all, said;
    for (const std::int32_t k : unit.usable) all.push_back(space.strategy(unit, k));
    for (const Choice& choice : known)
      if (choice.strategies[u] >= 0) said.push_back(all[static_cast<std::size_t>(choice.strategies[u])]);
    found.strategies.push_back(crossed(all, said, axes, loose));
  }
  return found;
}

}  // namespace stowage
