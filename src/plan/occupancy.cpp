// Walks the steps once beside the placements in the order in which they begin, and the scratch addresses in the order
// of steps.
//
// Inside a step: a buffer that the step creates is there from its tick `born` on, everything else for all ticks.
// ReusePair is granted once for each r: a second buffer at the same offset in the same step would overlap the first, so
// it stays where it is and the sweep finds it overlapping r.
#include "plan/occupancy.h"

#include <algorithm>
#include <tuple>

#include "plan/violation.h"

namespace stowage::checker {
namespace {

constexpr std::int32_t kNone = -1;

class TenantLister {
 public:
  TenantLister(const Graph& graph, const Plan& plan)
      : graph_(graph),
        plan_(plan),
        placement_of_(graph.buffers.size(), kNone),
        born_(graph.buffers.size(), 0),
        starts_(plan.placements.size()),
        reused_by_(plan.placements.size(), kNone) {}

  std::vector<Tenant> run() {
    check_arena();
    sort_lists();
    for (std::int32_t step = 0; step < std::ssize(plan_.steps); ++step) {
      const Step& what = plan_.steps[static_cast<std::size_t>(step)];
      const Op* op = what.kind == Step::Kind::kRun ? &graph_.op(what.op) : nullptr;
      begin_placements(step, op);
      if (op != nullptr) {
        grant_reuse(step, *op);
        add_scratch(step, *op);
      }
    }
    if (next_scratch_ < scratch_order_.size()) fail_surplus(scratch(next_scratch_));
    add_placements();
    return std::move(tenants_);
  }

 private:
  const Placement& placement(std::int32_t index) const { return plan_.placements[static_cast<std::size_t>(index)]; }
  const ScratchPlacement& scratch(std::size_t rank) const {
    return plan_.scratch[static_cast<std::size_t>(scratch_order_[rank])];
  }

  void check_arena() const {
    if (plan_.align != graph_.align) fail(6, "the plan has align ", plan_.align, ", the graph ", graph_.align);
    if (plan_.arena_bytes < 0) fail(6, "arena_bytes is ", plan_.arena_bytes);
  }

  void sort_lists() {
    for (std::int32_t p = 0; p < std::ssize(plan_.placements); ++p) begin_order_.push_back(p);
    std::ranges::sort(begin_order_, {}, [&](std::int32_t p) { return placement(p).from; });
    for (std::int32_t s = 0; s < std::ssize(plan_.scratch); ++s) scratch_order_.push_back(s);
    std::ranges::sort(scratch_order_, {}, [&](std::int32_t s) {
      const ScratchPlacement& entry = plan_.scratch[static_cast<std::size_t>(s)];
      return std::tuple(entry.step, entry.index);
    });
  }

  void begin_placements(std::int32_t step, const Op* op) {
    if (op != nullptr) {
      for (std::size_t i = 0; i < op->creates.size(); ++i) born_[op->creates[i]] = born_tick(*op, i);
    }
    for (; begun_ < begin_order_.size() && placement(begin_order_[begun_]).from == step; ++begun_) {
      const std::int32_t index = begin_order_[begun_];
      const BufferId buffer = placement(index).buffer;
      placement_of_[buffer] = index;
      starts_[static_cast<std::size_t>(index)] = time_at(step, op != nullptr ? born_[buffer] : 0);
    }
  }

  void grant_reuse(std::int32_t step, const Op& op) {
    for (const ReusePair& pair : op.takeover) {
      if (graph_.buffer(pair.created).bytes == 0) continue;
      const std::int32_t read = placement_of_[pair.read];
      const std::int32_t created = placement_of_[pair.created];
      const bool shared = placement(read).to == step + 1 && placement(created).from == step &&
                          placement(read).offset == placement(created).offset;
      if (!shared) continue;
      std::int32_t& reused_by = reused_by_[static_cast<std::size_t>(read)];
      if (reused_by == kNone) {
        reused_by = created;
        starts_[static_cast<std::size_t>(created)] = time_at(step + 1, 0);
      }
    }
  }

  void add_scratch(std::int32_t step, const Op& op) {
    for (std::int32_t index = 0; index < std::ssize(op.scratch); ++index) {
      const Scratch& wanted = op.scratch[static_cast<std::size_t>(index)];
      if (next_scratch_ < scratch_order_.size()) {
        const ScratchPlacement& next = scratch(next_scratch_);
        if (std::tuple(next.step, next.index) < std::tuple(step, index)) fail_surplus(next);
      }
      const bool there = next_scratch_ < scratch_order_.size() && scratch(next_scratch_).step == step &&
                         scratch(next_scratch_).index == index;
      if (!there) fail(6, "step ", step, ": scratch ", index, " of op ", quote(op.name), " has no address");
      const std::int32_t position = scratch_order_[next_scratch_++];
      add({time_at(step, wanted.from), time_at(step, wanted.to),
           plan_.scratch[static_cast<std::size_t>(position)].offset, wanted.bytes, kNone, position});
    }
  }

  [[noreturn]] void fail_surplus(const ScratchPlacement& entry) const {
    fail(6, "scratch ", entry.index, " of step ", entry.step, " has an address twice, or is not there");
  }

  void add_placements() {
    for (std::int32_t p = 0; p < std::ssize(plan_.placements); ++p) {
      const Placement& entry = placement(p);
      add({starts_[static_cast<std::size_t>(p)], time_at(entry.to, 0), entry.offset, graph_.buffer(entry.buffer).bytes,
           p, kNone});
    }
  }

  void add(const Tenant& tenant) {
    if (tenant.offset < 0 || tenant.offset > plan_.arena_bytes - tenant.bytes) {
      fail(6, describe(graph_, plan_, tenant), " at offset ", tenant.offset, " is not inside the arena of ",
           plan_.arena_bytes, " bytes");
    }
    if (tenant.offset % graph_.align != 0) {
      fail(6, describe(graph_, plan_, tenant), ": offset ", tenant.offset, " is no multiple of ", graph_.align);
    }
    if (tenant.bytes > 0 && tenant.start < tenant.end) tenants_.push_back(tenant);
  }

  const Graph& graph_;
  const Plan& plan_;
  IdVector<BufferId, std::int32_t> placement_of_;  // the latest placement of each buffer
  IdVector<BufferId, std::int32_t> born_;          // the tick at which the current op creates a buffer
  std::vector<Time> starts_;                       // of each placement
  std::vector<std::int32_t> reused_by_;            // the placement that reuses a placement in place
  std::vector<std::int32_t> begin_order_;
  std::vector<std::int32_t> scratch_order_;
  std::size_t begun_ = 0;
  std::size_t next_scratch_ = 0;
  std::vector<Tenant> tenants_;
};

}  // namespace

std::vector<Tenant> list_tenants(const Graph& graph, const Plan& plan) { return TenantLister(graph, plan).run(); }

std::string describe(const Graph& graph, const Plan& plan, const Tenant& tenant) {
  if (tenant.placement >= 0) {
    const Placement& placement = plan.placements[static_cast<std::size_t>(tenant.placement)];
    return concat("placement ", tenant.placement, " of ", describe(graph, placement.buffer));
  }
  const ScratchPlacement& scratch = plan.scratch[static_cast<std::size_t>(tenant.scratch)];
  return concat("scratch ", scratch.index, " of step ", scratch.step);
}

}  // namespace stowage::checker
