#include "order/pinch.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "order/forced.h"
#include "order/greedy.h"
#include "order/must_live.h"

namespace stowage {
namespace {

constexpr int kDeepestDivision = 2'000;  // nested divisions; the stack holds them

// A stretch of the order still to be found: a problem, and the ids of its ops in the whole.
struct Part {
  OrderProblem problem;
  std::vector<std::int32_t> ids;
  std::vector<std::int64_t> known;  // must-live bytes per op, of this part or one around it
  std::int32_t known_ops = 0;       // of the part that they are of

  [[nodiscard]] std::vector<char> marked(const std::vector<std::int32_t>& ops) const {
    std::vector<char> mark(problem.ops, 0);
    for (const std::int32_t op : ops) mark[op] = 1;
    return mark;
  }

  // The ops with in[op] == value, run after those with before[op] != 0.
  [[nodiscard]] Part members(const std::vector<char>& in, bool value, const std::vector<char>& before) const {
    std::vector<std::int32_t> ops;
    Part result;
    for (std::int32_t op = 0; op < problem.ops; ++op)
      if ((in[op] != 0) == value) {
        ops.push_back(op);
        result.ids.push_back(ids[op]);
        result.known.push_back(known[op]);
      }
    result.known_ops = known_ops;
    result.problem = restricted(problem, ops, before);
    return result;
  }
};

class Pincher {
 public:
  Pincher(std::int64_t limit, DivisionRule rule, std::int64_t& work) : limit_(limit), rule_(rule), work_(work) {}

  // `failed`: the ops of the smallest part around this one for which greedy orders were tried in vain.
  void solve(Part part, std::int32_t failed = std::numeric_limits<std::int32_t>::max()) {
    std::vector<std::vector<std::int32_t>> ends;  // suffixes, outermost first
    for (;;) {  // the part after v is next in the loop, the part before it is recursion
      work_ -= 100 * size_of(part.problem);
      const std::vector<std::int32_t> prefix = forced_prefix(part.problem, limit_);
      append(part, prefix);
      const std::vector<char> ran = part.marked(prefix);
      part = part.members(ran, false, ran);
      const std::vector<std::int32_t> suffix = forced_suffix(part.problem, limit_);
      ends.push_back(global(part, suffix));
      part = part.members(part.marked(suffix), false, std::vector<char>(part.problem.ops, 0));
      if (part.problem.ops == 0) break;
      if (part.problem.ops <= failed - failed / 8) {
        if (fits(part)) break;
        failed = part.problem.ops;
      }
      if (part.problem.ops <= part.known_ops / 2) look_again(part);
      Division division =
          work_ > 0 && depth_ < kDeepestDivision ? divide(part.problem, part.known, limit_, rule_, work_) : Division{};
      if (division.before.empty()) {
        append(part, greedy(part.problem, GreedyRule::kProgramOrder, limit_).ops);
        break;
      }
      note_conflict(part, division);
      ++depth_;
      solve(part.members(division.before, true, std::vector<char>(part.problem.ops, 0)), failed);
      --depth_;
      order_.push_back(part.ids[division.v]);
      division.before[division.v] = 1;
      part = part.members(division.before, false, division.before);
    }
    for (auto it = ends.rbegin(); it != ends.rend(); ++it) order_.insert(order_.end(), it->begin(), it->end());
  }

  PinchResult take() { return {{std::move(order_), 0}, conflict_}; }

 private:
  void look_again(Part& part) {
    part.known = must_live(part.problem);
    part.known_ops = part.problem.ops;
    work_ -= sweep_work(part.problem, part.problem.ops);
  }

  // Appends an order of the part that keeps to the limit, if a greedy one does.
  bool fits(const Part& part) {
    work_ -= 200 * size_of(part.problem);
    for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise}) {
      const Ordering order = greedy(part.problem, rule, limit_);
      if (order.peak > limit_) continue;
      append(part, order.ops);
      return true;
    }
    const OrderProblem back = reversed(part.problem);
    for (const GreedyRule rule : {GreedyRule::kProgramOrder, GreedyRule::kLeastRise}) {
      Ordering order = greedy(back, rule, limit_);
      if (order.peak > limit_) continue;
      std::reverse(order.ops.begin(), order.ops.end());
      for (std::int32_t& op : order.ops) op = part.problem.ops - 1 - op;
      append(part, order.ops);
      return true;
    }
    return false;
  }

  static std::vector<std::int32_t> global(const Part& part, const std::vector<std::int32_t>& local) {
    std::vector<std::int32_t> ids;
    for (const std::int32_t op : local) ids.push_back(part.ids[op]);
    return ids;
  }

  void append(const Part& part, const std::vector<std::int32_t>& local) {
    for (const std::int32_t op : local) order_.push_back(part.ids[op]);
  }

  void note_conflict(const Part& part, const Division& division) {
    if (division.bound <= std::max(limit_, conflict_bytes_)) return;
    conflict_bytes_ = division.bound;
    conflict_ = part.ids[division.worst];
    limit_ = division.bound;  // the order is as bad as this already
  }

  std::int64_t limit_;
  DivisionRule rule_;
  std::int64_t& work_;
  int depth_ = 0;
  std::vector<std::int32_t> order_;
  std::int32_t conflict_ = -1;
  std::int64_t conflict_bytes_ = 0;
};

}  // namespace

PinchResult pinch(const OrderProblem& problem, std::int64_t limit, DivisionRule rule, std::int64_t& work) {
  Pincher pincher(limit, rule, work);
  Part whole{problem, std::vector<std::int32_t>(problem.ops), std::vector<std::int64_t>(problem.ops), 2 * problem.ops};
  std::iota(whole.ids.begin(), whole.ids.end(), 0);
  pincher.solve(std::move(whole));
  PinchResult result = pincher.take();
  result.order.peak = peak(problem, result.order.ops);
  return result;
}

}  // namespace stowage
