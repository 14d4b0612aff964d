// Simulates a plan with one number in place of each buffer's content: its version.
//
// Version v of a buffer is what its v-th creation or write in program order leaves; version 0 is what a resident holds
// before the step. An op is deterministic (an rng op has its generator replayed), so what it leaves depends on the
// versions that it sees and on nothing else. Hence, by induction over the steps: if every op finds exactly the versions
// that it sees in program order, then what it leaves is, bit for bit, what it leaves in program order; and at every
// moment `held` is the version whose bits the device really has. Copies move versions unchanged. If the check at each
// step passes, the plan computes the same.
//
// A resident that is away is a buffer like any other, but that the host holds its version 0 when the step begins, and must
// hold its final version when the step ends. It has no content on the device until it has been fetched.
//
// A placement begins at a step that gives it content, so that after its first step it always holds some version.
//
// While a copy is under way its bits are nobody's to touch: a buffer that is arriving is touched by no op before
// `until`, and one that is leaving is not written. In-place reuse writes over the buffer that it reuses, so that one must
// not be leaving either, and must not be returned.
//
//   step             0        1            2          3            4
//                    run A    swap_out a   run B      swap_in a    run C reads a
//   held[a]          1        1            - (placement ended)     1
//   host[a]                   1, ready at 2 ("until": 2)
#include "plan/simulate.h"

#include <algorithm>
#include <vector>

#include "plan/violation.h"

namespace stowage::checker {
namespace {

constexpr std::int32_t kNothing = -1;
constexpr std::int32_t kNever = -1;

// The version of each buffer that each op sees: entries [begin[k], ...) list those of op k's reads, then of its writes.
struct SeenVersions {
  IdVector<OpId, std::size_t> begin;
  std::vector<std::int32_t> seen;
  IdVector<BufferId, std::int32_t> final_version;  // of each buffer

  explicit SeenVersions(const Graph& graph) : final_version(graph.buffers.size(), 0) {
    for (const Op& op : graph.ops) {
      begin.push_back(seen.size());
      for (const BufferId id : op.reads) seen.push_back(final_version[id]);
      for (const BufferId id : op.writes) seen.push_back(final_version[id]);
      for (const BufferId id : op.writes) ++final_version[id];
      for (const BufferId id : op.creates) ++final_version[id];  // always 0 before
    }
  }
};

// What is known of one buffer at the current step.
struct State {
  std::int32_t held = kNothing;       // version on the device
  std::int32_t placement = kNothing;  // that covers the current step
  std::int32_t arrives = kNever;      // the device has what it holds from this step on
  std::int32_t leaves = kNever;       // a copy to the host reads it before this step
  std::int32_t host_version = kNothing;
  std::int32_t host_ready = kNever;    // the host has its version from this step on
  std::int32_t content_step = kNever;  // the last step that gave it content
};

class Simulation {
 public:
  Simulation(const Graph& graph, const Plan& plan)
      : graph_(graph),
        plan_(plan),
        versions_(graph),
        states_(graph.buffers.size()),
        stays_(graph.buffers.size(), false),
        steps_(std::ssize(plan.steps)) {
    for (const BufferId b : states_.ids()) stays_[b] = graph.buffer(b).resident;
  }

  void run() {
    send_away();
    for (const BufferId b : states_.ids()) states_[b].held = stays_[b] ? 0 : kNothing;
    check_placement_ranges();
    sort_placements();
    for (now_ = 0; now_ < steps_; ++now_) {
      const Step& step = plan_.steps[static_cast<std::size_t>(now_)];
      note_content(step);
      end_placements();
      begin_placements();
      switch (step.kind) {
        case Step::Kind::kRun: run_op(step.op); break;
        case Step::Kind::kSwapOut: swap_out(step); break;
        case Step::Kind::kSwapIn: swap_in(step); break;
      }
    }
    check_final_state();
  }

 private:
  State& state(BufferId id) { return states_[id]; }
  const Placement& placement(std::int32_t index) const { return plan_.placements[static_cast<std::size_t>(index)]; }

  // The host holds what a resident holds before the step: version 0, from the first step on.
  void send_away() {
    for (std::size_t i = 0; i < plan_.away.size(); ++i) {
      const BufferId id = plan_.away[i];
      if (!in_range(graph_, id))
        fail(3, "away[", i, "]: buffer ", id.value, " is out of range (", graph_.buffers.size(), " buffers)");
      if (!graph_.buffer(id).resident) fail(3, "away[", i, "]: ", describe(graph_, id), " is no resident");
      if (!graph_.buffer(id).leaves) fail(3, "away[", i, "]: ", describe(graph_, id), " may not leave");
      if (!stays_[id]) fail(3, "away[", i, "]: ", describe(graph_, id), " is listed twice");
      stays_[id] = false;
      states_[id].host_version = 0;
      states_[id].host_ready = 0;
    }
  }

  void check_placement_ranges() const {
    for (std::size_t p = 0; p < plan_.placements.size(); ++p) {
      const Placement& placement = plan_.placements[p];
      if (!in_range(graph_, placement.buffer)) {
        fail(3, "placement ", p, ": buffer ", placement.buffer.value, " is out of range (", graph_.buffers.size(),
             " buffers)");
      }
      if (stays_[placement.buffer]) fail(3, "placement ", p, ": ", describe(graph_, placement.buffer), " is resident");
      if (placement.from < 0 || placement.from >= placement.to || placement.to > steps_) {
        fail(3, "placement ", p, " of ", describe(graph_, placement.buffer), ": steps [", placement.from, ", ",
             placement.to, ") are not inside [0, ", steps_, ")");
      }
    }
  }

  void sort_placements() {
    by_from_ = sorted_by(&Placement::from);
    by_to_ = sorted_by(&Placement::to);
  }

  // The placements in the order of one of their times, which lie in [0, steps], by counting.
  std::vector<std::int32_t> sorted_by(std::int32_t Placement::* time) const {
    std::vector<std::size_t> place(static_cast<std::size_t>(steps_) + 2, 0);
    for (const Placement& p : plan_.placements) ++place[static_cast<std::size_t>(p.*time) + 1];
    for (std::size_t i = 1; i < place.size(); ++i) place[i] += place[i - 1];
    std::vector<std::int32_t> order(plan_.placements.size());
    for (std::size_t p = 0; p < order.size(); ++p) {
      order[place[static_cast<std::size_t>(plan_.placements[p].*time)]++] = static_cast<std::int32_t>(p);
    }
    return order;
  }

  void note_content(const Step& step) {
    if (step.kind == Step::Kind::kRun) {
      for (const BufferId id : graph_.op(step.op).creates) state(id).content_step = now_;
      return;
    }
    const std::string_view verb = step.kind == Step::Kind::kSwapIn ? "swap_in" : "swap_out";
    if (!in_range(graph_, step.buffer)) {
      fail(4, "step ", now_, ": ", verb, " of buffer ", step.buffer.value, ", which is out of range (",
           graph_.buffers.size(), " buffers)");
    }
    if (stays_[step.buffer]) fail(4, "step ", now_, ": ", verb, " of ", describe(graph_, step.buffer), ", a resident");
    if (step.until <= now_ || step.until > steps_) {
      fail(4, "step ", now_, ": ", verb, " of ", describe(graph_, step.buffer), ": until ", step.until, " is not in (",
           now_, ", ", steps_, "]");
    }
    if (step.kind == Step::Kind::kSwapIn) state(step.buffer).content_step = now_;
  }

  void end_placements() {
    for (; ended_ < by_to_.size() && placement(by_to_[ended_]).to == now_; ++ended_) {
      State& ending = state(placement(by_to_[ended_]).buffer);
      ending.placement = kNothing;
      ending.held = kNothing;
    }
  }

  void begin_placements() {
    for (; begun_ < by_from_.size() && placement(by_from_[begun_]).from == now_; ++begun_) {
      const std::int32_t index = by_from_[begun_];
      const BufferId id = placement(index).buffer;
      State& beginning = state(id);
      if (beginning.content_step != now_) {
        fail(3, "placement ", index, " of ", describe(graph_, id), " begins at step ", now_,
             ", which neither creates it nor swaps it in");
      }
      if (beginning.placement != kNothing) {
        fail(3, describe(graph_, id), " has two placements at step ", now_, ": ", beginning.placement, " and ", index);
      }
      beginning.placement = index;
    }
  }

  template <class... Parts>
  [[noreturn]] void fail_op(int rule, OpId op, BufferId buffer, const Parts&... parts) const {
    fail(rule, "step ", now_, " runs ", describe(graph_, op), ": ", describe(graph_, buffer), " ", parts...);
  }

  void run_op(OpId id) {
    const Op& op = graph_.op(id);
    std::size_t use = versions_.begin[id];
    for (const BufferId buffer : op.reads) check_use(id, buffer, versions_.seen[use++]);
    const std::size_t first_write = use;
    for (const BufferId buffer : op.writes) check_use(id, buffer, versions_.seen[use++]);
    for (const BufferId buffer : op.writes) check_target(id, buffer);
    for (const BufferId buffer : op.creates) check_target(id, buffer);
    for (const ReusePair& pair : op.takeover) check_reuse(id, pair);
    use = first_write;
    for (const BufferId buffer : op.writes) state(buffer).held = versions_.seen[use++] + 1;
    for (const BufferId buffer : op.creates) state(buffer).held = 1;
  }

  void check_on_device(OpId op, BufferId buffer) {
    if (stays_[buffer]) return;
    if (state(buffer).placement == kNothing) fail_op(2, op, buffer, "has no placement that covers the step");
    if (state(buffer).arrives > now_) fail_op(4, op, buffer, "is being copied in until step ", state(buffer).arrives);
  }

  void check_use(OpId op, BufferId buffer, std::int32_t wanted) {
    check_on_device(op, buffer);
    const std::int32_t held = state(buffer).held;
    if (held != wanted) fail_op(2, op, buffer, "holds version ", held, ", the op sees version ", wanted);
  }

  void check_target(OpId op, BufferId buffer) {
    check_on_device(op, buffer);
    if (state(buffer).leaves > now_)
      fail_op(4, op, buffer, "is written while it is copied out until step ", state(buffer).leaves);
  }

  // Does c begin here over r? Then r's content is lost in this step.
  void check_reuse(OpId op, const ReusePair& pair) {
    const Placement& read = placement(state(pair.read).placement);
    const Placement& created = placement(state(pair.created).placement);
    const bool shared = created.from == now_ && read.to == now_ + 1 && read.offset == created.offset;
    if (!shared || graph_.buffer(pair.created).bytes == 0) return;
    if (state(pair.read).leaves > now_) {
      fail_op(4, op, pair.read, "is reused in place while it is copied out until step ", state(pair.read).leaves);
    }
    if (graph_.buffer(pair.read).returned && read.to == steps_)
      fail_op(5, op, pair.read, "is returned, but reused in place in the last step");
  }

  void swap_out(const Step& step) {
    State& leaving = state(step.buffer);
    const auto wrong = [&](std::string_view what) {
      fail(4, "step ", now_, ": swap_out of ", describe(graph_, step.buffer), " until step ", step.until, ": ", what);
    };
    if (leaving.placement == kNothing) wrong("no placement covers the step");
    if (placement(leaving.placement).to < step.until) wrong("its placement ends before the copy is complete");
    if (leaving.arrives > now_) wrong("it is still being copied in");
    leaving.leaves = std::max(leaving.leaves, step.until);
    // An earlier copy is lost, but no swap_in can come before: the placement covers `until`
    leaving.host_ready = step.until;
    leaving.host_version = leaving.held;
  }

  void swap_in(const Step& step) {
    State& arriving = state(step.buffer);
    const auto wrong = [&](std::string_view what) {
      fail(4, "step ", now_, ": swap_in of ", describe(graph_, step.buffer), " until step ", step.until, ": ", what);
    };
    if (arriving.placement == kNothing || placement(arriving.placement).from != now_)
      wrong("no placement begins at the step");
    if (placement(arriving.placement).to < step.until) wrong("its placement ends before the copy is complete");
    if (arriving.host_version == kNothing) wrong("it was never swapped out");
    if (arriving.host_ready > now_) wrong("the host does not hold it yet");
    arriving.held = arriving.host_version;
    arriving.arrives = step.until;
  }

  void check_final_state() const {
    for (const BufferId b : states_.ids()) {
      const Buffer& buffer = graph_.buffer(b);
      if (!buffer.resident && !buffer.returned) continue;
      const State& at_end = states_[b];
      if (buffer.resident && !stays_[b]) {
        if (at_end.host_version != versions_.final_version[b]) {
          fail(5, "the host ends with version ", at_end.host_version, " of ", describe(graph_, b),
               ", which is away; the final one is ", versions_.final_version[b]);
        }
        continue;
      }
      if (!buffer.resident && at_end.placement == kNothing) {
        fail(5, "returned ", describe(graph_, b), " has no placement that covers the last step");
      }
      if (at_end.held != versions_.final_version[b]) {
        fail(5, buffer.resident ? "resident " : "returned ", describe(graph_, b), " ends with version ", at_end.held,
             ", the final one is ", versions_.final_version[b]);
      }
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  SeenVersions versions_;
  IdVector<BufferId, State> states_;
  IdVector<BufferId, bool> stays_;  // residents on the device throughout
  std::int64_t steps_;
  std::int32_t now_ = 0;
  std::vector<std::int32_t> by_from_;  // placements in the order in which they begin
  std::vector<std::int32_t> by_to_;    // placements in the order in which they end
  std::size_t begun_ = 0;
  std::size_t ended_ = 0;
};

}  // namespace

void simulate(const Graph& graph, const Plan& plan) { Simulation(graph, plan).run(); }

}  // namespace stowage::checker
