#include "budget/restore.h"

#include <algorithm>

namespace stowage::budget {

constexpr std::int64_t kMostLooked = 20'000;  // for one move: hoists within hoists try the same again

std::optional<Move> Restorer::drop(const Gap& gap) {
  move_ = {};
  move_.at = gap.to;
  looked_before_ = looked_;
  const bool possible = rerun(gap.buffer, gap.version);
  for (const std::int32_t b : move_.buffers) seen_[b] = 0;
  if (!possible) return std::nullopt;
  move_.overload = overload(gap);
  return std::move(move_);
}

// What the runs add to what is live at the position besides them: results stay until the last of the runs that needs
// them.
std::int64_t Restorer::overload(const Gap& gap) {
  std::int64_t live = -recipes_.bytes[gap.buffer];
  if (move_.at < ledger_.size()) live += ledger_.live().at(move_.at) - ledger_.added(move_.at);
  for (const Extension& e : move_.extensions)
    if (e.to == move_.at) live += recipes_.bytes[e.buffer];
  for (std::size_t i = 0; i < move_.runs.size(); ++i)
    for (const Need& need : recipes_.needs[move_.runs[i]]) last_need_[need.buffer] = static_cast<std::int32_t>(i);
  std::int64_t over = 0;
  for (std::size_t i = 0; i < move_.runs.size(); ++i) {
    std::vector<char> ended;
    for (const ReusePair& pair : recipes_.reuse.pairs(move_.runs[i])) {
      const std::int32_t r = pair.read.value;
      const bool ends = r != gap.buffer && made_[r] != 0 && last_need_[r] == static_cast<std::int32_t>(i);
      ended.push_back(ends ? 1 : 0);
    }
    over += std::max<std::int64_t>(0, live + recipes_.reuse.best(move_.runs[i], ended).added - capacity_);
    for (const std::int32_t b : recipes_.creates[move_.runs[i]])
      if (b == gap.buffer || last_need_[b] > static_cast<std::int32_t>(i)) {
        live += recipes_.bytes[b];
        made_[b] = 1;
      }
    for (const Need& need : recipes_.needs[move_.runs[i]])
      if (made_[need.buffer] != 0 && need.buffer != gap.buffer &&
          last_need_[need.buffer] == static_cast<std::int32_t>(i)) {
        live -= recipes_.bytes[need.buffer];
        made_[need.buffer] = 0;
      }
  }
  made_[gap.buffer] = 0;
  for (const std::int32_t op : move_.runs)
    for (const Need& need : recipes_.needs[op]) last_need_[need.buffer] = -1;
  return over;
}

bool Restorer::fits(std::int32_t from, std::int32_t to, std::int64_t bytes) const {
  return ledger_.live().max(from, to) + bytes <= capacity_;
}

bool Restorer::want(std::int32_t buffer, std::int32_t version) {
  if (++looked_ - looked_before_ > kMostLooked) return false;
  if (seen_[buffer] != 0) return seen_[buffer] == version;
  const std::vector<Event>& events = ledger_.events(buffer);
  const auto next = std::lower_bound(events.begin(), events.end(), move_.at,
                                     [](const Event& e, std::int32_t at) { return e.at < at; });
  if (next == events.begin()) return false;
  const Event& previous = *(next - 1);
  const bool live_on = next != events.end() ? !next->creates() : recipes_.returned[buffer] != 0;
  if (live_on) {
    if (previous.after != version) return false;  // another version lives there
    std::vector<Gap> gaps;
    ledger_.gaps(buffer, gaps);
    for (const Gap& gap : gaps)
      if (gap.from == previous.at && gap.swap >= 0) return false;  // away: not now
    seen_[buffer] = version;
    touch(buffer, false);
    return true;
  }
  const std::int64_t bytes = recipes_.bytes[buffer];
  const std::int64_t loss = -ledger_.gain(previous.at, buffer);  // no result can reuse it there any more
  const bool room = loss <= 0 || ledger_.live().at(previous.at) + loss <= capacity_;
  if (previous.after == version && room && fits(previous.at + 1, move_.at, bytes)) {
    seen_[buffer] = version;
    touch(buffer, false);
    move_.extensions.push_back({buffer, previous.at + 1, move_.at});
    return true;
  }
  if (version == 1 && next != events.end() && hoist(buffer, *next)) return true;
  return rerun(buffer, version);
}

// The later run of the maker moves here, unless something else hangs on where it is.
bool Restorer::hoist(std::int32_t buffer, const Event& next) {
  const std::int32_t op = ledger_.op(next.at);
  if (!ledger_.repeat(next.at) || recipes_.creates[op].size() != 1) return false;
  if (!fits(move_.at, next.at, recipes_.bytes[buffer])) return false;
  const std::size_t runs = move_.runs.size(), removed = move_.remove.size(), extended = move_.extensions.size(),
                    touched = move_.buffers.size();
  const std::int64_t cost = move_.cost;
  move_.remove.push_back(next.at);
  if (rerun(buffer, 1)) {
    move_.cost -= recipes_.cost[op];
    move_.extensions.push_back({buffer, move_.at, next.at});
    return true;
  }
  move_.runs.resize(runs);
  move_.remove.resize(removed);
  move_.extensions.resize(extended);
  for (std::size_t i = touched; i < move_.buffers.size(); ++i) seen_[move_.buffers[i]] = 0;
  move_.buffers.resize(touched);
  move_.changes.resize(touched);
  move_.cost = cost;
  return false;
}

bool Restorer::rerun(std::int32_t buffer, std::int32_t version) {
  if (seen_[buffer] != 0) return false;
  seen_[buffer] = -1;  // in the making: a chain that comes back to it is refused
  touch(buffer, true);
  for (std::int32_t v = 1; v <= version; ++v)
    if (!run(recipes_.makers[buffer][v - 1], buffer)) return false;
  seen_[buffer] = version;
  return true;
}

bool Restorer::run(std::int32_t op, std::int32_t chain_buffer) {
  if (!recipes_.repeatable[op] || static_cast<std::int32_t>(move_.runs.size()) >= longest_) return false;
  for (const std::int32_t end : recipes_.ends[op])
    if (ledger_.first_run(end) < move_.at) return false;
  for (const Need& need : recipes_.needs[op])
    if (need.buffer != chain_buffer && !want(need.buffer, need.version)) return false;
  for (const std::int32_t created : recipes_.creates[op]) {
    if (created == chain_buffer) continue;
    if (seen_[created] != 0) return false;
    const std::vector<Event>& events = ledger_.events(created);
    const auto next = std::lower_bound(events.begin(), events.end(), move_.at,
                                       [](const Event& e, std::int32_t at) { return e.at < at; });
    if (next != events.end() ? !next->creates() && next->before != 1
                             : recipes_.returned[created] && events.back().after != 1)
      return false;
    seen_[created] = 1;
    touch(created, true);
  }
  move_.runs.push_back(op);
  move_.cost += recipes_.cost[op];
  return true;
}

}  // namespace stowage::budget
