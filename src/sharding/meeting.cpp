#include "sharding/meeting.h"

#include <algorithm>
#include <unordered_set>

namespace stowage {
namespace {

struct Ends {
  const SpaceEdge *maker = nullptr, *reader = nullptr;
  int makers = 0, readers = 0;
};

bool costs_nothing(const HomeClass& home) {
  const auto nothing = [](double value) { return value == 0; };
  return std::all_of(home.bytes.begin(), home.bytes.end(), nothing) &&
         std::all_of(home.ns.begin(), home.ns.end(), nothing);
}

bool may_live_as_wanted(const Space& space, const SpaceEdge& reader) {
  std::unordered_set<Code> codes;
  for (const Code code : space.homes[space.home_of(reader)].codes) codes.insert(space.home_code(reader, code));
  const std::vector<Code> wanted = space.unit_codes(reader);
  return std::all_of(wanted.begin(), wanted.end(), [&](Code code) { return codes.contains(code); });
}

}  // namespace

std::vector<const SpaceEdge*> find_meetings(const Space& space) {
  std::vector<Ends> ends(space.homes.size());
  for (const SpaceEdge& edge : space.edges) {
    Ends& at = ends[space.home_of(edge)];
    (edge.output ? at.maker : at.reader) = &edge;
    ++(edge.output ? at.makers : at.readers);
  }
  std::vector<const SpaceEdge*> met(space.homes.size(), nullptr);
  for (std::size_t h = 0; h < ends.size(); ++h) {
    const auto& [maker, reader, makers, readers] = ends[h];
    if (makers != 1 || readers != 1 || reader->count < maker->count) continue;
    if (maker->pinned || reader->pinned || reader->written || reader->charged > 0) continue;
    if (maker->waited != reader->waited || maker->late) continue;  // their ways are priced apart
    if (costs_nothing(space.homes[h]) && may_live_as_wanted(space, *reader)) met[h] = reader;
  }
  return met;
}

}  // namespace stowage
