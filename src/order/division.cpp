#include "order/division.h"

#include <algorithm>

#include "order/critical.h"

namespace stowage {
namespace {

struct Strain {
  std::int32_t op = -1;  // the op with the largest bound, in ids of the whole
  std::int64_t bytes = 0;
};

Strain strain(const OrderProblem& problem, const std::vector<char>& before, std::int32_t v, bool first_part,
              std::span<const std::int64_t> known, std::int64_t& work) {
  std::vector<std::int32_t> members;
  std::vector<std::int64_t> known_of;
  for (std::int32_t op = 0; op < problem.ops; ++op)
    if (op != v && (before[op] != 0) == first_part) {
      members.push_back(op);
      known_of.push_back(known[op]);
    }
  if (members.empty()) return {};
  std::vector<char> done(problem.ops, 0);
  if (!first_part) {
    done = before;
    done[v] = 1;
  }
  const CriticalOp worst = most_critical_op(restricted(problem, members, done), known_of, work);
  return {members[worst.op], worst.bytes};
}

std::vector<std::int32_t> members_of(const std::vector<char>& in) {
  std::vector<std::int32_t> result;
  for (std::size_t op = 0; op < in.size(); ++op)
    if (in[op]) result.push_back(static_cast<std::int32_t>(op));
  return result;
}

// Adds to `pins` what the op `w` that strains a part of `division` asks for. False when that changes nothing.
bool pin_for(const Division& division, std::int32_t w, const std::vector<char>& best_for_w, CutPins& pins) {
  const bool wants_v = best_for_w[division.v] != 0, has = division.before[w] != 0;
  if (has && wants_v) {
    pins.out.push_back(w);
    return true;
  }
  bool changed = !has && !wants_v;
  if (changed) pins.in.push_back(w);
  for (const std::int32_t op : members_of(wants_v ? division.before : best_for_w)) {
    if (wants_v ? best_for_w[op] : division.before[op]) continue;
    (wants_v ? pins.out : pins.in).push_back(op);
    changed = true;
  }
  return changed;
}

}  // namespace

Division divide(const OrderProblem& problem, std::span<const std::int64_t> known, std::int64_t limit, DivisionRule rule,
                std::int64_t& work) {
  const std::int32_t v = most_critical_op(problem, known, work).op;
  Division best, now;
  CutPins pins;
  for (int repair = 0; repair <= rule.repairs && work > 0; ++repair) {
    Cut cut = min_cut(problem, v, rule.side, work, pins);
    if (cut.before.empty()) break;
    now = {v, std::move(cut.before), cut.step_bytes, v};
    const Strain first = strain(problem, now.before, v, true, known, work),
                 second = strain(problem, now.before, v, false, known, work);
    const Strain worst = first.bytes > second.bytes ? first : second;
    if (worst.bytes > now.bound) {
      now.bound = worst.bytes;
      now.worst = worst.op;
    }
    if (best.before.empty() || now.bound < best.bound) best = now;
    if (best.bound <= limit || worst.bytes <= limit) break;
    const Cut wish = min_cut(problem, worst.op, rule.side, work);
    if (wish.before.empty() || !pin_for(now, worst.op, wish.before, pins)) break;
  }
  return best;
}

}  // namespace stowage
