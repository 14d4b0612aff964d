// The message where a limit cannot be met: the limit, how many bytes are missing, and what must stay, by line of the
// user's code and by reason (the three largest).
//
//   live bytes = known values, by (line, why) + unseen or inside operators
#include <algorithm>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/evict/room.h"
#include "runtime/evict/running.h"
#include "runtime/memory/owners.h"
#include "stowage/bytes.h"

namespace stowage::runtime::evict {
std::string Room::explain(std::int64_t bytes) const {
  std::map<std::string, std::int64_t> stays;
  std::int64_t known = 0;
  const auto why = [&](const Value& value) {
    if (value.known_outside) return " (its address is known outside)";
    if (value.pins() > 0) return " (in use)";
    const bool no_way = !state_.table.may_swap() && !value.recipe && !value.small();
    return no_way ? " (cannot be computed again)" : "";
  };
  for (const Value* value : state_.values) {
    if (!value->resident() || value->holder() == nullptr) continue;
    known += value->bytes();
    const std::string line = owners::line_of(value->owner);
    stays[(line.empty() ? value->name() : "from " + line) + why(*value)] += value->bytes();
  }
  if (state_.live_bytes() > known) stays["unseen or inside operators"] += state_.live_bytes() - known;
  std::vector<std::pair<std::string, std::int64_t>> largest(stays.begin(), stays.end());
  std::stable_sort(largest.begin(), largest.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  const std::int64_t needed_bytes = state_.live_bytes() + bytes;
  std::ostringstream text;
  text << "stowage: a limit of " << in_words(state_.limit_bytes) << " is short by "
       << in_words(needed_bytes - state_.limit_bytes, Rounding::kUp);
  if (state_.running != nullptr) {
    text << ": " << state_.running->op->name;
    if (const std::string line = owners::line_of_gradient(); !line.empty()) text << " in the backward pass of " << line;
    if (bytes > 0) text << " asks for " << in_words(bytes);
  } else if (bytes > 0) {
    text << ": " << in_words(bytes) << " are asked for";
  }
  text << ", and what is in memory must stay";
  for (std::size_t i = 0; i < std::min<std::size_t>(largest.size(), 3); ++i) {
    if (i > 0 && largest[i].second < state_.live_bytes() / 100) break;
    text << (i == 0 ? ": " : ", ") << in_words(largest[i].second) << " " << largest[i].first;
  }
  text << ". At least " << needed_bytes << " bytes are needed here";
  return text.str();
}

}  // namespace stowage::runtime::evict
