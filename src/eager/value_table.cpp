#include "eager/value_table.h"

#include <algorithm>

namespace stowage::eager {

ValueTable::ValueTable(const Options& options)
    : options_(options), bytes_per_ns_(std::max(options.link_bytes_per_ns, 1e-6)) {}

ValueId ValueTable::add(std::int64_t bytes, bool evictable) {
  ValueId id;
  if (free_.empty()) {
    id = ValueId(rows_.size());
    rows_.push_back({});
    seen_.push_back(0);
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Value& row = rows_[id];
  std::vector<ValueId> parents = std::move(row.parents);  // its memory is used again
  parents.clear();
  row = Value{};
  row.parents = std::move(parents);
  row.bytes = bytes;
  row.evictable = evictable;
  row.in_use = true;
  row.last_access_tick = tick;
  return id;
}

void ValueTable::remove(ValueId id) {
  rows_[id].in_use = false;
  free_.push_back(id);
}

bool ValueTable::candidate(ValueId id) const {
  const Value& v = rows_[id];
  return v.in_use && v.evictable && v.residence == Residence::kResident && (may_swap() || v.recomputable);
}

std::int64_t ValueTable::chain_ns(ValueId id) const {
  if (++walk_ == 0) {  // wrapped
    std::fill(seen_.begin(), seen_.end(), 0U);
    walk_ = 1;
  }
  std::int64_t total = rows_[id].compute_ns;
  int met = 0;
  stack_.assign(1, id);
  seen_[id] = walk_;
  while (!stack_.empty()) {
    const ValueId at = stack_.back();
    stack_.pop_back();
    for (const ValueId parent : rows_[at].parents) {
      const Value& p = rows_[parent];
      if (p.residence == Residence::kResident || p.residence == Residence::kFetching || seen_[parent] == walk_)
        continue;
      seen_[parent] = walk_;
      if (p.host_copy != HostCopy::kNone) {
        total += copy_ns(p.bytes);
        continue;
      }
      total += p.compute_ns;
      if (++met > kMostAncestors) return total * 4;
      stack_.push_back(parent);
    }
  }
  return total;
}

void ValueTable::measured_copy(std::int64_t bytes, std::int64_t took_ns) {
  if (bytes < kSmallestMeasure || took_ns <= options_.link_latency_ns) return;
  const double now = static_cast<double>(bytes) / static_cast<double>(took_ns - options_.link_latency_ns);
  bytes_per_ns_ += (now - bytes_per_ns_) / 16;
}

}  // namespace stowage::eager
