#include "support/naive_checker.h"

#include <algorithm>
#include <vector>

namespace stowage::testing {
namespace {

bool lists(const std::vector<BufferId>& ids, BufferId id) { return std::ranges::find(ids, id) != ids.end(); }

class NaiveChecker {
 public:
  NaiveChecker(const Graph& graph, const Plan& plan)
      : graph_(graph), plan_(plan), steps_(static_cast<int>(plan.steps.size())) {}

  std::optional<std::int64_t> run() const {
    if (plan_.graph_sha256 != graph_.sha256 || plan_.align != graph_.align || plan_.arena_bytes < 0)
      return std::nullopt;
    if (!away_may_leave() || !ids_in_range() || !rule_1() || !rule_3()) return std::nullopt;
    for (int i = 0; i < steps_; ++i) {
      if (is_run(i) ? !op_sees_its_versions(i) : is_out(i) ? !swap_out_holds(i) : !swap_in_holds(i))
        return std::nullopt;
    }
    if (!rule_5() || !scratch_is_complete() || !inside_arena()) return std::nullopt;
    return sweep_all_ticks();
  }

 private:
  const Step& step(int i) const { return plan_.steps[static_cast<std::size_t>(i)]; }
  bool is_run(int i) const { return step(i).kind == Step::Kind::kRun; }
  bool is_out(int i) const { return step(i).kind == Step::Kind::kSwapOut; }
  bool is_in(int i) const { return step(i).kind == Step::Kind::kSwapIn; }
  const Op& op_at(int i) const { return graph_.op(step(i).op); }
  bool known(BufferId id) const { return id.value >= 0 && id.value < std::ssize(graph_.buffers); }
  bool away(BufferId id) const { return lists(plan_.away, id); }
  bool stays(BufferId id) const { return graph_.buffer(id).resident && !away(id); }
  bool planned(BufferId id) const { return known(id) && !stays(id); }

  bool away_may_leave() const {
    return std::ranges::all_of(plan_.away, [&](BufferId b) {
      return known(b) && graph_.buffer(b).leaves && std::ranges::count(plan_.away, b) == 1;
    });
  }

  bool ids_in_range() const {
    for (int i = 0; i < steps_; ++i) {
      if (is_run(i) && (step(i).op.value < 0 || step(i).op.value >= std::ssize(graph_.ops))) return false;
      if (!is_run(i) && (!planned(step(i).buffer) || step(i).until <= i || step(i).until > steps_)) return false;
    }
    return std::ranges::all_of(plan_.placements, [&](const Placement& p) {
      return planned(p.buffer) && 0 <= p.from && p.from < p.to && p.to <= steps_;
    });
  }

  int first_run(OpId id) const {
    for (int i = 0; i < steps_; ++i) {
      if (is_run(i) && step(i).op == id) return i;
    }
    return -1;
  }

  bool rule_1() const {
    for (std::int32_t k = 0; k < std::ssize(graph_.ops); ++k) {
      const int mine = first_run(OpId(k));
      if (mine < 0) return false;
      const Op& op = graph_.op(OpId(k));
      for (int i = mine + 1; i < steps_; ++i) {
        if ((op.effect || op.once) && is_run(i) && step(i).op == OpId(k)) return false;
      }
      for (std::int32_t j = 0; j < k; ++j) {
        const Op& earlier = graph_.op(OpId(j));
        const bool ordered =
            (op.rng && earlier.rng) || (op.effect && earlier.effect) || std::ranges::count(op.after, OpId(j)) > 0;
        if (ordered && first_run(OpId(j)) > mine) return false;
      }
    }
    return true;
  }

  bool rule_3() const {
    for (const Placement& p : plan_.placements) {
      const bool content =
          is_run(p.from) ? lists(op_at(p.from).creates, p.buffer) : is_in(p.from) && step(p.from).buffer == p.buffer;
      if (!content) return false;
      for (const Placement& q : plan_.placements) {
        if (&p != &q && p.buffer == q.buffer && p.from < q.to && q.from < p.to) return false;
      }
    }
    return true;
  }

  const Placement* placement_at(BufferId id, int i) const {
    for (const Placement& p : plan_.placements) {
      if (p.buffer == id && p.from <= i && i < p.to) return &p;
    }
    return nullptr;
  }

  // How often ops before k create or write b: the version that op k sees.
  int version_before(std::int32_t k, BufferId b) const {
    int version = 0;
    for (std::int32_t j = 0; j < k; ++j)
      version += lists(graph_.op(OpId(j)).writes, b) + lists(graph_.op(OpId(j)).creates, b);
    return version;
  }

  bool changes(int i, BufferId b) const {
    return is_run(i) && (lists(op_at(i).writes, b) || lists(op_at(i).creates, b));
  }

  // The version of b on the device just before step i, for a buffer whose placement (if any) began at `from`; -1: none.
  int device_version(BufferId b, int i, int from) const {
    for (int s = i - 1; s >= from; --s) {
      if (changes(s, b)) return version_before(step(s).op.value, b) + 1;
      if (is_in(s) && step(s).buffer == b) return host_version(b, s);
    }
    return stays(b) ? 0 : -1;
  }

  // The version of b that a swap_in at step i finds on the host; -1: none that is complete.
  int host_version(BufferId b, int i) const {
    int newest = -1;
    for (int s = i - 1; s >= 0; --s) {
      if (!is_out(s) || step(s).buffer != b) continue;
      const int version = device_version(b, s, placement_at(b, s)->from);
      if (newest < 0) newest = version;
      if (version != newest) return -1;  // the newest is not complete, older ones are lost
      if (step(s).until <= i) return newest;
    }
    return away(b) && newest <= 0 ? 0 : -1;
  }

  bool arriving(BufferId b, int i) const {
    for (int s = 0; s <= i; ++s) {
      if (is_in(s) && step(s).buffer == b && step(s).until > i) return true;
    }
    return false;
  }

  bool leaving(BufferId b, int i) const {
    for (int s = 0; s < i; ++s) {
      if (is_out(s) && step(s).buffer == b && step(s).until > i) return true;
    }
    return false;
  }

  // Is c over r in step i?
  bool shares(const ReusePair& pair, int i) const {
    const Placement* r = placement_at(pair.read, i);
    const Placement* c = placement_at(pair.created, i);
    return r != nullptr && c != nullptr && r->offset == c->offset && r->to == i + 1 && c->from == i &&
           graph_.buffer(pair.created).bytes > 0;
  }

  bool op_sees_its_versions(int i) const {
    const Op& op = op_at(i);
    for (const auto* list : {&op.reads, &op.writes, &op.creates}) {
      for (const BufferId b : *list) {
        const Placement* p = placement_at(b, i);
        if (!stays(b) && (p == nullptr || arriving(b, i))) return false;
        if (list != &op.reads && leaving(b, i)) return false;
        if (list != &op.creates &&
            device_version(b, i, p != nullptr ? p->from : 0) != version_before(step(i).op.value, b))
          return false;
      }
    }
    return std::ranges::none_of(op.takeover, [&](const ReusePair& pair) {
      return shares(pair, i) && (leaving(pair.read, i) || (graph_.buffer(pair.read).returned && i + 1 == steps_));
    });
  }

  bool swap_out_holds(int i) const {
    const BufferId b = step(i).buffer;
    const Placement* p = placement_at(b, i);
    return p != nullptr && p->to >= step(i).until && !arriving(b, i) && device_version(b, i, p->from) >= 0;
  }

  bool swap_in_holds(int i) const {
    const Placement* p = placement_at(step(i).buffer, i);
    return p != nullptr && p->from == i && p->to >= step(i).until && host_version(step(i).buffer, i) >= 0;
  }

  bool rule_5() const {
    for (std::int32_t b = 0; b < std::ssize(graph_.buffers); ++b) {
      const Buffer& buffer = graph_.buffer(BufferId(b));
      if (!buffer.resident && !buffer.returned) continue;
      const Placement* p = placement_at(BufferId(b), steps_ - 1);
      const auto all = static_cast<std::int32_t>(graph_.ops.size());
      if (away(BufferId(b))) {
        if (host_version(BufferId(b), steps_) != version_before(all, BufferId(b))) return false;
        continue;
      }
      if (!buffer.resident && p == nullptr) return false;
      if (device_version(BufferId(b), steps_, p != nullptr ? p->from : 0) != version_before(all, BufferId(b)))
        return false;
    }
    return true;
  }

  std::size_t addresses_of(int i, int index) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        plan_.scratch, [&](const ScratchPlacement& s) { return s.step == i && s.index == index; }));
  }

  bool scratch_is_complete() const {
    std::size_t wanted = 0;
    for (int i = 0; i < steps_; ++i) {
      if (!is_run(i)) continue;
      for (int index = 0; index < std::ssize(op_at(i).scratch); ++index, ++wanted) {
        if (addresses_of(i, index) != 1) return false;
      }
    }
    return wanted == plan_.scratch.size();
  }

  bool fits(std::int64_t offset, std::int64_t bytes) const {
    return offset >= 0 && offset <= plan_.arena_bytes - bytes && offset % graph_.align == 0;
  }

  const Scratch& scratch_of(const ScratchPlacement& s) const {
    return op_at(s.step).scratch[static_cast<std::size_t>(s.index)];
  }

  bool inside_arena() const {
    return std::ranges::all_of(plan_.placements,
                               [&](const Placement& p) { return fits(p.offset, graph_.buffer(p.buffer).bytes); }) &&
           std::ranges::all_of(plan_.scratch,
                               [&](const ScratchPlacement& s) { return fits(s.offset, scratch_of(s).bytes); });
  }

  struct Block {
    std::int64_t offset;
    std::int64_t bytes;
    BufferId buffer;  // invalid for scratch
  };

  bool born(const Placement& p, int i, int tick) const {
    if (p.from < i || !is_run(i)) return true;
    const Op& op = op_at(i);
    const auto at = std::ranges::find(op.creates, p.buffer) - op.creates.begin();
    return born_tick(op, static_cast<std::size_t>(at)) <= tick;
  }

  std::vector<Block> blocks_at(int i, int tick) const {
    std::vector<Block> blocks;
    for (const Placement& p : plan_.placements) {
      if (p.from <= i && i < p.to && born(p, i, tick))
        blocks.push_back({p.offset, graph_.buffer(p.buffer).bytes, p.buffer});
    }
    for (const ScratchPlacement& s : plan_.scratch) {
      if (s.step != i || tick < scratch_of(s).from || tick >= scratch_of(s).to) continue;
      blocks.push_back({s.offset, scratch_of(s).bytes, {}});
    }
    return blocks;
  }

  bool excused(const Block& a, const Block& b, int i) const {
    if (!is_run(i)) return false;
    return std::ranges::any_of(op_at(i).takeover, [&](const ReusePair& pair) {
      return ((pair.read == a.buffer && pair.created == b.buffer) ||
              (pair.read == b.buffer && pair.created == a.buffer)) &&
             shares(pair, i);
    });
  }

  bool reused(const Block& block, const std::vector<Block>& others, int i) const {
    return std::ranges::any_of(others, [&](const Block& other) {
      return other.buffer.valid() && block.buffer.valid() && is_run(i) && excused(block, other, i) &&
             lists(op_at(i).creates, block.buffer);
    });
  }

  std::optional<std::int64_t> sweep_all_ticks() const {
    std::int64_t peak = 0;
    for (int i = 0; i < steps_; ++i) {
      const int ticks = is_run(i) ? op_at(i).ticks : 1;
      for (int tick = 0; tick < ticks; ++tick) {
        const std::vector<Block> blocks = blocks_at(i, tick);
        std::int64_t live = 0;
        for (const Block& a : blocks) {
          if (!reused(a, blocks, i)) live += graph_.padded(a.bytes);
          for (const Block& b : blocks) {
            const bool overlap = &a != &b && a.bytes > 0 && b.bytes > 0 && a.offset < b.offset + b.bytes &&
                                 b.offset < a.offset + a.bytes;
            if (overlap && !excused(a, b, i)) return std::nullopt;
          }
        }
        peak = std::max(peak, live);
      }
    }
    return peak;
  }

  const Graph& graph_;
  const Plan& plan_;
  int steps_;
};

}  // namespace

std::optional<std::int64_t> naive_peak(const Graph& graph, const Plan& plan) { return NaiveChecker(graph, plan).run(); }

}  // namespace stowage::testing
