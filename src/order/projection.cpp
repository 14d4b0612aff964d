#include "order/projection.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <queue>
#include <tuple>
#include <unordered_map>

#include "order/critical.h"
#include "order/min_cut.h"
#include "order/pinch.h"
#include "order/reach.h"

namespace stowage {
namespace {

constexpr std::size_t kMost = 64;                   // ops in U: the bits of a state
constexpr std::int32_t kMostProjectedOps = 30'000;  // of the problem
constexpr std::size_t kProjectedCuts = 32;
constexpr std::size_t kHilltops = 4;  // of a stretch that join U

using State = std::uint64_t;
constexpr State bit(std::size_t i) { return State{1} << i; }

class Projector {
 public:
  Projector(const OrderProblem& problem, Ordering best, std::int64_t bound, std::vector<std::int32_t>& members,
            std::int64_t& work)
      : problem_(problem), reach_(problem), result_{std::move(best), bound}, work_(work), members_(members) {}

  BoundedOrder run(const std::function<bool()>& should_stop) {
    if (members_.empty()) add(heaviest_cut());
    while (work_ > 0 && result_.bound < result_.order.peak && !(should_stop && should_stop())) {
      const std::optional<std::vector<std::int32_t>> path = least_path();
      if (!path || result_.bound >= result_.order.peak) break;
      if (!refine(*path)) break;
    }
    return std::move(result_);
  }

 private:
  std::int32_t heaviest_cut() {
    CriticalOp most;
    const std::vector<CriticalOp> critical = critical_ops(problem_, work_);
    for (std::size_t i = 0; i < std::min(kProjectedCuts, critical.size()); ++i) {
      const std::int64_t bytes = min_cut(problem_, critical[i].op, CutSide::kSmallest, work_).step_bytes;
      if (bytes > most.bytes || most.op < 0) most = {critical[i].op, bytes};
    }
    return most.op;
  }

  bool add(std::int32_t op) {
    if (members_.size() == kMost || std::find(members_.begin(), members_.end(), op) != members_.end()) return false;
    members_.push_back(op);
    return true;
  }

  // U without `done` and v as pins: those done before v, the others after.
  Cut cut(State done, std::size_t v) {
    CutPins pins;
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (i != v) ((done & bit(i)) != 0 ? pins.in : pins.out).push_back(members_[i]);
    return min_cut(problem_, members_[v], CutSide::kSmallest, work_, pins);
  }

  // A path from ∅ to U of least bottleneck, as indices into U; raises the bound to it. None when work runs out, or when
  // every path is as bad as the best order.
  std::optional<std::vector<std::int32_t>> least_path() {
    struct Entry {
      std::int64_t level;
      int left;  // ops of U still to run: fewer first
      std::int64_t serial;
      State state;
      bool operator<(const Entry& other) const {
        return std::tie(level, left, serial) > std::tie(other.level, other.left, other.serial);
      }
    };
    std::vector<State> before(members_.size(), 0);
    for (std::size_t i = 0; i < members_.size(); ++i)
      for (std::size_t j = 0; j < members_.size(); ++j)
        if (reach_.before(members_[j], members_[i])) before[i] |= bit(j);
    const State all = members_.size() == kMost ? ~State{0} : bit(members_.size()) - 1;
    std::unordered_map<State, std::int64_t> level{{0, result_.bound}};
    std::unordered_map<State, std::int32_t> last;
    std::priority_queue<Entry> open;
    open.push({result_.bound, static_cast<int>(members_.size()), 0, 0});
    std::int64_t serial = 0;
    while (!open.empty()) {
      const Entry here = open.top();
      open.pop();
      if (here.level > level[here.state]) continue;
      result_.bound = std::max(result_.bound, here.level);  // every other way is as high
      if (here.state == all) return unwind(last, all);
      for (const Move& move : moves(here.state, here.level, before)) {
        const State next = here.state | bit(move.v);
        const std::int64_t bytes = std::max(here.level, move.bytes);
        const auto known = level.find(next);
        if (bytes >= result_.order.peak || (known != level.end() && known->second <= bytes)) continue;
        level[next] = bytes;
        last[next] = static_cast<std::int32_t>(move.v);
        open.push({bytes, here.left - 1, ++serial, next});
      }
      if (work_ <= 0) return std::nullopt;
    }
    result_.bound = result_.order.peak;
    return std::nullopt;
  }

  struct Move {
    std::size_t v;
    std::int64_t bytes;  // its step
  };

  // What U may run next; only the forced move if there is one.
  std::vector<Move> moves(State done, std::int64_t level, const std::vector<State>& before) {
    std::vector<Move> result;
    const std::int64_t now = least_live(done);
    for (std::size_t v = 0; v < members_.size() && work_ > 0; ++v) {
      if ((done & bit(v)) != 0 || (before[v] & ~done) != 0) continue;
      const Move move{v, cut(done, v).step_bytes};
      if (move.bytes <= level && least_live(done | bit(v)) <= now) return {move};
      result.push_back(move);
    }
    return result;
  }

  // The fewest live bytes while exactly `done` of U has run.
  std::int64_t least_live(State done) {
    CutPins pins;
    for (std::size_t i = 0; i < members_.size(); ++i)
      ((done & bit(i)) != 0 ? pins.in : pins.out).push_back(members_[i]);
    return min_cut(problem_, -1, CutSide::kSmallest, work_, pins).step_bytes;
  }

  static std::vector<std::int32_t> unwind(std::unordered_map<State, std::int32_t>& last, State state) {
    std::vector<std::int32_t> path;
    for (; state != 0; state &= ~bit(static_cast<std::size_t>(path.back()))) path.push_back(last[state]);
    std::reverse(path.begin(), path.end());
    return path;
  }

  // Orders all ops along the path. False when that neither meets the bound nor names an op to add.
  bool refine(const std::vector<std::int32_t>& path) {
    Ordering order;
    std::vector<char> ran(problem_.ops, 0);
    std::vector<std::int32_t> strained;
    State done = 0;
    for (const std::int32_t v : path) {
      const Cut here = cut(done, static_cast<std::size_t>(v));
      if (here.before.empty()) return false;
      stretch(here.before, ran, order, strained);
      order.ops.push_back(members_[v]);
      ran[members_[v]] = 1;
      done |= bit(static_cast<std::size_t>(v));
    }
    stretch(std::vector<char>(problem_.ops, 1), ran, order, strained);
    order.peak = peak(problem_, order.ops);
    if (order.peak < result_.order.peak) result_.order = std::move(order);
    bool added = false;
    for (const std::int32_t op : strained) added |= add(op);
    return added || result_.order.peak <= result_.bound;
  }

  // Appends the ops of `upto` that have not run; names the heaviest if they do not stay under the bound.
  void stretch(const std::vector<char>& upto, std::vector<char>& ran, Ordering& order,
               std::vector<std::int32_t>& strained) {
    std::vector<std::int32_t> members;
    for (std::int32_t op = 0; op < problem_.ops; ++op)
      if (upto[op] && !ran[op]) members.push_back(op);
    if (members.empty()) return;
    const PinchResult part = pinch(restricted(problem_, members, ran), result_.bound, {CutSide::kSmallest, 4}, work_);
    if (part.order.peak > result_.bound) {
      name_strained(restricted(problem_, members, ran), members, part, strained);
    }
    for (const std::int32_t op : part.order.ops) order.ops.push_back(members[op]);
    for (const std::int32_t op : members) ran[op] = 1;
  }

  // The op that no order along these cuts can place, and the hilltops of the one found.
  void name_strained(const OrderProblem& part, const std::vector<std::int32_t>& members, const PinchResult& found,
                     std::vector<std::int32_t>& strained) const {
    if (found.conflict >= 0) strained.push_back(members[found.conflict]);
    const std::vector<std::int64_t> bytes = steps(part, found.order.ops);
    std::vector<CriticalOp> tops;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const bool rises = i == 0 || bytes[i - 1] < bytes[i], falls = i + 1 == bytes.size() || bytes[i + 1] <= bytes[i];
      if (rises && falls && bytes[i] > result_.bound) tops.push_back({found.order.ops[i], bytes[i]});
    }
    std::stable_sort(tops.begin(), tops.end(),
                     [](const CriticalOp& a, const CriticalOp& b) { return a.bytes > b.bytes; });
    for (std::size_t i = 0; i < std::min(kHilltops, tops.size()); ++i) strained.push_back(members[tops[i].op]);
  }

  const OrderProblem& problem_;
  Reach reach_;
  BoundedOrder result_;
  std::int64_t& work_;
  std::vector<std::int32_t>& members_;  // U
};

}  // namespace

BoundedOrder project(const OrderProblem& problem, Ordering start, std::int64_t bound,
                     std::vector<std::int32_t>& members, std::int64_t& work, const std::function<bool()>& should_stop) {
  if (problem.ops == 0 || problem.ops > kMostProjectedOps) return {std::move(start), bound};
  return Projector(problem, std::move(start), bound, members, work).run(should_stop);
}

}  // namespace stowage
