// What a limit that cannot be met is told to the user: by how much it is short, and what keeps it from being met.
//
//   live bytes = pinned + address known outside + without a recipe + others that are known + never seen
#include <algorithm>
#include <sstream>
#include <vector>

#include "runtime/evict/room.h"
#include "runtime/evict/running.h"
#include "stowage/mebibytes.h"

namespace stowage::runtime::evict {

std::string Room::explain(std::int64_t bytes) const {
  std::int64_t pinned = 0;
  std::int64_t outside = 0;
  std::int64_t known = 0;
  std::int64_t no_recipe = 0;
  std::vector<const Value*> largest;
  for (const Value* value : state_.values) {
    if (value->resident() && value->holder() != nullptr) known += value->bytes();
    const bool must_stay = !state_.table.may_swap() && !value->recipe && value->resident() && !value->small();
    if (value->pins() == 0 && !value->known_outside && must_stay) no_recipe += value->bytes();
    if (value->pins() == 0 && !value->known_outside) continue;
    (value->known_outside ? outside : pinned) += value->bytes();
    largest.push_back(value);
  }
  std::sort(largest.begin(), largest.end(), [](const Value* a, const Value* b) { return a->bytes() > b->bytes(); });
  const std::int64_t limit_bytes = state_.limit_bytes;
  std::ostringstream text;
  text << "stowage: a limit of " << mebibytes(limit_bytes, 2) << " is short by "
       << mebibytes(live_bytes() + bytes - limit_bytes, 2) << ": ";
  if (bytes > 0) text << mebibytes(bytes, 2) << " are asked for, ";
  text << mebibytes(live_bytes(), 2) << " are live; pinned by the op under way";
  if (state_.running != nullptr) text << " (" << state_.running->op->name << ")";
  text << ": " << mebibytes(pinned, 2) << "; address known outside: " << mebibytes(outside, 2)
       << "; without a recipe, and not to be swapped: " << mebibytes(no_recipe, 2)
       << "; inside ops or never seen: " << mebibytes(std::max<std::int64_t>(live_bytes() - known, 0), 2);
  for (std::size_t i = 0; i < std::min<std::size_t>(largest.size(), 3); ++i)
    text << (i == 0 ? ". Largest: " : ", ") << largest[i]->name();
  return text.str();
}

}  // namespace stowage::runtime::evict
