#include "support/random_plan.h"

#include <algorithm>

#include "support/builder.h"
#include "support/random_graph.h"

namespace stowage::testing {
namespace {

// Bump allocation in program order.
class SimplePlanner {
 public:
  explicit SimplePlanner(const Graph& graph) : graph_(graph), last_use_(graph.buffers.size(), 0) {}

  Plan run() {
    plan_.graph_sha256 = graph_.sha256;
    plan_.align = graph_.align;
    const auto steps = static_cast<std::int32_t>(graph_.ops.size());
    for (std::int32_t k = 0; k < steps; ++k) {
      const Op& op = graph_.op(OpId(k));
      for (const auto* list : {&op.reads, &op.writes, &op.creates}) {
        for (const BufferId b : *list) last_use_[b.index()] = graph_.buffer(b).returned ? steps : k + 1;
      }
    }
    for (std::int32_t k = 0; k < steps; ++k) add_step(k);
    return std::move(plan_);
  }

 private:
  void add_step(std::int32_t k) {
    const Op& op = graph_.op(OpId(k));
    plan_.steps.push_back(Step::run(OpId(k)));
    for (const BufferId b : op.creates)
      plan_.placements.push_back({b, k, last_use_[b.index()], take(graph_.buffer(b).bytes)});
    for (std::int32_t i = 0; i < std::ssize(op.scratch); ++i) {
      plan_.scratch.push_back({k, i, take(op.scratch[static_cast<std::size_t>(i)].bytes)});
    }
  }

  std::int64_t take(std::int64_t bytes) {
    const std::int64_t offset = plan_.arena_bytes;
    plan_.arena_bytes += graph_.padded(bytes);
    return offset;
  }

  const Graph& graph_;
  std::vector<std::int32_t> last_use_;
  Plan plan_;
};

class Mutator {
 public:
  Mutator(const Graph& graph, Plan plan, std::mt19937_64& random)
      : graph_(graph), plan_(std::move(plan)), random_(random) {}

  Plan run() {
    if (may_leave() && chance(random_, 30)) {
      send_away();
      return std::move(plan_);
    }
    switch (draw(random_, 0, 11)) {
      case 0: swap_neighbours(); break;
      case 1: drop_step(); break;
      case 2: insert_run(position(), any_op()); break;
      case 3: shift_time(); break;
      case 4:
      case 5: shift_offset(); break;
      case 6: reuse_in_place(); break;
      case 7:
      case 8: recompute(); break;
      case 9:
      case 10: swap(); break;
      default: shift_until(); break;
    }
    return std::move(plan_);
  }

 private:
  std::int32_t steps() const { return static_cast<std::int32_t>(plan_.steps.size()); }
  std::int32_t position() { return static_cast<std::int32_t>(draw(random_, 0, steps())); }
  OpId any_op() { return OpId(static_cast<std::int32_t>(draw(random_, 0, std::ssize(graph_.ops) - 1))); }
  template <class T>
  T& any(std::vector<T>& list) {
    return list[static_cast<std::size_t>(draw(random_, 0, std::ssize(list) - 1))];
  }

  // Makes room for one step at `at`; what covers it stays whole.
  void insert(std::int32_t at, const Step& step) {
    for (Placement& p : plan_.placements) {
      p.from += p.from >= at;
      p.to += p.to > at;
    }
    for (ScratchPlacement& s : plan_.scratch) s.step += s.step >= at;
    for (Step& s : plan_.steps) s.until += s.until > at;
    plan_.steps.insert(plan_.steps.begin() + at, step);
  }

  bool may_leave() const {
    return std::ranges::any_of(graph_.buffers, [](const Buffer& b) { return b.leaves; });
  }

  // A resident leaves: it is fetched somewhere, stays up to some later step, and is perhaps written back. Mostly before its
  // first use and after its last.
  void send_away() {
    std::vector<std::int32_t> leaving;
    for (std::int32_t b = 0; b < std::ssize(graph_.buffers); ++b)
      if (graph_.buffers[static_cast<std::size_t>(b)].leaves || chance(random_, 1)) leaving.push_back(b);
    if (leaving.empty()) return;
    const BufferId id(any(leaving));
    const auto uses = [&](std::int32_t at) {
      const Step& step = plan_.steps[static_cast<std::size_t>(at)];
      if (step.kind != Step::Kind::kRun) return false;
      const Op& op = graph_.op(step.op);
      return std::ranges::count(op.reads, id) + std::ranges::count(op.writes, id) > 0;
    };
    std::int32_t first = 0, last = steps();
    while (first < steps() && !uses(first)) ++first;
    while (last > first && !uses(last - 1)) --last;
    plan_.away.push_back(id);
    if (first == last && chance(random_, 80)) return;  // never used
    const bool right = chance(random_, 70);
    const std::int32_t in = right ? first : position();
    insert(in, swap_in(id.value, in + 1));
    const std::int32_t end = right ? last + 1 : static_cast<std::int32_t>(draw(random_, in + 1, steps()));
    plan_.placements.push_back({id, in, end, grow(graph_.buffer(id).bytes)});
    if (chance(random_, 80)) {
      insert(end, swap_out(id.value, end + 1));
      plan_.placements.back().to = end + 1;
    }
  }

  void insert_run(std::int32_t at, OpId id) {
    insert(at, Step::run(id));
    const Op& op = graph_.op(id);
    for (std::int32_t i = 0; i < std::ssize(op.scratch); ++i) {
      plan_.scratch.push_back({at, i, grow(op.scratch[static_cast<std::size_t>(i)].bytes)});
    }
  }

  std::int64_t grow(std::int64_t bytes) {
    const std::int64_t offset = plan_.arena_bytes;
    plan_.arena_bytes += graph_.padded(bytes);
    return offset;
  }

  void swap_neighbours() {
    if (steps() < 2) return;
    const auto at = static_cast<std::int32_t>(draw(random_, 0, steps() - 2));
    std::swap(plan_.steps[static_cast<std::size_t>(at)], plan_.steps[static_cast<std::size_t>(at) + 1]);
    for (ScratchPlacement& s : plan_.scratch) s.step = s.step == at ? at + 1 : s.step == at + 1 ? at : s.step;
    if (chance(random_, 80)) {
      for (Placement& p : plan_.placements) p.from = p.from == at ? at + 1 : p.from == at + 1 ? at : p.from;
    }
  }

  void drop_step() {
    if (steps() == 0) return;
    const auto at = static_cast<std::int32_t>(draw(random_, 0, steps() - 1));
    plan_.steps.erase(plan_.steps.begin() + at);
    std::erase_if(plan_.scratch, [&](const ScratchPlacement& s) { return s.step == at; });
    for (Placement& p : plan_.placements) {
      p.from -= p.from > at;
      p.to -= p.to > at;
    }
    for (ScratchPlacement& s : plan_.scratch) s.step -= s.step > at;
    for (Step& s : plan_.steps) s.until -= s.until > at;
  }

  void shift_time() {
    if (plan_.placements.empty()) return;
    Placement& p = any(plan_.placements);
    (chance(random_, 40) ? p.from : p.to) += static_cast<std::int32_t>(draw(random_, -2, 2));
  }

  void shift_offset() {
    if (plan_.placements.empty()) return;
    std::int64_t& offset =
        !plan_.scratch.empty() && chance(random_, 30) ? any(plan_.scratch).offset : any(plan_.placements).offset;
    offset = chance(random_, 5) ? offset + 1 : draw(random_, 0, plan_.arena_bytes / graph_.align) * graph_.align;
  }

  // Puts a created buffer over one that its op reads, and ends that one there.
  void reuse_in_place() {
    if (plan_.placements.empty()) return;
    Placement& created = any(plan_.placements);
    for (Placement& p : plan_.placements) {
      if (p.from < created.from && p.to >= created.from + 1 && chance(random_, 40)) {
        created.offset = p.offset;
        if (chance(random_, 80)) p.to = created.from + 1;
        return;
      }
    }
  }

  // Splits a placement: [from, cut) stays, [at, to) is new, begun by a new step at `at`.
  void split(std::size_t index, std::int32_t cut, std::int32_t at) {
    Placement rest = plan_.placements[index];
    plan_.placements[index].to = cut;
    rest.from = at;
    rest.offset = chance(random_, 50) ? rest.offset : grow(graph_.buffer(rest.buffer).bytes);
    if (rest.from < rest.to) plan_.placements.push_back(rest);
  }

  void recompute() {
    if (plan_.placements.empty()) return;
    const auto index = static_cast<std::size_t>(draw(random_, 0, std::ssize(plan_.placements) - 1));
    const Placement old = plan_.placements[index];
    const auto at = static_cast<std::int32_t>(draw(random_, old.from + 1, std::max(old.from + 1, old.to)));
    for (std::int32_t k = 0; k < std::ssize(graph_.ops); ++k) {
      const auto& creates = graph_.op(OpId(k)).creates;
      if (std::ranges::find(creates, old.buffer) == creates.end()) continue;
      insert_run(at, OpId(k));
      split(index, static_cast<std::int32_t>(draw(random_, old.from + 1, at)), at);
      for (const BufferId sibling : creates) {
        if (sibling != old.buffer && chance(random_, 70))
          plan_.placements.push_back({sibling, at, at + 1, grow(graph_.buffer(sibling).bytes)});
      }
    }
  }

  void swap() {
    if (plan_.placements.empty()) return;
    const auto index = static_cast<std::size_t>(draw(random_, 0, std::ssize(plan_.placements) - 1));
    const Placement old = plan_.placements[index];
    const auto out = static_cast<std::int32_t>(draw(random_, old.from + 1, std::max(old.from + 1, old.to)));
    insert(out, swap_out(old.buffer.value, out + 1));
    plan_.placements[index].to = std::max(plan_.placements[index].to, out + 1);
    const auto in = static_cast<std::int32_t>(draw(random_, out + 1, std::max(out + 1, plan_.placements[index].to)));
    insert(in, swap_in(old.buffer.value, in + 1));
    split(index, static_cast<std::int32_t>(draw(random_, out + 1, in)), in);
  }

  void shift_until() {
    for (Step& step : plan_.steps) {
      if (step.kind != Step::Kind::kRun && chance(random_, 50))
        step.until += static_cast<std::int32_t>(draw(random_, -1, 2));
    }
  }

  const Graph& graph_;
  Plan plan_;
  std::mt19937_64& random_;
};

}  // namespace

Plan simple_plan(const Graph& graph) { return SimplePlanner(graph).run(); }

Plan mutate(const Graph& graph, Plan plan, std::mt19937_64& random) {
  return Mutator(graph, std::move(plan), random).run();
}

}  // namespace stowage::testing
