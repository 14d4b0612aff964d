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
#include <map>
#include <utility>

#include "plan/violation.h"

namespace stowage::checker {
namespace {

using Order = std::vector<std::int32_t>;

const Tenant& tenant_at(const std::vector<Tenant>& tenants, std::int32_t index) {
  return tenants[static_cast<std::size_t>(index)];
}

// The tenants in the order of one of their times.
Order sorted_by(const std::vector<Tenant>& tenants, Time Tenant::*time) {
  Order order(tenants.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
  std::ranges::sort(order, {}, [&](std::int32_t i) { return std::pair(tenant_at(tenants, i).*time, i); });
  return order;
}

// Calls end(tenant) and start(tenant) in the order of time, ends first.
template <class Start, class End>
void sweep(const std::vector<Tenant>& tenants, Start start, End end) {
  const Order starts = sorted_by(tenants, &Tenant::start);
  const Order ends = sorted_by(tenants, &Tenant::end);
  std::size_t ended = 0;
  for (const std::int32_t index : starts) {
    const Tenant& newcomer = tenant_at(tenants, index);
    for (; tenant_at(tenants, ends[ended]).end <= newcomer.start; ++ended) end(tenant_at(tenants, ends[ended]));
    start(newcomer);
  }
}

[[noreturn]] void fail_overlap(const Graph& graph, const Plan& plan, const Tenant& there, const Tenant& newcomer) {
  const auto range = [](const Tenant& t) { return concat("[", t.offset, ", ", t.offset + t.bytes, ")"); };
  fail(6, describe(graph, plan, there), " at ", range(there), " and ", describe(graph, plan, newcomer), " at ", range(newcomer),
       " overlap at step ", newcomer.start >> 32);
}

}  // namespace

void check_overlap(const Graph& graph, const Plan& plan, const std::vector<Tenant>& tenants) {
  std::map<std::int64_t, const Tenant*> there;  // by offset
  const auto start = [&](const Tenant& newcomer) {
    const auto next = there.lower_bound(newcomer.offset);
    if (next != there.end() && next->first < newcomer.offset + newcomer.bytes) fail_overlap(graph, plan, *next->second, newcomer);
    if (next != there.begin()) {
      const Tenant& before = *std::prev(next)->second;
      if (before.offset + before.bytes > newcomer.offset) fail_overlap(graph, plan, before, newcomer);
    }
    there.emplace_hint(next, newcomer.offset, &newcomer);
  };
  sweep(tenants, start, [&](const Tenant& leaver) { there.erase(leaver.offset); });
}

std::int64_t peak_bytes(const Graph& graph, const std::vector<Tenant>& tenants) {
  std::int64_t live = 0;
  std::int64_t peak = 0;
  const auto start = [&](const Tenant& newcomer) {
    live += graph.padded(newcomer.bytes);
    peak = std::max(peak, live);
  };
  sweep(tenants, start, [&](const Tenant& leaver) { live -= graph.padded(leaver.bytes); });
  return peak;
}

}  // namespace stowage::checker
