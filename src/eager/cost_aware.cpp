#include "eager/cost_aware.h"

#include <algorithm>
#include <cmath>

namespace stowage::eager {
namespace {

constexpr int kPriceClasses = 64;
constexpr double kLaneWorth = 0.05;        // what a nanosecond of a lane costs although nobody waits for it
constexpr std::int64_t kFreeShare = 8;     // room above limit / kFreeShare: nothing goes soon
constexpr std::int64_t kReserveShare = 2;  // of the limit: values that may go at once, as the host has them
constexpr std::int64_t kQueuedOps = 8;     // copies out that last so many ops are enough for the lane not to run dry
constexpr std::ptrdiff_t kMostCopiesOut = 16;
constexpr double kEarly = 1.25;  // of a deadline: what copies take varies
constexpr std::int64_t kEarlyOps = 4;
constexpr std::int64_t kSpareShare = 8;  // of the limit

std::int64_t mean_op_ns(const ValueTable& table) { return table.now_ns() / std::max<std::int64_t>(table.tick(), 1); }

}  // namespace

// Of what does not change from op to op: half octaves of price a byte.
std::size_t CostAware::price_class(ValueId id) const {
  const Row& v = table_[id];
  auto ns = static_cast<double>(table_.copy_ns(v.bytes));
  if (table_.may_drop(id)) {
    const auto replay = static_cast<double>(v.compute_ns + kReplayNs);
    ns = table_.may_swap() ? std::min(ns, replay) : replay;
  }
  const double octaves = std::log2(ns / static_cast<double>(std::max<std::int64_t>(v.bytes, 1)));
  return static_cast<std::size_t>(std::clamp(std::trunc(octaves * 2) + kPriceClasses / 2, 0.0, kPriceClasses - 1.0));
}

void CostAware::file(ValueId id) {
  if (const std::int64_t next = history_.next_tick(id); next >= 0) {
    by_age_.erase(id);
    furthest_.put(id, next, price_class(id));
    soonest_.put(id, next);
  } else {
    furthest_.erase(id);
    soonest_.erase(id);
    const Row& v = table_[id];
    const std::int64_t own_ns =
        table_.may_drop(id) ? std::min(v.compute_ns + kReplayNs, table_.copy_ns(v.bytes)) : table_.copy_ns(v.bytes);
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
  if (id.index() < fetched_early_.size()) fetched_early_[id] = false;
  if (awake_) file(id);
}

void CostAware::recipe_changed(ValueId id) {
  if (awake_ && table_[id].listed) file(id);
}

void CostAware::released(ValueId id, How how) {
  letting_go_ = true;
  const std::int64_t next = history_.next_tick(id);
  if (next >= 0 && how == How::kSwap) away_.put(id, next);
}

std::int64_t CostAware::gap_ns(ValueId id) const {
  if (history_.next_tick(id) >= 0) return std::max<std::int64_t>(history_.next_ns(id) - table_.now_ns(), 1);
  return (table_.tick() - table_[id].last_access_tick + 1) * std::max<std::int64_t>(mean_op_ns(table_), 1);
}

CostAware::Price CostAware::price(ValueId id, std::int64_t gap_ns, bool ahead) const {
  const Row& v = table_[id];
  const auto drop_ns = [&] { return static_cast<double>(table_.chain_ns(id) + kReplayNs); };
  if (!table_.may_swap()) return {drop_ns(), How::kDrop};
  const std::int64_t copy = table_.copy_ns(v.bytes);
  const bool known = history_.next_tick(id) >= 0;
  const std::int64_t late = known ? std::max<std::int64_t>(table_.in_queue_ns() + copy - gap_ns, 0) : copy;
  std::int64_t out = 0;
  if (v.host_copy != HostCopy::kClean && !ahead)
    out = table_.out_queue_ns() + (v.host_copy == HostCopy::kNone ? copy : 0);
  const Price swap{kLaneWorth * static_cast<double>(copy) + static_cast<double>(late + out), How::kSwap};
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
    if (first->key >= table_.tick()) break;
    file(ValueId(first->id));
  }
}

std::optional<ValueId> CostAware::pick(bool last_resort) {
  return find(last_resort ? Wanted::kLastResort : Wanted::kVictim);
}

bool CostAware::fits(ValueId id, Wanted wanted) const {
  if (wanted == Wanted::kToCopy && table_[id].host_copy != HostCopy::kNone) return false;
  return table_.free_to_go(id, wanted == Wanted::kLastResort);
}

std::optional<ValueId> CostAware::find(Wanted wanted) {
  wake();
  give_up_expired();
  std::optional<ValueId> found;
  double least = 0;
  const auto consider = [&](ValueId id) {
    ++table_.counters.looks;
    const double s = score(id, wanted == Wanted::kToCopy);
    if (!found || s < least) {
      least = s;
      found = id;
    }
  };
  for (std::size_t c = 0; c < furthest_.classes(); ++c) {
    int looks = 0;
    furthest_.first_ones(c, [&](const auto& entry) {
      if (!fits(entry.id, wanted)) return true;
      consider(entry.id);
      return ++looks < kLooksAClass;
    });
  }
  if (const auto old = by_age_.best(wanted == Wanted::kLastResort); old && fits(*old, wanted)) consider(*old);
  return found;
}

// What would go next is copied out while the lane is free, so that it can go at once when its time has come.
Advice CostAware::copy_out(std::int64_t room_bytes) {
  const std::int64_t limit = table_.options().limit_bytes;
  if (!letting_go_ || !table_.may_swap() || room_bytes > limit / kFreeShare) return {};
  if (std::ssize(table_.going_out()) >= kMostCopiesOut || table_.out_queue_ns() > kQueuedOps * mean_op_ns(table_))
    return {};
  if (table_.covered_bytes() > std::min(limit / kReserveShare, table_.most_unlimited_bytes() - limit)) return {};
  const auto next = find(Wanted::kToCopy);
  letting_go_ = next && price(*next, gap_ns(*next), true).how == How::kSwap;
  return letting_go_ ? Advice{Advice::Kind::kCopyOut, *next, How::kSwap} : Advice{};
}

// How much more the program is going to hold at some time until then than now.
std::int64_t CostAware::growth_bytes(std::int64_t until_tick) const {
  const std::int64_t now = history_.unlimited_bytes(0);
  std::int64_t most = now;
  for (std::int64_t ahead = 1; ahead <= std::min(until_tick - table_.tick(), kHorizonOps); ++ahead)
    most = std::max(most, history_.unlimited_bytes(ahead));
  return most - now;
}

// Nothing is going to need the room. What was fetched early and let go again before its use had met growth that was not
// foreseen: it waits for more room than that.
bool CostAware::may_fetch_early(ValueId id, std::int64_t tick, std::int64_t room_bytes) {
  if (!history_.foresees() || tick > table_.tick() + kHorizonOps) return false;
  if (fetched_early_.size() <= id.index()) fetched_early_.resize(table_.rows());
  const std::int64_t spare_bytes = fetched_early_[id] ? table_.options().limit_bytes / kSpareShare : 0;
  if (growth_bytes(tick) + table_[id].bytes + spare_bytes > room_bytes) return false;
  fetched_early_[id] = true;
  return true;
}

Advice CostAware::fetch(std::int64_t room_bytes) {
  while (const auto* first = away_.top()) {
    const ValueId id = first->id;
    const std::int64_t tick = first->key;
    if (tick <= table_.tick()) {
      away_.erase(id);
      continue;
    }
    const std::int64_t left_ns = history_.next_ns(id) - table_.now_ns();
    const auto lane_ns = static_cast<double>(table_.in_queue_ns() + table_.copy_ns(table_[id].bytes));
    const bool due =
        static_cast<double>(left_ns) <= kEarly * lane_ns + static_cast<double>(kEarlyOps * mean_op_ns(table_));
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
  if (const Advice out = copy_out(room_bytes); out.kind != Advice::Kind::kNone) return out;
  return table_.options().prefetch ? fetch(room_bytes) : Advice{};
}

}  // namespace stowage::eager
