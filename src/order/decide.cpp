#include "order/decide.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "order/frontier.h"
#include "order/min_cut.h"
#include "order/walk.h"

namespace stowage {
namespace {

constexpr int kPatience = 400;         // states seen around one state
constexpr int kDeepestBranch = 5'000;  // nested branches; the stack holds them

using Hash = std::pair<std::uint64_t, std::uint64_t>;

// A walk that knows the hash of its state and whose ready ops are sorted.
class HashedWalk {
 public:
  explicit HashedWalk(const OrderProblem& problem) : walk_(problem), frontier_(problem, walk_) {
    std::mt19937_64 random(1);
    for (std::int32_t op = 0; op < problem.ops; ++op) key_.emplace_back(random(), random());
  }

  void run(std::int32_t op) {
    const auto touched = walk_.run(op);
    frontier_.update(op);
    frontier_.update(touched);
    toggle(op);
  }

  void undo_to(std::size_t length, const OrderProblem& problem) {
    while (walk_.order().size() > length) {
      const std::int32_t op = walk_.order().back();
      walk_.undo();
      toggle(op);
      frontier_.update(op);
      frontier_.update(problem.succs[op]);
      for (const std::int32_t w : problem.opens[op]) frontier_.update(problem.openers[w]);
      for (const std::int32_t w : problem.closes[op]) frontier_.update(problem.closers[w]);
    }
  }

  [[nodiscard]] const Walk& walk() const { return walk_; }
  [[nodiscard]] const Frontier& frontier() const { return frontier_; }
  [[nodiscard]] Hash hash() const { return hash_; }

 private:
  void toggle(std::int32_t op) {
    hash_.first ^= key_[op].first;
    hash_.second ^= key_[op].second;
  }

  Walk walk_;
  Frontier frontier_;
  std::vector<Hash> key_;
  Hash hash_{0, 0};
};

class Decider {
 public:
  Decider(const OrderProblem& problem, std::int64_t limit, std::int64_t& work)
      : problem_(problem), limit_(limit), work_(work), at_(problem) {
    for (std::size_t w = 0; w < problem.weight.size(); ++w) flipped_ |= problem.openers[w].size() > 1;
  }

  DecisionResult run() {
    DecisionResult result;
    result.decision = solve();
    if (result.decision == Decision::kYes) result.order = at_.walk().order();
    if (result.decision == Decision::kNo) result.next_limit = refused_;
    return result;
  }

 private:
  enum class Look : std::uint8_t { kValley, kDeadEnd, kUnclear };

  Decision solve() {
    for (;;) {
      run_forced();
      if (finished()) return Decision::kYes;
      if (dead_.contains(at_.hash())) return Decision::kNo;
      const std::vector<std::int32_t> next = choices();
      if (next.size() == 1) {  // nothing else can run
        at_.run(next[0]);
        continue;
      }
      const Look look = look_around();
      if (look == Look::kUnclear) break;
      if (look == Look::kDeadEnd) return remember_dead();
    }
    const std::size_t here = length();
    for (const std::int32_t op : choices()) {
      if (work_ <= 0 || depth_ >= kDeepestBranch) return Decision::kUnknown;
      at_.run(op);
      ++depth_;
      const Decision decision = solve();
      --depth_;
      if (decision != Decision::kNo) return decision;
      back_to(here);
    }
    return remember_dead();
  }

  Decision remember_dead() {
    dead_.insert(at_.hash());
    return Decision::kNo;
  }

  [[nodiscard]] bool finished() const { return length() == static_cast<std::size_t>(problem_.ops); }
  [[nodiscard]] std::size_t length() const { return at_.walk().order().size(); }
  [[nodiscard]] std::int64_t live() const { return at_.walk().live(); }

  void back_to(std::size_t length) {
    work_ -= 200 * static_cast<std::int64_t>(this->length() - length);
    at_.undo_to(length, problem_);
  }

  void run_forced() {
    while (const auto op = at_.frontier().forced(limit_)) {
      at_.run(*op);
      work_ -= 200;
    }
  }

  // The ready ops that fit, least rise of live bytes first; notes the least step of those that do not.
  std::vector<std::int32_t> choices() {
    std::vector<std::int32_t> fit;
    for (const auto& [delta, rise, op] : at_.frontier().rising()) {
      if (live() + rise <= limit_)
        fit.push_back(op);
      else
        refused_ = std::min(refused_, live() + rise);
    }
    if (!at_.frontier().falling().empty())
      refused_ = std::min(refused_, live() + at_.frontier().falling().begin()->first);
    work_ -= 20 * static_cast<std::int64_t>(at_.frontier().rising().size()) + 100;
    return fit;
  }

  // A state seen: the ops that led there from where the look started.
  struct Seen {
    std::int64_t live;
    std::int32_t serial;
    std::vector<std::int32_t> path;
    bool operator<(const Seen& other) const { return std::tie(live, serial) > std::tie(other.live, other.serial); }
  };

  Look look_around() {
    const std::size_t here = length();
    const std::int64_t level = live();
    std::set<Hash> met{at_.hash()};
    std::priority_queue<Seen> open;
    open.push({level, 0, {}});
    for (std::int32_t seen = 0; !open.empty();) {
      const Seen state = open.top();
      open.pop();
      back_to(here);
      for (const std::int32_t op : state.path) at_.run(op);
      const std::size_t there = length();
      for (const std::int32_t op : choices()) {
        if (++seen > kPatience || work_ <= 0) {
          back_to(here);
          return Look::kUnclear;
        }
        at_.run(op);
        run_forced();
        if (live() <= level || finished()) {
          commit(here);
          return Look::kValley;
        }
        if (!dead_.contains(at_.hash()) && met.insert(at_.hash()).second)
          open.push({live(),
                     seen,
                     {at_.walk().order().begin() + static_cast<std::ptrdiff_t>(here), at_.walk().order().end()}});
        back_to(there);
      }
    }
    back_to(here);
    return Look::kDeadEnd;
  }

  // Keeps, of the ops run since `here`, those of the lowest state between.
  void commit(std::size_t here) {
    if (finished()) return;
    const auto& order = at_.walk().order();
    const std::vector<std::int32_t> path(order.begin() + static_cast<std::ptrdiff_t>(here), order.end());
    std::vector<char> before(problem_.ops, 0);
    for (std::size_t i = 0; i < here; ++i) before[order[i]] = 1;
    OrderProblem between = restricted(problem_, path, before);
    if (flipped_) between = reversed(between);
    for (Csr* rows : {&between.preds, &between.succs, &between.opens, &between.closes}) rows->close_row();
    // An op without relations: the least bytes at which it can run are those of the lowest state
    between.extra.push_back(0);
    work_ -= 5 * size_of(problem_);
    const std::int32_t probe = between.ops++;
    std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
    const Cut lowest = min_cut(between, probe, flipped_ ? CutSide::kSmallest : CutSide::kLargest, unlimited);
    back_to(here);
    for (std::size_t i = 0; i < path.size(); ++i)
      if (flipped_ ? !lowest.before[path.size() - 1 - i] : lowest.before[i] != 0) at_.run(path[i]);
  }

  const OrderProblem& problem_;
  std::int64_t limit_;
  std::int64_t& work_;
  HashedWalk at_;
  bool flipped_ = false;  // time runs backwards: weights have several openers, and one closer
  int depth_ = 0;
  std::set<Hash> dead_;
  std::int64_t refused_ = std::numeric_limits<std::int64_t>::max();
};

}  // namespace

DecisionResult decide(const OrderProblem& problem, std::int64_t limit, std::int64_t& work) {
  return Decider(problem, limit, work).run();
}

}  // namespace stowage
