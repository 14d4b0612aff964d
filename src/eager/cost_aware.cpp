#include "eager/cost_aware.h"

#include <algorithm>
#include <cmath>

namespace stowage::eager {
namespace {

constexpr int kPriceClasses = 64;
constexpr std::int64_t kStrainTicks = 256;   // how often strain is measured
constexpr std::int64_t kRecountTicks = 64;   // how often covered bytes are counted anew
constexpr int kMostCopiesOut = 2;
constexpr std::int64_t kFreeShare = 16;      // room above limit / kFreeShare: nothing goes soon
constexpr double kEarly = 1.25;              // of a deadline: what copies take varies
constexpr std::int64_t kEarlyOps = 4;
constexpr std::int64_t kSpareShare = 8;  // of the limit

std::int64_t mean_op_ns(const ValueTable& table) { return table.now_ns / std::max<std::int64_t>(table.tick, 1); }

}  // namespace

// Of what does not change from op to op: half octaves of price a byte.
std::size_t CostAware::price_class(ValueId id) const {
  const Value& v = table_[id];
  auto ns = static_cast<double>(table_.copy_ns(v.bytes));
  if (table_.may_drop(id)) {
    const auto replay = static_cast<double>(v.compute_ns + kReplayNs);
    ns = table_.may_swap() ? std::min(ns, replay) : replay;
  }
  const double octaves = std::log2(ns / static_cast<double>(std::max<std::int64_t>(v.bytes, 1)));
  return static_cast<std::size_t>(std::clamp(static_cast<int>(octaves * 2) + kPriceClasses / 2, 0, kPriceClasses - 1));
}

void CostAware::file(ValueId id) {
  if (const std::int64_t next = history_.next_tick(id); next >= 0) {
    by_age_.erase(id);
    furthest_.put(id, next, price_class(id));
    soonest_.put(id, next);
  } else {
    furthest_.erase(id);
    soonest_.erase(id);
    const Value& v = table_[id];
    const std::int64_t own_ns = table_.may_drop(id) ? std::min(v.compute_ns + kReplayNs, table_.copy_ns(v.bytes)) : table_.copy_ns(v.bytes);
    by_age_.insert(id, static_cast<double>(v.bytes) / static_cast<double>(own_ns + 1));
  }
}

void CostAware::wake() {
  if (awake_) return;
  awake_ = true;
  for (std::size_t row = 0; row < table_.rows(); ++row)
    if (table_[ValueId(row)].in_use && table_[ValueId(row)].listed) file(ValueId(row));
}

void CostAware::left(ValueId id) {
  if (!awake_) return;
  by_age_.erase(id);
  furthest_.erase(id);
  soonest_.erase(id);
}

void CostAware::accessed(ValueId id) {
  if (id.index() < fetched_early_.size()) fetched_early_[id.index()] = false;
  if (!awake_) return;
  file(id);
  if (peak_tick_ >= 0 && covers_peak(id)) to_copy_.push_back(id);
}

void CostAware::recipe_changed(ValueId id) {
  if (awake_ && table_[id].listed) file(id);
}

void CostAware::released(ValueId id, How how) {
  letting_go_ = true;
  released_tick_ = table_.tick;
  const std::int64_t next = history_.next_tick(id);
  if (next < 0) return;
  if (how == How::kSwap) away_.put(id, next);
  if (how == How::kDrop && peak_tick_ >= 0 && next > peak_tick_) covered_bytes_ += table_[id].bytes;
}

std::int64_t CostAware::gap_ns(ValueId id) const {
  if (history_.next_tick(id) >= 0) return std::max<std::int64_t>(history_.next_ns(id) - table_.now_ns, 1);
  return (table_.tick - table_[id].last_access_tick + 1) * std::max<std::int64_t>(mean_op_ns(table_), 1);
}

CostAware::Price CostAware::price(ValueId id, std::int64_t gap_ns, bool ahead) const {
  const Value& v = table_[id];
  const auto drop_ns = [&] { return static_cast<double>(table_.chain_ns(id) + kReplayNs); };
  if (!table_.may_swap()) return {drop_ns(), How::kDrop};
  const std::int64_t copy = table_.copy_ns(v.bytes);
  const bool known = history_.next_tick(id) >= 0;
  const std::int64_t late = known ? std::max<std::int64_t>(table_.in_queue_ns() + copy - gap_ns, 0) : copy;
  std::int64_t out = 0;
  if (v.host_copy != HostCopy::kClean && !ahead) out = table_.out_queue_ns() + (v.host_copy == HostCopy::kNone ? copy : 0);
  const Price swap{strain_ * static_cast<double>(copy) + static_cast<double>(late + out), How::kSwap};
  if (!table_.may_drop(id) || v.host_copy != HostCopy::kNone) return swap;
  const double drop = drop_ns();
  return drop < swap.ns ? Price{drop, How::kDrop} : swap;
}

double CostAware::score(ValueId id, bool ahead) const {
  const std::int64_t gap = gap_ns(id);
  return (price(id, gap, ahead).ns + 1) / (static_cast<double>(table_[id].bytes) * static_cast<double>(gap));
}

// What was expected by now and did not come is of unknown next use.
void CostAware::give_up_expired() {
  while (const auto* first = soonest_.top()) {
    if (first->key >= table_.tick) break;
    file(ValueId(first->id));
  }
}

std::optional<ValueId> CostAware::pick(bool last_resort) { return find(last_resort, false); }

std::optional<ValueId> CostAware::find(bool last_resort, bool ahead) {
  wake();
  give_up_expired();
  std::optional<ValueId> found;
  double least = 0;
  const auto consider = [&](ValueId id) {
    ++table_.counters.looks;
    const double s = score(id, ahead);
    if (!found || s < least) {
      least = s;
      found = id;
    }
  };
  for (std::size_t c = 0; c < furthest_.classes(); ++c) {
    int looks = 0;
    furthest_.first_ones(c, [&](const auto& entry) {
      if (!table_.free_to_go(entry.id, last_resort)) return true;
      consider(entry.id);
      return ++looks < kLooksAClass;
    });
  }
  if (const auto old = by_age_.best(last_resort)) consider(*old);
  return found;
}

void CostAware::measure_strain() {
  if (table_.tick % kStrainTicks != 0 || table_.now_ns <= strain_from_ns_) return;
  const auto elapsed = static_cast<double>(table_.now_ns - strain_from_ns_);
  const double busy = static_cast<double>(table_.lane_busy_ns - busy_from_ns_) / 2 / elapsed;
  const double waited = static_cast<double>(table_.waited_ns - waited_from_ns_) / elapsed;
  strain_ = std::clamp((strain_ + busy + 4 * waited) / 2, kLeastStrain, kMostStrain);
  strain_from_ns_ = table_.now_ns;
  busy_from_ns_ = table_.lane_busy_ns;
  waited_from_ns_ = table_.waited_ns;
}

// Finds the next peak of what would be resident without a limit. Again every few ops: what goes before tells its size better and better.
void CostAware::look_ahead() {
  const bool binds = released_tick_ >= 0 && table_.tick - released_tick_ <= 2 * history_.period();
  if (!history_.foresees() || !binds || table_.options().limit_bytes <= 0) {
    peak_tick_ = -1;
    return;
  }
  const bool passed = peak_tick_ < 0 || table_.tick >= peak_tick_;
  if (!passed && table_.tick < counted_tick_ + kRecountTicks) return;
  const std::int64_t period = history_.period();
  std::int64_t most = 0, least = history_.unlimited_bytes(0), at = period;
  for (std::int64_t ahead = 1; ahead < period; ++ahead) {
    const std::int64_t bytes = history_.unlimited_bytes(ahead);
    least = std::min(least, bytes);
    if (bytes > most) {
      most = bytes;
      at = ahead;
    }
  }
  if (passed) to_copy_.clear();
  peak_tick_ = table_.tick + at;
  const auto rise = static_cast<double>(most - history_.unlimited_bytes(0));
  peak_excess_bytes_ = table_.unlimited_bytes + static_cast<std::int64_t>(rise * growth_scale(least)) - table_.options().limit_bytes;
  peak_excess_bytes_ += std::max<std::int64_t>(peak_excess_bytes_, 0) / 8;  // for what ops allocate inside
  count_covered();
}

double CostAware::growth_scale(std::int64_t floor_bytes) const {
  const std::int64_t there = history_.unlimited_bytes(0) - floor_bytes;
  if (there <= floor_bytes / 8) return 1;
  return std::clamp(static_cast<double>(table_.unlimited_bytes - floor_bytes) / static_cast<double>(there), 0.25, 4.0);
}

void CostAware::count_covered() {
  counted_tick_ = table_.tick;
  covered_bytes_ = 0;
  for (std::size_t row = 0; row < table_.rows(); ++row) {
    const ValueId id(row);
    const Value& v = table_[id];
    if (!v.in_use || !v.alive) continue;
    const bool away = v.residence == Residence::kSwapped || v.residence == Residence::kDropped;
    if ((away || v.host_copy != HostCopy::kNone) && covers_peak(id)) covered_bytes_ += v.bytes;
  }
}

bool CostAware::worth_a_copy(ValueId id) const {
  const Value& v = table_[id];
  if (!v.listed || v.host_copy != HostCopy::kNone || !covers_peak(id)) return false;
  if (!table_.may_drop(id)) return true;
  return static_cast<double>(table_.chain_ns(id) + kReplayNs) > strain_ * 2 * static_cast<double>(table_.copy_ns(v.bytes));
}

Advice CostAware::copy_out() {
  if (peak_tick_ < 0 || table_.copies_out >= kMostCopiesOut || !table_.may_swap()) return {};
  while (!to_copy_.empty() && covered_bytes_ < peak_excess_bytes_) {
    const ValueId id = to_copy_.front();
    to_copy_.pop_front();
    if (!table_[id].in_use || !worth_a_copy(id)) continue;
    covered_bytes_ += table_[id].bytes;
    return {Advice::Kind::kCopyOut, id, How::kSwap};
  }
  return {};
}

Advice CostAware::copy_next_victim(std::int64_t room_bytes) {
  if (!letting_go_ || table_.copies_out > 0 || !table_.may_swap() || room_bytes > table_.options().limit_bytes / kFreeShare) return {};
  letting_go_ = false;
  const auto next = find(false, true);
  if (!next || table_[*next].host_copy != HostCopy::kNone || price(*next, gap_ns(*next), true).how != How::kSwap) return {};
  letting_go_ = true;
  return {Advice::Kind::kCopyOut, *next, How::kSwap};
}

// How much more the program is going to hold at some time until then than now.
std::int64_t CostAware::growth_bytes(std::int64_t until_tick) const {
  const std::int64_t now = history_.unlimited_bytes(0);
  std::int64_t most = now;
  for (std::int64_t ahead = 1; ahead <= std::min(until_tick - table_.tick, kHorizonOps); ++ahead)
    most = std::max(most, history_.unlimited_bytes(ahead));
  return most - now;
}

// Nothing is going to need the room. What was fetched early and let go again before its use had met growth that was not foreseen: it
// waits for more room than that.
bool CostAware::may_fetch_early(ValueId id, std::int64_t tick, std::int64_t room_bytes) {
  if (!history_.foresees() || tick > table_.tick + kHorizonOps) return false;
  if (fetched_early_.size() <= id.index()) fetched_early_.resize(table_.rows());
  const std::int64_t spare_bytes = fetched_early_[id.index()] ? table_.options().limit_bytes / kSpareShare : 0;
  if (growth_bytes(tick) + table_[id].bytes + spare_bytes > room_bytes) return false;
  fetched_early_[id.index()] = true;
  return true;
}

Advice CostAware::fetch(std::int64_t room_bytes) {
  while (const auto* first = away_.top()) {
    const ValueId id = first->id;
    const std::int64_t tick = first->key;
    if (tick <= table_.tick) {
      away_.erase(id);
      continue;
    }
    const std::int64_t left_ns = history_.next_ns(id) - table_.now_ns;
    const auto lane_ns = static_cast<double>(table_.in_queue_ns() + table_.copy_ns(table_[id].bytes));
    const bool due = static_cast<double>(left_ns) <= kEarly * lane_ns + static_cast<double>(kEarlyOps * mean_op_ns(table_));
    if (table_[id].bytes <= room_bytes) {
      return due || may_fetch_early(id, tick, room_bytes) ? Advice{Advice::Kind::kFetch, id, How::kSwap} : Advice{};
    }
    if (!due) return {};
    // Room for it from something that is used later and goes without waiting.
    const auto other = pick(false);
    if (!other) return {};
    const std::int64_t other_tick = history_.next_tick(*other);
    const Price other_price = price(*other, gap_ns(*other));
    if ((other_tick >= 0 && other_tick <= tick) || other_price.ns >= lane_ns) return {};
    return {Advice::Kind::kRelease, *other, other_price.how};
  }
  return {};
}

Advice CostAware::advise(std::int64_t room_bytes) {
  if (!awake_) return {};
  measure_strain();
  look_ahead();
  if (const Advice out = copy_out(); out.kind != Advice::Kind::kNone) return out;
  if (const Advice out = copy_next_victim(room_bytes); out.kind != Advice::Kind::kNone) return out;
  return table_.options().prefetch ? fetch(room_bytes) : Advice{};
}

}  // namespace stowage::eager
