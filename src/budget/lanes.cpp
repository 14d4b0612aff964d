#include "budget/lanes.h"

#include <algorithm>

#include "base/capped.h"

namespace stowage::budget {

void Lane::take(std::int64_t from, std::int64_t to) {
  const auto at =
      std::lower_bound(busy_.begin(), busy_.end(), from, [](const Busy& b, std::int64_t t) { return b.from < t; });
  busy_.insert(at, {from, to});
}

std::int64_t Lane::earliest(std::int64_t from, std::int64_t duration) const {
  auto next =
      std::lower_bound(busy_.begin(), busy_.end(), from, [](const Busy& b, std::int64_t t) { return b.from < t; });
  if (next != busy_.begin()) from = std::max(from, (next - 1)->to);
  for (; next != busy_.end() && next->from < capped_sum(from, duration); ++next) from = std::max(from, next->to);
  return from;
}

std::int64_t Lane::latest(std::int64_t to, std::int64_t duration) const {
  auto next =
      std::lower_bound(busy_.begin(), busy_.end(), to, [](const Busy& b, std::int64_t t) { return b.from < t; });
  for (; next != busy_.begin() && (next - 1)->to > capped_sum(to, -duration); --next)
    to = std::min(to, (next - 1)->from);
  return capped_sum(to, -duration);
}

Lanes::Lanes(const Ledger& ledger, Link link) : ledger_(ledger), link_(link) {
  if (!link.there()) return;
  struct Copy {
    std::int64_t issued, duration;
    std::int32_t swap;
  };
  of_swap_.resize(ledger.sequence().swaps.size());
  std::vector<Copy> out, in;
  std::vector<Gap> gaps;
  for (const Swap& swap : ledger.sequence().swaps) {
    ledger.gaps(swap.buffer, gaps);
    const std::int64_t duration = link.duration(ledger.recipes().bytes[swap.buffer]);
    for (const Gap& gap : gaps) {
      if (gap.swap < 0 || &ledger.sequence().swaps[gap.swap] != &swap) continue;
      if (!gap.host)
        out.push_back(
            {ledger.start(swap.out_at >= 0 ? ledger.position(swap.out_at) : gap.from + 1), duration, gap.swap});
      in.push_back({ledger.start(gap.back), duration, gap.swap});
    }
  }
  for (auto [copies, lane] : {std::pair{&out, &out_}, {&in, &in_}}) {
    std::stable_sort(copies->begin(), copies->end(), [](const Copy& a, const Copy& b) { return a.issued < b.issued; });
    std::int64_t free = 0;
    for (const Copy& copy : *copies) {
      const std::int64_t from = std::max(free, copy.issued);
      lane->take(from, free = capped_sum(from, copy.duration));
      Times& times = of_swap_[static_cast<std::size_t>(copy.swap)];
      (lane == &out_ ? times.out_from : times.in_from) = from;
      (lane == &out_ ? times.out_to : times.in_to) = free;
    }
  }
}

Lanes::Times Lanes::times(const Gap& gap) const {
  const std::int64_t duration = link_.duration(ledger_.recipes().bytes[gap.buffer]);
  Times t;
  t.out_from = gap.host ? ledger_.start(gap.from + 1) : out_.earliest(ledger_.start(gap.made + 1), duration);
  t.out_to = gap.host ? t.out_from : capped_sum(t.out_from, duration);
  t.in_from = in_.latest(ledger_.start(gap.to), duration);
  t.in_to = capped_sum(t.in_from, duration);
  return t;
}

std::optional<Move> Lanes::swap(const Gap& gap, std::int32_t at) const {
  if (!link_.there() || gap.swap >= 0 || gap.to - gap.from < 2) return std::nullopt;
  if (link_.duration(ledger_.recipes().bytes[gap.buffer]) >= kMostCopyTime) return std::nullopt;
  const Times t = times(gap);
  std::int32_t gone = std::max(gap.from + 1, ledger_.at_time(t.out_to));
  std::int32_t back = std::min(gap.to, ledger_.at_time(t.in_from + 1) - 1);
  if (at >= 0) {
    gone = std::min(gone, at);
    back = std::max(back, at + 1);
  }
  if (gone >= back || back >= ledger_.size()) return std::nullopt;
  Move move;
  const std::int64_t late_out = std::max<std::int64_t>(0, t.out_to - ledger_.start(gone));
  const std::int64_t late_in = std::max<std::int64_t>(
      0, capped_sum(std::max(t.in_from, ledger_.start(back)), t.in_to - t.in_from) - ledger_.start(gap.to));
  move.cost = late_out + late_in;
  const std::int32_t issue =
      std::clamp(ledger_.at_time(t.out_from + 1) - 1, gap.made + 1, std::max(gap.made + 1, gone - 1));
  move.at = gone;
  move.buffers.push_back(gap.buffer);
  move.changes.push_back(1);
  move.swap = Swap{gap.buffer, ledger_.node(issue), ledger_.node(gone), ledger_.node(back)};
  return move;
}

std::optional<Move> Lanes::widen(const Gap& gap, std::int32_t at) const {
  if (gap.swap < 0 || at <= gap.from || at >= gap.to || (gap.gone <= at && at < gap.back)) return std::nullopt;
  const Swap& swap = ledger_.sequence().swaps[gap.swap];
  const Times& t = of_swap_[static_cast<std::size_t>(gap.swap)];
  const std::int32_t gone = std::min(gap.gone, at), back = std::max(gap.back, at + 1);
  if (back >= ledger_.size()) return std::nullopt;
  const auto late_out = [&](std::int32_t by) {
    return gap.host ? 0 : std::max<std::int64_t>(0, t.out_to - ledger_.start(by));
  };
  const auto late_in = [&](std::int32_t from) {
    const std::int64_t done = capped_sum(std::max(t.in_from, ledger_.start(from)), t.in_to - t.in_from);
    return std::max<std::int64_t>(0, done - ledger_.start(gap.to));
  };
  Move move;
  move.at = gone;
  move.cost = late_out(gone) - late_out(gap.gone) + late_in(back) - late_in(gap.back);
  move.buffers.push_back(gap.buffer);
  move.changes.push_back(1);
  move.swap = Swap{gap.buffer, swap.out_at, ledger_.node(gone), ledger_.node(back)};
  move.widens = gap.swap;
  return move;
}

void Lanes::add(const Move& move, const Gap& gap) {
  const Times t = times(gap);
  if (!gap.host) out_.take(t.out_from, t.out_to);
  const std::int64_t from = std::max(t.in_from, ledger_.start(ledger_.position(move.swap->in_from)));
  in_.take(from, capped_sum(from, t.in_to - t.in_from));
}

}  // namespace stowage::budget
