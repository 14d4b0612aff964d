#include "stowage/value_table.h"

#include <algorithm>

namespace stowage::eager {
namespace {

constexpr int kMostAncestors = 64;  // from where on each counts as often as was seen: a chain so long is never cheap
constexpr std::int64_t kSmallestMeasure = 1 << 16;  // shorter copies measure latency

// The block of a value that is being fetched is taken already.
bool takes_memory(Residence residence) {
  return residence == Residence::kResident || residence == Residence::kFetching;
}

}  // namespace

ValueTable::ValueTable(const Options& options)
    : options_(options), bytes_per_ns_(std::max(options.link_bytes_per_ns, 1e-6)) {}

// ---- Life

ValueId ValueTable::created(std::int64_t bytes, bool evictable) {
  ValueId id;
  if (free_.empty()) {
    id = ValueId(rows_.size());
    rows_.push_back({});
    seen_.push_back(0);
  } else {
    id = free_.back();
    free_.pop_back();
  }
  Row& row = rows_[id];
  std::vector<ValueId> parents = std::move(row.parents);  // its memory is used again
  parents.clear();
  row = Row{};
  row.parents = std::move(parents);
  row.bytes = bytes;
  row.evictable = evictable;
  row.in_use = true;
  row.last_access_tick = tick_;
  resident_bytes_ += bytes;
  unlimited_bytes_ += bytes;
  most_unlimited_bytes_ = std::max(most_unlimited_bytes_, unlimited_bytes_);
  relist(id);
  return id;
}

void ValueTable::recipe(ValueId id, std::int64_t compute_ns, std::span<const ValueId> parents) {
  Row& row = rows_[id];
  row.compute_ns = compute_ns;
  row.parents.assign(parents.begin(), parents.end());
  row.recomputable = true;
  for (Listener* listener : listeners_) listener->recipe_changed(id);
  relist(id);
}

void ValueTable::lost_recipe(ValueId id) {
  Row& row = rows_[id];
  if (!row.recomputable) return;
  row.recomputable = false;
  row.parents.clear();
  for (Listener* listener : listeners_) listener->recipe_changed(id);
  relist(id);
}

void ValueTable::died(ValueId id) {
  Row& row = rows_[id];
  if (row.alive) unlimited_bytes_ -= row.bytes;
  if (row.residence == Residence::kFetching) fetch_cancelled(id);
  move(id, Residence::kGone);
  row.alive = false;
  relist(id);
  for (Listener* listener : listeners_) listener->died(id);
}

void ValueTable::forgotten(ValueId id) {
  if (rows_[id].residence != Residence::kGone) died(id);
  host_copy_lost(id);
  for (Listener* listener : listeners_) listener->forgotten(id);
  rows_[id].in_use = false;
  free_.push_back(id);
}

// ---- Who may go

void ValueTable::set_evictable(ValueId id, bool evictable) {
  rows_[id].evictable = evictable;
  relist(id);
}

// Tells when a value has become a candidate, or is none any more.
void ValueTable::relist(ValueId id) {
  Row& row = rows_[id];
  const bool candidate =
      row.in_use && row.evictable && row.residence == Residence::kResident && (may_swap() || row.recomputable);
  if (candidate == row.listed) return;
  row.listed = candidate;
  candidate_bytes_ += candidate ? row.bytes : -row.bytes;
  if (row.host_copy != HostCopy::kNone) covered_bytes_ += candidate ? row.bytes : -row.bytes;
  for (Listener* listener : listeners_) candidate ? listener->entered(id) : listener->left(id);
}

std::int64_t ValueTable::evictable_bytes() const {
  std::int64_t pinned = 0;
  for (const Row& row : rows_) {
    if (row.in_use && row.listed && row.pins > 0) pinned += row.bytes;
  }
  return candidate_bytes_ - pinned;
}

// ---- Where it is

// The one place where a residence changes.
void ValueTable::move(ValueId id, Residence to) {
  Row& row = rows_[id];
  if (to == Residence::kResident && !row.alive && row.recomputable) ghosts_.push_back(id);
  if (row.residence == Residence::kResident && to != Residence::kResident && !row.alive) std::erase(ghosts_, id);
  resident_bytes_ += row.bytes * (takes_memory(to) - takes_memory(row.residence));
  dropped_ += (to == Residence::kDropped) - (row.residence == Residence::kDropped);
  row.residence = to;
}

void ValueTable::set_host_copy(ValueId id, HostCopy copy) {
  Row& row = rows_[id];
  if (copy == HostCopy::kOnItsWay) {
    going_out_.push_back(id);
    out_bytes_ += row.bytes;
  }
  if (row.host_copy == HostCopy::kOnItsWay) {
    std::erase(going_out_, id);
    out_bytes_ -= row.bytes;
  }
  if (row.listed) covered_bytes_ += row.bytes * ((copy != HostCopy::kNone) - (row.host_copy != HostCopy::kNone));
  row.host_copy = copy;
}

void ValueTable::released(ValueId id, How how) {
  const Row& row = rows_[id];
  if (how == How::kDrop) {
    ++counters.drops;
    counters.dropped_bytes += row.bytes;
  } else if (row.host_copy == HostCopy::kNone) {
    ++counters.swap_outs;
    counters.swapped_out_bytes += row.bytes;
  } else {
    ++counters.clean_releases;
  }
  if (how == How::kSwap) set_host_copy(id, HostCopy::kClean);
  move(id, how == How::kSwap ? Residence::kSwapped : row.alive ? Residence::kDropped : Residence::kGone);
  relist(id);
  for (Listener* listener : listeners_) listener->released(id, how);
}

void ValueTable::restored(ValueId id, How how, std::int64_t took_ns) {
  Row& row = rows_[id];
  if (how == How::kDrop) {
    ++counters.recomputes;
    counters.recomputed_bytes += row.bytes;
    counters.recompute_ns += took_ns;
  } else {
    ++counters.swap_ins;
    counters.swapped_in_bytes += row.bytes;
    row.swap_ns = copy_ns(row.bytes) + took_ns;
    if (in_bytes_ == 0) measured_copy(row.bytes, took_ns);
    for (Listener* listener : listeners_) listener->waited(id);
  }
  move(id, Residence::kResident);
  row.last_access_tick = tick_;
  for (Listener* listener : listeners_) listener->restored(id);
  relist(id);
}

void ValueTable::copy_out_started(ValueId id) {
  set_host_copy(id, HostCopy::kOnItsWay);
  ++counters.early_copies;
  ++counters.swap_outs;
  counters.swapped_out_bytes += rows_[id].bytes;
}

void ValueTable::copy_out_done(ValueId id) {
  if (rows_[id].host_copy == HostCopy::kOnItsWay) set_host_copy(id, HostCopy::kClean);
}

void ValueTable::host_copy_lost(ValueId id) { set_host_copy(id, HostCopy::kNone); }

void ValueTable::fetch_started(ValueId id) {
  coming_in_.push_back(id);
  in_bytes_ += rows_[id].bytes;
  move(id, Residence::kFetching);
  ++counters.fetches;
  for (Listener* listener : listeners_) listener->restored(id);
}

void ValueTable::fetch_done(ValueId id, std::int64_t waited_ns) {
  Row& row = rows_[id];
  if (row.residence != Residence::kFetching) return;
  std::erase(coming_in_, id);
  in_bytes_ -= row.bytes;
  ++counters.swap_ins;
  counters.swapped_in_bytes += row.bytes;
  row.swap_ns = 2 * copy_ns(row.bytes);
  if (waited_ns > 0) {
    for (Listener* listener : listeners_) listener->waited(id);
  }
  move(id, Residence::kResident);
  row.last_access_tick = tick_;
  relist(id);
}

void ValueTable::fetch_cancelled(ValueId id) {
  if (rows_[id].residence != Residence::kFetching) return;
  std::erase(coming_in_, id);
  in_bytes_ -= rows_[id].bytes;
  ++counters.cancelled_fetches;
  move(id, Residence::kSwapped);
  for (Listener* listener : listeners_) listener->released(id, How::kSwap);
}

// ---- The clocks, and what it costs

void ValueTable::op_begins(std::span<const ValueId> reads) {
  ++tick_;
  for (const ValueId id : reads) rows_[id].last_access_tick = tick_;
}

void ValueTable::op_ended(std::int64_t compute_ns) { now_ns_ += std::max<std::int64_t>(compute_ns, 0); }

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
      const Row& p = rows_[parent];
      if (takes_memory(p.residence) || seen_[parent] == walk_) continue;
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

// Alone on its lane, and waited for.
void ValueTable::measured_copy(std::int64_t bytes, std::int64_t took_ns) {
  if (bytes < kSmallestMeasure || took_ns <= options_.link_latency_ns) return;
  const double now = static_cast<double>(bytes) / static_cast<double>(took_ns - options_.link_latency_ns);
  bytes_per_ns_ += (now - bytes_per_ns_) / 16;
}

}  // namespace stowage::eager
