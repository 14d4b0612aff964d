#include "eager/capuchin.h"

#include <algorithm>

namespace stowage::eager {

void Capuchin::entered(ValueId id) {
  by_age_.insert(id, 1);
  if (const std::int64_t next = history_.next_tick(id); next >= 0) furthest_.put(id, next);
}

void Capuchin::left(ValueId id) {
  by_age_.erase(id);
  furthest_.erase(id);
}

void Capuchin::accessed(ValueId id) {
  by_age_.touch(id);
  if (const std::int64_t next = history_.next_tick(id); next >= 0)
    furthest_.put(id, next);
  else
    furthest_.erase(id);
}

void Capuchin::released(ValueId id, How how) {
  if (how != How::kSwap) return;
  if (const std::int64_t next = history_.next_tick(id); next >= 0) away_.put(id, next);
}

void Capuchin::waited(ValueId) { lead_ = std::min(lead_ + kLeadStep, kMostLead); }

std::int64_t Capuchin::free_ns(ValueId id) const {
  return history_.next_ns(id) - table_.now_ns() - 2 * table_.copy_ns(table_[id].bytes);
}

std::optional<ValueId> Capuchin::pick(bool last_resort) {
  std::optional<ValueId> swapped, recomputed;
  std::int64_t most_free_ns = 0;
  double most_saved = -1;
  int looks = 0;
  furthest_.first_ones(0, [&](const auto& entry) {
    ++table_.counters.looks;
    if (entry.key <= table_.tick()) return false;  // the rest was expected earlier, and did not come
    if (!table_.free_to_go(entry.id, last_resort)) return true;
    if (const std::int64_t free = free_ns(entry.id); !swapped || free > most_free_ns) {
      most_free_ns = free;
      swapped = entry.id;
    }
    if (table_.may_drop(entry.id)) {
      const double saved =
          static_cast<double>(table_[entry.id].bytes) / static_cast<double>(table_.chain_ns(entry.id) + 1);
      if (saved > most_saved) {
        most_saved = saved;
        recomputed = entry.id;
      }
    }
    return ++looks < kMostLooks;
  });
  how_ = How::kSwap;
  if (!swapped)
    return picked_ = by_age_.best(last_resort).value_or(ValueId()),
           picked_.valid() ? std::optional(picked_) : std::nullopt;
  picked_ = *swapped;
  if (recomputed && (!table_.may_swap() || (most_free_ns < 0 && table_.chain_ns(*recomputed) < -most_free_ns))) {
    picked_ = *recomputed;
    how_ = How::kDrop;
  }
  return picked_;
}

How Capuchin::choose(ValueId id) { return id == picked_ ? how_ : How::kSwap; }

Advice Capuchin::advise(std::int64_t room_bytes) {
  while (const auto* first = away_.top()) {
    if (first->key <= table_.tick()) {
      away_.erase(ValueId(first->id));
      continue;
    }
    const std::int64_t bytes = table_[first->id].bytes;
    const double lead_ns = lead_ * static_cast<double>(table_.copy_ns(bytes) + table_.in_queue_ns());
    if (bytes > room_bytes || static_cast<double>(history_.next_ns(first->id) - table_.now_ns()) > lead_ns) break;
    return {Advice::Kind::kFetch, first->id, How::kSwap};
  }
  return {};
}

}  // namespace stowage::eager
