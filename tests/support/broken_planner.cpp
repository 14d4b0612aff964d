// Three stages, each in a class of its own: steps, stretches of time, addresses. Times inside a step are ticks, as in
// the checker; but nothing is shared with it.
#include "support/broken_planner.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>

#include "support/random_graph.h"

namespace stowage::testing {
namespace {

using Kind = Step::Kind;

bool has(const std::vector<BufferId>& ids, BufferId id) { return std::ranges::find(ids, id) != ids.end(); }
bool meet(const std::vector<BufferId>& a, const std::vector<BufferId>& b) {
  return std::ranges::any_of(a, [&](BufferId id) { return has(b, id); });
}

class StepStage {
 public:
  StepStage(const Graph& graph, std::vector<Step> steps, Fault fault, std::mt19937_64& random)
      : graph_(graph), steps_(std::move(steps)), fault_(fault), random_(random) {}

  std::vector<Step> run() {
    const auto both = [](bool Op::* trait) {
      return [trait](const Op& a, const Op& b) { return a.*trait && b.*trait; };
    };
    switch (fault_) {
      case Fault::kDropsAnOp: erase(any(Kind::kRun)); break;
      case Fault::kReadsBeforeTheMaker:
        exchange([](const Op& a, const Op& b) { return meet(a.creates, b.reads); });
        break;
      case Fault::kWritesBeforeAReader:
        exchange([](const Op& a, const Op& b) { return meet(a.reads, b.writes); });
        break;
      case Fault::kExchangesRngOps: exchange(both(&Op::rng)); break;
      case Fault::kExchangesEffects: exchange(both(&Op::effect)); break;
      case Fault::kIgnoresAfter:
        exchange([this](const Op& a, const Op& b) { return std::ranges::find(b.after, id_of(a)) != b.after.end(); });
        break;
      case Fault::kRepeatsAnEffect: repeat([](const Op& op) { return op.effect; }, 1); break;
      case Fault::kRepeatsWhatRunsOnce: repeat([](const Op& op) { return op.once; }, 1); break;
      case Fault::kRepeatsAWriter: repeat([](const Op& op) { return !op.writes.empty(); }, 1); break;
      case Fault::kRepeatsAfterAWrite:
        repeat([](const Op& op) { return !op.creates.empty() && !op.reads.empty(); }, std::ssize(steps_));
        break;
      case Fault::kForgetsToRunAgain: erase(any_second_run()); break;
      case Fault::kForgetsToCopyOut: erase(any(Kind::kSwapOut)); break;
      case Fault::kCopiesBackTooSoon: delay(any(Kind::kSwapOut)); break;
      case Fault::kUsesWhatArrives: delay(any(Kind::kSwapIn)); break;
      case Fault::kChangesWhatLeaves: copy_what_is_written(); break;
      case Fault::kCopiesAResident:
        copy_out(draw(random_, 0, last()), [](const Buffer& b) { return b.resident; });
        break;
      case Fault::kCopiesOutWhatIsNotThere: copy_out(0, [](const Buffer& b) { return !b.resident; }); break;
      case Fault::kTakesWhatLeaves: copy_what_is_taken(); break;
      case Fault::kRunsWhatIsNoOp: steps_.push_back(Step::run(OpId(graph_.ops.size()))); break;
      default: break;
    }
    return std::move(steps_);
  }

 private:
  using Position = std::optional<std::int64_t>;

  [[nodiscard]] std::int64_t last() const { return std::ssize(steps_) - 1; }
  Step& step(std::int64_t i) { return steps_[static_cast<std::size_t>(i)]; }
  const Op& op(std::int64_t i) { return graph_.op(step(i).op); }
  [[nodiscard]] OpId id_of(const Op& op) const { return OpId(static_cast<std::int32_t>(&op - graph_.ops.data())); }

  Position one_of(const std::vector<std::int64_t>& positions) {
    if (positions.empty()) return std::nullopt;
    return positions[static_cast<std::size_t>(draw(random_, 0, std::ssize(positions) - 1))];
  }

  Position any(Kind kind) {
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i <= last(); ++i)
      if (step(i).kind == kind) found.push_back(i);
    return one_of(found);
  }

  Position any_second_run() {
    std::vector<std::int64_t> found;
    std::vector<bool> ran(graph_.ops.size(), false);
    for (std::int64_t i = 0; i <= last(); ++i) {
      if (step(i).kind != Kind::kRun) continue;
      if (ran[step(i).op.index()]) found.push_back(i);
      ran[step(i).op.index()] = true;
    }
    return one_of(found);
  }

  void insert(std::int64_t at, const Step& fresh) {
    for (Step& s : steps_) s.until += s.until > at;
    steps_.insert(steps_.begin() + at, fresh);
  }

  void erase(Position at) {
    if (!at) return;
    steps_.erase(steps_.begin() + *at);
    for (Step& s : steps_) s.until -= s.until > *at;
  }

  // Two runs, the first of which must come first, change places.
  void exchange(const std::function<bool(const Op&, const Op&)>& ordered) {
    std::vector<std::int64_t> firsts;
    const auto second = [&](std::int64_t i) -> Position {
      for (std::int64_t j = i + 1; j <= last(); ++j)
        if (step(j).kind == Kind::kRun && ordered(op(i), op(j))) return j;
      return std::nullopt;
    };
    for (std::int64_t i = 0; i <= last(); ++i)
      if (step(i).kind == Kind::kRun && second(i)) firsts.push_back(i);
    if (const Position i = one_of(firsts)) std::swap(step(*i), step(*second(*i)));
  }

  void repeat(const std::function<bool(const Op&)>& which, std::int64_t later) {
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i <= last(); ++i)
      if (step(i).kind == Kind::kRun && which(op(i))) found.push_back(i);
    if (const Position i = one_of(found)) insert(std::min(*i + later, last() + 1), Step{step(*i)});
  }

  // The copy takes until the end of the step.
  void delay(Position copy) {
    if (copy) step(*copy).until = static_cast<std::int32_t>(last() + 1);
  }

  // A copy out just before a write, which does not wait for it.
  void copy_what_is_written() {
    std::vector<std::int64_t> found;
    const auto target = [&](std::int64_t i) {
      for (const BufferId b : op(i).writes)
        if (!graph_.buffer(b).resident) return b;
      return BufferId();
    };
    for (std::int64_t i = 0; i <= last(); ++i)
      if (step(i).kind == Kind::kRun && target(i).valid()) found.push_back(i);
    const Position i = one_of(found);
    if (i) insert(*i, {Kind::kSwapOut, {}, target(*i), static_cast<std::int32_t>(*i + 2)});
  }

  // A copy out just before another buffer takes the place.
  void copy_what_is_taken() {
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i <= last(); ++i)
      if (step(i).kind == Kind::kRun && !op(i).takeover.empty()) found.push_back(i);
    const Position i = one_of(found);
    if (i) insert(*i, {Kind::kSwapOut, {}, op(*i).takeover[0].read, static_cast<std::int32_t>(*i + 2)});
  }

  void copy_out(std::int64_t at, const std::function<bool(const Buffer&)>& which) {
    const auto found = std::ranges::find_if(graph_.buffers, which);
    if (found == graph_.buffers.end()) return;
    insert(at, {Kind::kSwapOut,
                {},
                BufferId(static_cast<std::int32_t>(found - graph_.buffers.begin())),
                static_cast<std::int32_t>(at + 1)});
  }

  const Graph& graph_;
  std::vector<Step> steps_;
  Fault fault_;
  std::mt19937_64& random_;
};

// When each buffer must be on the device: from what gives it content to its last use before it gets content again.
class TimeStage {
 public:
  TimeStage(const Graph& graph, const std::vector<Step>& steps, Fault fault, std::mt19937_64& random)
      : graph_(graph), steps_(steps), fault_(fault), random_(random), open_(graph.buffers.size(), -1) {}

  std::vector<Placement> run() {
    for (std::int32_t i = 0; i < std::ssize(steps_); ++i) add_step(i);
    for (std::size_t b = 0; b < open_.size(); ++b)
      if (graph_.buffers[b].returned && fault_ != Fault::kReturnedEndsAtItsLastUse)
        use(BufferId(b), static_cast<std::int32_t>(std::ssize(steps_)));
    spoil();
    return std::move(stretches_);
  }

 private:
  void add_step(std::int32_t i) {
    const Step& step = steps_[static_cast<std::size_t>(i)];
    if (step.kind == Kind::kSwapOut)
      return use(step.buffer, fault_ == Fault::kLeavesDuringTheCopy ? i + 1 : step.until);
    if (step.kind == Kind::kSwapIn) {
      begin(step.buffer, i);
      return use(step.buffer, step.until);
    }
    if (step.op.index() >= graph_.ops.size()) return;
    const Op& op = graph_.op(step.op);
    if (fault_ != Fault::kReadsAreNoUses)
      for (const BufferId b : op.reads) use(b, i + 1);
    if (fault_ != Fault::kWritesAreNoUses)
      for (const BufferId b : op.writes) use(b, i + 1);
    for (const BufferId b : op.creates) begin(b, i);
  }

  void begin(BufferId b, std::int32_t step) {
    if (graph_.buffer(b).resident) return;
    if (fault_ == Fault::kStaysWhereItWas && open_[b.index()] >= 0) return use(b, step + 1);
    open_[b.index()] = static_cast<std::int32_t>(stretches_.size());
    stretches_.push_back({b, step, step + 1, 0});
  }

  void use(BufferId b, std::int32_t until) {
    if (open_[b.index()] < 0) return;
    std::int32_t& to = stretches_[static_cast<std::size_t>(open_[b.index()])].to;
    to = std::max(to, until);
  }

  void spoil() {
    if (stretches_.empty()) return;
    const auto one = stretches_.begin() + draw(random_, 0, std::ssize(stretches_) - 1);
    if (fault_ == Fault::kEndsOneEarly) --one->to;
    if (fault_ == Fault::kStartsOneLate) ++one->from;
    if (fault_ == Fault::kStartsOneEarly) --one->from;
    if (fault_ == Fault::kPlacesItTwice) stretches_.push_back(*one);
    if (fault_ == Fault::kForgetsAPlacement) stretches_.erase(one);
    if (fault_ == Fault::kPlacesAResident && graph_.buffers[0].resident) stretches_.push_back({BufferId(0), 0, 1, 0});
  }

  const Graph& graph_;
  const std::vector<Step>& steps_;
  Fault fault_;
  std::mt19937_64& random_;
  std::vector<std::int32_t> open_;  // the latest stretch of each buffer
  std::vector<Placement> stretches_;
};

// First fit, in the order in which things begin.
class AddressStage {
 public:
  AddressStage(const Graph& graph, Plan& plan, Fault fault, std::mt19937_64& random)
      : graph_(graph), plan_(plan), fault_(fault), random_(random), taken_(plan.placements.size(), false) {}

  void run() {
    for (std::int32_t i = 0; i < std::ssize(plan_.steps); ++i) {
      const Step& step = plan_.steps[static_cast<std::size_t>(i)];
      const Op* const op =
          step.kind == Kind::kRun && step.op.index() < graph_.ops.size() ? &graph_.op(step.op) : nullptr;
      for (std::size_t p = 0; p < plan_.placements.size(); ++p)
        if (plan_.placements[p].from == i) add_buffer(p, op, i);
      if (op != nullptr) add_scratch(*op, step.op, i);
    }
    plan_.arena_bytes =
        fault_ == Fault::kArenaOfLiveBytes ? height_ / 2 : height_ - (fault_ == Fault::kArenaOneShort ? 1 : 0);
    spoil();
  }

 private:
  struct Rectangle {
    std::int64_t start, end, offset, bytes;
  };
  static constexpr std::int64_t kTicks = std::int64_t{1} << 32;

  void add_buffer(std::size_t p, const Op* op, std::int32_t step) {
    Placement& placement = plan_.placements[p];
    const std::int64_t bytes = graph_.buffer(placement.buffer).bytes;
    std::int64_t start = step * kTicks, end = placement.to * kTicks;
    if (op != nullptr) start += birth(*op, placement.buffer);
    if (fault_ == Fault::kLaysOverTheLastStep) end -= kTicks;
    if (const auto read = op != nullptr ? reused_input(p, *op, step) : std::nullopt) {
      placement.offset = plan_.placements[*read].offset + (fault_ == Fault::kTakesBesideIt ? graph_.align : 0);
      start = (step + 1) * kTicks;
      height_ = std::max(height_, placement.offset + bytes);
    } else {
      placement.offset = lowest(start, end, bytes);
    }
    placed_.push_back({start, end, placement.offset, bytes});
  }

  [[nodiscard]] std::int64_t birth(const Op& op, BufferId buffer) const {
    const auto at = std::ranges::find(op.creates, buffer) - op.creates.begin();
    if (at == std::ssize(op.creates)) return 0;
    return fault_ == Fault::kIgnoresTicksOfBirth ? op.ticks - 1 : born_tick(op, static_cast<std::size_t>(at));
  }

  // The placement whose address this one takes.
  std::optional<std::size_t> reused_input(std::size_t p, const Op& op, std::int32_t step) {
    const Placement& created = plan_.placements[p];
    for (std::size_t r = 0; r < plan_.placements.size(); ++r) {
      const Placement& read = plan_.placements[r];
      if (read.from >= step || read.to <= step || graph_.buffer(created.buffer).bytes == 0) continue;
      if (graph_.buffer(created.buffer).bytes > graph_.buffer(read.buffer).bytes) continue;
      const auto is_it = [&](const ReusePair& t) { return t.read == read.buffer && t.created == created.buffer; };
      if (std::ranges::none_of(op.takeover, is_it) &&
          !(fault_ == Fault::kTakesWithoutAPair && has(op.reads, read.buffer)))
        continue;
      if (read.to != step + 1 && fault_ != Fault::kTakesWhatIsReadLater) continue;
      if (taken_[r] && fault_ != Fault::kTakesOneTwice) continue;
      if (leaves(read.buffer, step) && fault_ != Fault::kTakesWhatLeaves) continue;
      if (graph_.buffer(read.buffer).returned && read.to == std::ssize(plan_.steps) &&
          fault_ != Fault::kTakesWhatIsReturned)
        continue;
      if (fault_ != Fault::kTakesWhatIsReadLater &&
          !is_free((step + 1) * kTicks, created.to * kTicks, read.offset, graph_.buffer(created.buffer).bytes))
        continue;
      taken_[r] = true;
      return r;
    }
    return std::nullopt;
  }

  [[nodiscard]] bool leaves(BufferId buffer, std::int32_t step) const {
    for (std::int32_t i = 0; i < step; ++i) {
      const Step& copy = plan_.steps[static_cast<std::size_t>(i)];
      if (copy.kind == Kind::kSwapOut && copy.buffer == buffer && copy.until > step) return true;
    }
    return false;
  }

  void add_scratch(const Op& op, OpId id, std::int32_t step) {
    const auto before = plan_.steps.begin() + step;
    const bool again =
        std::any_of(plan_.steps.begin(), before, [&](const Step& s) { return s.kind == Kind::kRun && s.op == id; });
    if (again && fault_ == Fault::kScratchOfFirstRunsOnly) return;
    for (std::int32_t i = 0; i < std::ssize(op.scratch); ++i) {
      const Scratch& scratch = op.scratch[static_cast<std::size_t>(i)];
      const std::int64_t start = step * kTicks + scratch.from,
                         end = fault_ == Fault::kCutsScratchShort ? start + 1 : step * kTicks + scratch.to;
      const std::int64_t offset = fault_ == Fault::kLaysOverScratch ? 0 : lowest(start, end, scratch.bytes);
      height_ = std::max(height_, offset + scratch.bytes);
      plan_.scratch.push_back({step, i, offset});
      if (fault_ == Fault::kScratchTwice) plan_.scratch.push_back({step, i, offset});
      placed_.push_back({start, end, offset, scratch.bytes});
    }
  }

  [[nodiscard]] std::int64_t width(std::int64_t bytes) const {
    return fault_ == Fault::kCountsHalfTheBytes ? bytes / 2 : bytes;
  }

  [[nodiscard]] bool is_free(std::int64_t start, std::int64_t end, std::int64_t offset, std::int64_t bytes) const {
    return std::ranges::none_of(placed_, [&](const Rectangle& r) {
      return r.start < end && start < r.end && r.offset < offset + width(bytes) && offset < r.offset + width(r.bytes);
    });
  }

  std::int64_t lowest(std::int64_t start, std::int64_t end, std::int64_t bytes) {
    std::vector<std::int64_t> offsets{0};
    for (const Rectangle& r : placed_) {
      const std::int64_t above = r.offset + width(r.bytes);
      offsets.push_back(fault_ == Fault::kPacksWithoutPadding ? above : graph_.padded(above));
    }
    std::ranges::sort(offsets);
    const std::int64_t offset =
        *std::ranges::find_if(offsets, [&](std::int64_t o) { return is_free(start, end, o, bytes); });
    height_ = std::max(height_, offset + bytes);
    return offset;
  }

  void spoil() {
    if (plan_.placements.empty()) return;
    Placement& a = plan_.placements[static_cast<std::size_t>(draw(random_, 0, std::ssize(plan_.placements) - 1))];
    Placement& b = plan_.placements[static_cast<std::size_t>(draw(random_, 0, std::ssize(plan_.placements) - 1))];
    if (fault_ == Fault::kBeginsBelowZero) a.offset -= graph_.align;
    if (fault_ == Fault::kExchangesAddresses) std::swap(a.offset, b.offset);
    if (fault_ == Fault::kExchangesBuffers) std::swap(a.buffer, b.buffer);
  }

  const Graph& graph_;
  Plan& plan_;
  Fault fault_;
  std::mt19937_64& random_;
  std::vector<bool> taken_;  // per placement
  std::vector<Rectangle> placed_;
  std::int64_t height_ = 0;
};

// The last thing that a planner does is to write the steps down.
void forget_to_copy_back(Plan& plan) {
  const auto found = std::ranges::find(plan.steps, Kind::kSwapIn, &Step::kind);
  if (found == plan.steps.end()) return;
  const auto at = static_cast<std::int32_t>(found - plan.steps.begin());
  plan.steps.erase(found);
  for (Step& step : plan.steps) step.until -= step.until > at;
  for (Placement& placement : plan.placements) {
    placement.from -= placement.from > at;
    placement.to -= placement.to > at;
  }
  for (ScratchPlacement& scratch : plan.scratch) scratch.step -= scratch.step > at;
}

// A copy back and the steps up to the next use of the buffer change places.
void copy_back_late(const Graph& graph, Plan& plan) {
  const auto in = std::ranges::find(plan.steps, Kind::kSwapIn, &Step::kind);
  const auto use = std::find_if(in, plan.steps.end(), [&](const Step& step) {
    return step.kind == Kind::kRun &&
           (has(graph.op(step.op).reads, in->buffer) || has(graph.op(step.op).writes, in->buffer));
  });
  if (use == plan.steps.end()) return;
  const auto from = static_cast<std::int32_t>(in - plan.steps.begin()),
             to = static_cast<std::int32_t>(use - plan.steps.begin());
  const auto moved = [&](std::int32_t step) { return step == from ? to : step > from && step <= to ? step - 1 : step; };
  std::rotate(in, in + 1, use + 1);
  plan.steps[static_cast<std::size_t>(to)].until = std::max(plan.steps[static_cast<std::size_t>(to)].until, to + 1);
  for (Placement& placement : plan.placements) {
    placement.from = moved(placement.from);
    placement.to = std::max(moved(placement.to - 1), placement.from) + 1;
  }
  for (ScratchPlacement& scratch : plan.scratch) scratch.step = moved(scratch.step);
}

constexpr std::array<std::string_view, static_cast<std::size_t>(Fault::kCount)> kFaultNames = {
    "none",
    "drops an op",
    "reads before the maker",
    "writes before a reader",
    "exchanges rng ops",
    "exchanges effects",
    "ignores after",
    "repeats an effect",
    "repeats what runs once",
    "repeats a writer",
    "repeats after a write",
    "forgets to run again",
    "forgets to copy back",
    "forgets to copy out",
    "copies back late",
    "copies back too soon",
    "uses what arrives",
    "changes what leaves",
    "copies a resident",
    "copies out what is not there",
    "runs what is no op",
    "ends one early",
    "starts one late",
    "starts one early",
    "returned ends at its last use",
    "reads are no uses",
    "writes are no uses",
    "leaves during the copy",
    "stays where it was",
    "forgets a placement",
    "places it twice",
    "places a resident",
    "packs without padding",
    "counts half the bytes",
    "lays over the last step",
    "lays over scratch",
    "ignores ticks of birth",
    "cuts scratch short",
    "arena of live bytes",
    "arena one short",
    "begins below zero",
    "exchanges addresses",
    "exchanges buffers",
    "scratch of first runs only",
    "scratch twice",
    "takes what is read later",
    "takes without a pair",
    "takes one twice",
    "takes beside it",
    "takes what leaves",
    "takes what is returned",
    "names another graph",
    "aligns otherwise"};

}  // namespace

std::string_view name_of(Fault fault) { return kFaultNames[static_cast<std::size_t>(fault)]; }

Plan broken_plan(const Graph& graph, std::vector<Step> steps, Fault fault, std::mt19937_64& random) {
  Plan plan;
  plan.graph_sha256 = fault == Fault::kNamesAnotherGraph ? std::string(64, '0') : graph.sha256;
  plan.align = fault == Fault::kAlignsOtherwise ? 2 * graph.align : graph.align;
  plan.steps = StepStage(graph, std::move(steps), fault, random).run();
  plan.placements = TimeStage(graph, plan.steps, fault, random).run();
  AddressStage(graph, plan, fault, random).run();
  if (fault == Fault::kForgetsToCopyBack) forget_to_copy_back(plan);
  if (fault == Fault::kCopiesBackLate) copy_back_late(graph, plan);
  return plan;
}

}  // namespace stowage::testing
