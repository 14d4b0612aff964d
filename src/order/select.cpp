#include "order/select.h"

#include <algorithm>
#include <optional>

#include "order/critical.h"
#include "order/min_cut.h"
#include "order/reach.h"

namespace stowage {
namespace {

constexpr std::size_t kCuts = 96;     // ops whose cuts are taken
constexpr std::size_t kPairsOf = 24;  // of these, the heaviest are paired
constexpr std::int32_t kMostSelectedOps = 30'000;

class Selector {
 public:
  Selector(const OrderProblem& problem, std::int64_t limit, std::int64_t& work)
      : problem_(problem), limit_(limit), work_(work) {}

  Selection run() {
    while (work_ > 0 && !result_.contradiction && round()) {
    }
    return std::move(result_);
  }

 private:
  // Whether something was added.
  bool round() {
    const auto here = with_precedence(problem_, result_.edges);
    if (!here) return fail();  // two edges were selected that close a cycle: each broken costs next_limit
    const std::vector<std::int32_t> heavy = heaviest_cuts(here->problem);
    if (result_.contradiction) return false;
    const Reach reach(here->problem);
    work_ -= size_of(here->problem) * (here->problem.ops / 64);
    const std::size_t before = result_.edges.size();
    for (std::size_t j = 1; j < heavy.size(); ++j)
      for (std::size_t i = 0; i < j && work_ > 0 && !result_.contradiction; ++i)
        if (!reach.before(heavy[i], heavy[j]) && !reach.before(heavy[j], heavy[i])) pair(*here, heavy[i], heavy[j]);
    return result_.edges.size() > before;
  }

  std::vector<std::int32_t> heaviest_cuts(const OrderProblem& here) {
    std::vector<CriticalOp> heavy = critical_ops(here, work_);
    if (heavy.size() > kCuts) heavy.resize(kCuts);
    for (CriticalOp& v : heavy) {
      if (work_ > 0) v.bytes = std::max(v.bytes, min_cut(here, v.op, CutSide::kSmallest, work_).step_bytes);
      if (v.bytes > limit_) {
        note(v.bytes);
        fail();
      }
    }
    std::stable_sort(heavy.begin(), heavy.end(),
                     [](const CriticalOp& a, const CriticalOp& b) { return a.bytes > b.bytes; });
    if (heavy.size() > kPairsOf) heavy.resize(kPairsOf);
    std::vector<std::int32_t> ops;
    for (const CriticalOp& v : heavy) ops.push_back(v.op);
    return ops;
  }

  void pair(const Renumbered& here, std::int32_t a, std::int32_t b) {
    const std::int64_t a_first = step_after(here.problem, b, a), b_first = step_after(here.problem, a, b);
    if (a_first > limit_ && b_first > limit_) {
      note(std::min(a_first, b_first));
      fail();
    } else if (a_first > limit_) {
      note(a_first);
      result_.edges.push_back({here.ids[b], here.ids[a]});
    } else if (b_first > limit_) {
      note(b_first);
      result_.edges.push_back({here.ids[a], here.ids[b]});
    }
  }

  // The least step of `op` in an order that runs `first` before it.
  std::int64_t step_after(const OrderProblem& here, std::int32_t op, std::int32_t first) {
    CutPins pins;
    pins.in = {first};
    return min_cut(here, op, CutSide::kSmallest, work_, pins).step_bytes;
  }

  void note(std::int64_t bytes) { result_.next_limit = std::min(result_.next_limit, bytes); }
  bool fail() {
    result_.contradiction = true;
    return false;
  }

  const OrderProblem& problem_;
  std::int64_t limit_;
  std::int64_t& work_;
  Selection result_;
};

}  // namespace

Selection select(const OrderProblem& problem, std::int64_t limit, std::int64_t& work) {
  if (problem.ops == 0 || problem.ops > kMostSelectedOps) return {};
  return Selector(problem, limit, work).run();
}

}  // namespace stowage
