#include "budget/ledger.h"

#include <algorithm>

#include "base/capped.h"
#include "base/concat.h"
#include "stowage/error.h"

namespace stowage::budget {

Ledger::Ledger(const Recipes& recipes, const Sequence& sequence)
    : recipes_(&recipes),
      sequence_(&sequence),
      line_(sequence.line),
      position_(sequence.op.size(), -1),
      first_run_(recipes.ops, -1),
      events_(recipes.buffers),
      swaps_of_(recipes.buffers),
      out_(sequence.line.size(), 0),
      dropped_(sequence.swaps.size(), 0),
      live_({}) {
  start_.push_back(0);
  for (std::int32_t at = 0; at < size(); ++at) {
    position_[line_[at]] = at;
    if (!repeat(at)) first_run_[op(at)] = at;
    start_.push_back(capped_sum(start_.back(), recipes.cost[op(at)]));
  }
  for (std::size_t s = 0; s < sequence.swaps.size(); ++s)
    swaps_of_[sequence.swaps[s].buffer].push_back(static_cast<std::int32_t>(s));
  collect_events();
  for (std::int32_t at = 0; at < size(); ++at) added_.push_back(best_at(at).added);
  std::vector<std::int64_t> change(line_.size() + 1, 0);
  for (std::int32_t b = 0; b < recipes.buffers; ++b) {
    gaps(b, scratch_);
    for (const Gap& gap : scratch_) {
      const std::int32_t end = std::min(gap.to + 1, size());
      change[gap.from + 1] += recipes.bytes[b];
      change[end] -= recipes.bytes[b];
      if (gap.swap >= 0) {
        change[gap.gone] -= recipes.bytes[b];
        change[gap.back] += recipes.bytes[b];
      }
    }
  }
  std::int64_t now = 0;
  std::vector<std::int64_t> live = added_;
  for (std::size_t at = 0; at < line_.size(); ++at) live[at] += now += change[at];
  live_ = RangeMax(live);
}

bool Ledger::ends(std::int32_t buffer, std::int32_t position) const {
  const std::vector<Event>& events = events_[buffer];
  const auto next = std::upper_bound(events.begin(), events.end(), position,
                                     [](std::int32_t at, const Event& e) { return at < e.at; });
  return next != events.end() ? next->creates() : recipes_->returned[buffer] == 0;
}

const ReuseTable::Best& Ledger::best_at(std::int32_t position, std::int32_t flipped) const {
  std::vector<char> ended;
  for (const ReusePair& pair : recipes_->reuse.pairs(op(position)))
    ended.push_back(ends(pair.read.value, position) != (pair.read.value == flipped) ? 1 : 0);
  return recipes_->reuse.best(op(position), ended);
}

std::int64_t Ledger::gain(std::int32_t position, std::int32_t buffer) const {
  const std::vector<ReusePair>& pairs = recipes_->reuse.pairs(op(position));
  if (std::none_of(pairs.begin(), pairs.end(), [&](const ReusePair& pair) { return pair.read.value == buffer; }))
    return 0;
  return added_[position] - best_at(position, buffer).added;
}

void Ledger::refresh(std::int32_t position) {
  const std::int64_t now = out_[position] ? 0 : best_at(position).added;
  live_.add(position, position + 1, now - added_[position]);
  added_[position] = now;
}

void Ledger::refresh_uses(std::int32_t buffer, std::size_t first, std::size_t last) {
  for (std::size_t i = first; i < last; ++i) {
    const std::int32_t at = events_[buffer][i].at;
    if (!recipes_->reuse.pairs(op(at)).empty()) refresh(at);
  }
}

void Ledger::collect_events() {
  std::vector<std::int32_t> held(recipes_->buffers, 0);
  for (std::int32_t at = 0; at < size(); ++at) {
    const std::int32_t k = op(at);
    for (const Need& need : recipes_->needs[k]) {
      if (held[need.buffer] != need.version) {
        throw Error(concat("budget: op ", k, " at position ", at, " finds version ", held[need.buffer], " of buffer ",
                           need.buffer, ", not ", need.version));
      }
      const std::int32_t after = need.version + (need.written ? 1 : 0);
      events_[need.buffer].push_back({at, need.version, after});
      held[need.buffer] = after;
    }
    for (const std::int32_t b : recipes_->creates[k]) {
      events_[b].push_back({at, 0, 1});
      held[b] = 1;
    }
  }
}

bool Ledger::gap_after(std::int32_t buffer, std::size_t i, Gap& gap) const {
  const std::vector<Event>& events = events_[buffer];
  gap = Gap{buffer, events[i].at, size(), events[i].after};
  if (i + 1 < events.size()) {
    if (events[i + 1].creates()) return false;
    gap.to = events[i + 1].at;
  } else if (!recipes_->returned[buffer]) {
    return false;
  }
  for (const std::int32_t s : swaps_of_[buffer]) {
    if (dropped_[s]) continue;
    const std::int32_t gone = position(sequence_->swaps[s].out_by), back = position(sequence_->swaps[s].in_from);
    if (gone <= gap.from || back > gap.to || gone >= back) continue;
    gap.swap = s;
    gap.gone = gone;
    gap.back = back;
  }
  return true;
}

void Ledger::gaps(std::int32_t buffer, std::vector<Gap>& out) const {
  out.clear();
  const std::vector<Event>& events = events_[buffer];
  std::int32_t host = 0, made = 0;
  Gap gap;
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].before != events[i].after) made = events[i].at;
    if (!gap_after(buffer, i, gap)) continue;
    gap.made = made;
    gap.host = host == gap.version;
    if (gap.swap >= 0) host = gap.version;
    out.push_back(gap);
  }
}

void Ledger::count(std::int32_t buffer, std::size_t first, std::size_t last, std::int64_t sign) {
  const std::int64_t bytes = sign * recipes_->bytes[buffer];
  if (bytes == 0) return;
  Gap gap;
  for (std::size_t i = first; i < last; ++i) {
    if (!gap_after(buffer, i, gap)) continue;
    const std::int32_t end = std::min(gap.to + 1, size());
    if (gap.swap < 0) {
      live_.add(gap.from + 1, end, bytes);
    } else {
      live_.add(gap.from + 1, gap.gone, bytes);
      live_.add(gap.back, end, bytes);
    }
  }
}

std::int32_t Ledger::at_time(std::int64_t time) const {
  return static_cast<std::int32_t>(std::lower_bound(start_.begin(), start_.end(), time) - start_.begin());
}

std::vector<std::int32_t> Ledger::touched(const std::vector<std::int32_t>& positions) const {
  std::vector<std::int32_t> buffers;
  for (const std::int32_t at : positions) {
    for (const Need& need : recipes_->needs[op(at)]) buffers.push_back(need.buffer);
    buffers.insert(buffers.end(), recipes_->creates[op(at)].begin(), recipes_->creates[op(at)].end());
  }
  std::sort(buffers.begin(), buffers.end());
  buffers.erase(std::unique(buffers.begin(), buffers.end()), buffers.end());
  return buffers;
}

void Ledger::take_out(const std::vector<std::int32_t>& positions) {
  last_ = {positions, -1, {}};
  const auto goes = [&](const Event& e) {
    return std::find(positions.begin(), positions.end(), e.at) != positions.end();
  };
  for (const std::int32_t b : touched(positions)) {
    std::vector<Event>& events = events_[b];
    const auto place = [&](std::int32_t at) {
      return std::lower_bound(events.begin(), events.end(), at,
                              [](const Event& e, std::int32_t p) { return e.at < p; }) -
             events.begin();
    };
    auto from = place(positions[0]), to = from;  // the events that go, the one before them, and what lies between them
    for (const std::int32_t at : positions) {
      from = std::min(from, place(at));
      to = std::max(to, place(at + 1));
    }
    from = std::max<std::ptrdiff_t>(0, from - 1);
    count(b, from, to, -1);
    last_.removed.push_back({b, static_cast<std::size_t>(from), 0, {events.begin() + from, events.begin() + to}});
    to = events.erase(std::remove_if(events.begin() + from, events.begin() + to, goes), events.begin() + to) -
         events.begin();
    last_.removed.back().last = static_cast<std::size_t>(to);
    count(b, from, to, 1);
  }
  for (const std::int32_t at : positions) {
    out_[at] = 1;
    refresh(at);
  }
  for (const Removed& r : last_.removed) refresh_uses(r.buffer, r.first, r.last);
}

void Ledger::drop_swap(std::int32_t swap) {
  last_ = {{}, swap, {}};
  const std::int32_t b = sequence_->swaps[swap].buffer;
  count(b, -1);
  dropped_[swap] = 1;
  count(b, 1);
}

void Ledger::undo() {
  if (last_.swap >= 0) {
    const std::int32_t b = sequence_->swaps[last_.swap].buffer;
    count(b, -1);
    dropped_[last_.swap] = 0;
    count(b, 1);
  }
  for (Removed& r : last_.removed) {
    std::vector<Event>& events = events_[r.buffer];
    count(r.buffer, r.first, r.last, -1);
    const auto rest = events.erase(events.begin() + static_cast<std::ptrdiff_t>(r.first),
                                   events.begin() + static_cast<std::ptrdiff_t>(r.last));
    events.insert(rest, r.events.begin(), r.events.end());
    r.last = r.first + r.events.size();
    count(r.buffer, r.first, r.last, 1);
  }
  for (const std::int32_t at : last_.positions) {
    out_[at] = 0;
    refresh(at);
  }
  for (const Removed& r : last_.removed) refresh_uses(r.buffer, r.first, r.last);
  last_ = {};
}

Sequence Ledger::result() const {
  Sequence result;
  result.op = sequence_->op;
  result.repeat = sequence_->repeat;
  std::vector<Node> next(line_.size() + 1, kEnd);  // the first run at or after a position that is still there
  for (std::int32_t at = size() - 1; at >= 0; --at) next[at] = out_[at] ? next[at + 1] : line_[at];
  for (std::int32_t at = 0; at < size(); ++at)
    if (!out_[at]) result.line.push_back(line_[at]);
  std::vector<char> used(sequence_->swaps.size(), 0);
  std::vector<Gap> found;
  for (std::int32_t b = 0; b < recipes_->buffers; ++b) {
    if (swaps_of_[b].empty()) continue;
    gaps(b, found);
    for (const Gap& gap : found)
      if (gap.swap >= 0) used[gap.swap] = 1;
  }
  for (std::size_t s = 0; s < sequence_->swaps.size(); ++s) {
    if (!used[s]) continue;
    Swap swap = sequence_->swaps[s];
    swap.out_by = next[position(swap.out_by)];
    swap.in_from = next[position(swap.in_from)];
    if (swap.out_at >= 0) swap.out_at = next[position(swap.out_at)];
    if (swap.out_by != swap.in_from) result.swaps.push_back(swap);
  }
  return result;
}

}  // namespace stowage::budget
