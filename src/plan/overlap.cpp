// A sweep over time with the set of tenants that are there, ordered by address.
//
//   address   ┌──── a ────┐           At each start, the newcomer is compared with its two neighbours in the set: the one before
//      3      │           │           it must end at or below its offset, the one after must begin at or above its end.
//      2      └───────────┘
//      1           ┌── b ──┐          That is enough: the set is free of overlap before (induction over the events), so its
//      0           └───────┘          members lie in order, and whoever overlaps the newcomer without being its neighbour
//                  ▲ b starts         would overlap the neighbour too. Two tenants overlap in time if and only if one is in
//                                     the set when the other starts, as ends come before starts at the same time (half-open).
#include "plan/overlap.h"

#include <algorithm>
#include <compare>
#include <iterator>
#include <map>

#include "plan/violation.h"

namespace stowage::checker {
namespace {

struct Event {
  Time time;
  std::int32_t tenant;
  auto operator<=>(const Event&) const = default;
};

// One of the times of every tenant, in order.
std::vector<Event> sorted_times(const std::vector<Tenant>& tenants, Time Tenant::* time) {
  std::vector<Event> events;
  events.reserve(tenants.size());
  for (const Tenant& tenant : tenants) events.push_back({tenant.*time, static_cast<std::int32_t>(events.size())});
  std::ranges::sort(events);
  return events;
}

[[noreturn]] void fail_overlap(const Graph& graph, const Plan& plan, const Tenant& there, const Tenant& newcomer) {
  const auto range = [](const Tenant& t) { return concat("[", t.offset, ", ", t.offset + t.bytes, ")"); };
  fail(6, describe(graph, plan, there), " at ", range(there), " and ", describe(graph, plan, newcomer), " at ",
       range(newcomer), " overlap at step ", newcomer.start >> 32);
}

// The tenants at one time, by offset.
class ArenaNow {
 public:
  ArenaNow(const Graph& graph, const Plan& plan) : graph_(graph), plan_(plan) {}

  void add(const Tenant& newcomer) {
    const auto next = tenants_.lower_bound(newcomer.offset);
    if (next != tenants_.end() && next->first < newcomer.offset + newcomer.bytes) {
      fail_overlap(graph_, plan_, *next->second, newcomer);
    }
    if (next != tenants_.begin()) {
      const Tenant& before = *std::prev(next)->second;
      if (before.offset + before.bytes > newcomer.offset) fail_overlap(graph_, plan_, before, newcomer);
    }
    tenants_.emplace_hint(next, newcomer.offset, &newcomer);
    live_bytes_ += graph_.padded(newcomer.bytes);
  }

  void remove(const Tenant& leaver) {
    tenants_.erase(leaver.offset);
    live_bytes_ -= graph_.padded(leaver.bytes);
  }

  [[nodiscard]] std::int64_t live_bytes() const { return live_bytes_; }

 private:
  const Graph& graph_;
  const Plan& plan_;
  std::map<std::int64_t, const Tenant*> tenants_;
  std::int64_t live_bytes_ = 0;
};

}  // namespace

std::int64_t check_overlap(const Graph& graph, const Plan& plan, const std::vector<Tenant>& tenants) {
  const auto tenant_of = [&](const Event& event) -> const Tenant& {
    return tenants[static_cast<std::size_t>(event.tenant)];
  };
  const std::vector<Event> starts = sorted_times(tenants, &Tenant::start);
  const std::vector<Event> ends = sorted_times(tenants, &Tenant::end);
  auto next_end = ends.begin();
  ArenaNow now(graph, plan);
  std::int64_t peak = 0;
  for (const Event& start : starts) {
    for (; next_end->time <= start.time; ++next_end) now.remove(tenant_of(*next_end));
    now.add(tenant_of(start));
    peak = std::max(peak, now.live_bytes());
  }
  return peak;
}

}  // namespace stowage::checker
