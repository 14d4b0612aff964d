#include "order/pinch.h"

#include <algorithm>
#include <numeric>

#include "order/forced.h"
#include "order/greedy.h"

namespace stowage {
namespace {

constexpr int kDeepest = 2'000;  // nested divisions; the stack holds them

// A stretch of the order still to be found: a problem, and the ids of its ops in the whole.
struct Part {
  OrderProblem problem;
  std::vector<std::int32_t> ids;

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
      }
    result.problem = restricted(problem, ops, before);
    return result;
  }
};

class Pincher {
 public:
  Pincher(std::int64_t limit, DivisionRule rule, std::int64_t& work) : limit_(limit), rule_(rule), work_(work) {}

  void solve(Part part) {
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
      Division division = work_ > 0 && depth_ < kDeepest ? divide(part.problem, limit_, rule_, work_) : Division{};
      if (division.before.empty()) {
        append(part, greedy(part.problem, GreedyRule::kProgramOrder, limit_).ops);
        break;
      }
      note_conflict(part, division);
      ++depth_;
      solve(part.members(division.before, true, std::vector<char>(part.problem.ops, 0)));
      --depth_;
      order_.push_back(part.ids[division.v]);
      division.before[division.v] = 1;
      part = part.members(division.before, false, division.before);
    }
    for (auto it = ends.rbegin(); it != ends.rend(); ++it) order_.insert(order_.end(), it->begin(), it->end());
  }

  PinchResult take() { return {{std::move(order_), 0}, conflict_}; }

 private:
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
  Part whole{problem, std::vector<std::int32_t>(problem.ops)};
  std::iota(whole.ids.begin(), whole.ids.end(), 0);
  pincher.solve(std::move(whole));
  PinchResult result = pincher.take();
  result.order.peak = peak(problem, result.order.ops);
  return result;
}

}  // namespace stowage
