#include "layout/sections.h"

namespace stowage {

LayoutInstance by_sections(const LayoutInstance& instance) {
  std::vector<char> birth(instance.times + 1, 0), death(instance.times + 1, 0);
  for (const Rect& r : instance.rects) {
    birth[r.lower] = 1;
    death[r.upper] = 1;
  }
  // section[t]: sections closed before time t. A section closes at a death when something was born since the last one.
  std::vector<std::int32_t> closed(instance.times + 1, 0);
  bool born = false;
  std::int32_t sections = 0;
  for (std::int32_t t = 0; t <= instance.times; ++t) {
    if (death[t] && born) {
      ++sections;
      born = false;
    }
    closed[t] = sections;
    born |= birth[t] != 0;
  }
  LayoutInstance result = instance;
  for (Rect& r : result.rects) {
    r.lower = closed[r.lower];
    r.upper = closed[r.upper];
  }
  result.times = sections;
  return result;
}

}  // namespace stowage
