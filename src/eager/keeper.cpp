#include <algorithm>

#include "eager/access_history.h"
#include "eager/policy.h"
#include "eager/value_table.h"
#include "stowage/eager.h"

namespace stowage::eager {

Keeper::Keeper(const Options& options)
    : table_(std::make_unique<ValueTable>(options)),
      history_(std::make_unique<AccessHistory>(*table_)),
      policy_(make_policy(*table_, *history_)) {}

Keeper::~Keeper() = default;

void Keeper::set_limit(std::int64_t limit_bytes) { table_->set_limit(limit_bytes); }

Value& Keeper::row(ValueId value) { return (*table_)[value]; }

// Tells the policy when a value became a candidate, or is none any more.
void Keeper::relist(ValueId value) {
  Value& v = row(value);
  const bool candidate = table_->candidate(value);
  if (candidate == v.listed) return;
  v.listed = candidate;
  table_->candidate_bytes += candidate ? v.bytes : -v.bytes;
  if (v.host_copy != HostCopy::kNone) table_->covered_bytes += candidate ? v.bytes : -v.bytes;
  if (candidate)
    policy_->entered(value);
  else
    policy_->left(value);
}

void Keeper::note_host_copy(Value& v, HostCopy copy) {
  if (v.listed) table_->covered_bytes += v.bytes * ((copy != HostCopy::kNone) - (v.host_copy != HostCopy::kNone));
  v.host_copy = copy;
}

ValueId Keeper::created(std::int64_t bytes, bool evictable) {
  const ValueId id = table_->add(bytes, evictable);
  table_->resident_bytes += bytes;
  table_->unlimited_bytes += bytes;
  table_->most_unlimited_bytes = std::max(table_->most_unlimited_bytes, table_->unlimited_bytes);
  relist(id);
  return id;
}

void Keeper::recipe(ValueId value, std::int64_t compute_ns, std::span<const ValueId> parents) {
  Value& v = row(value);
  v.compute_ns = compute_ns;
  v.parents.assign(parents.begin(), parents.end());
  v.recomputable = true;
  policy_->recipe_changed(value);
  relist(value);
}

void Keeper::lost_recipe(ValueId value) {
  Value& v = row(value);
  if (!v.recomputable) return;
  v.recomputable = false;
  v.parents.clear();
  policy_->recipe_changed(value);
  relist(value);
}

void Keeper::never_evict(ValueId value) {
  row(value).evictable = false;
  relist(value);
}

void Keeper::may_evict(ValueId value) {
  row(value).evictable = true;
  relist(value);
}

void Keeper::pin(ValueId value) { ++row(value).pins; }
void Keeper::unpin(ValueId value) { --row(value).pins; }
void Keeper::soft_pin(ValueId value) { ++row(value).soft_pins; }
void Keeper::soft_unpin(ValueId value) { --row(value).soft_pins; }

void Keeper::died(ValueId value) {
  Value& v = row(value);
  if (v.alive) table_->unlimited_bytes -= v.bytes;
  if (v.residence == Residence::kFetching) fetch_cancelled(value);
  if (v.residence == Residence::kResident) table_->resident_bytes -= v.bytes;
  v.alive = false;
  v.residence = Residence::kGone;
  relist(value);
  policy_->died(value);
}

void Keeper::forgotten(ValueId value) {
  if (row(value).residence != Residence::kGone) died(value);
  host_copy_lost(value);
  policy_->forgotten(value);
  history_->forgotten(value);
  table_->remove(value);
}

void Keeper::op_begins(std::uint64_t signature, std::span<const ValueId> reads) {
  ++table_->tick;
  for (const ValueId id : reads) row(id).last_access_tick = table_->tick;
  history_->op_begins(signature, reads);
  for (const ValueId id : reads)
    if (row(id).listed) policy_->accessed(id);
}

void Keeper::op_ended(std::int64_t compute_ns, std::span<const ValueId> made) {
  table_->now_ns += std::max<std::int64_t>(compute_ns, 0);
  history_->op_ended(made);
  for (const ValueId id : made)
    if (row(id).listed) policy_->accessed(id);
}

std::optional<Victim> Keeper::victim() {
  ++table_->counters.picks;
  auto id = policy_->pick(false);
  if (!id) id = policy_->pick(true);
  if (!id) return std::nullopt;
  const Value& v = row(*id);
  How how = How::kSwap;
  if (!table_->may_swap())
    how = How::kDrop;
  else if (table_->may_drop(*id) && v.host_copy == HostCopy::kNone)
    how = policy_->choose(*id);
  return Victim{*id, how};
}

void Keeper::released(ValueId value, How how) {
  Value& v = row(value);
  Counters& n = table_->counters;
  if (how == How::kDrop) {
    ++n.drops;
    n.dropped_bytes += v.bytes;
  } else if (v.host_copy == HostCopy::kNone) {
    ++n.swap_outs;
    n.swapped_out_bytes += v.bytes;
  } else {
    ++n.clean_releases;
    if (v.host_copy == HostCopy::kOnItsWay) copy_out_done(value);
  }
  if (how == How::kSwap) note_host_copy(v, HostCopy::kClean);
  table_->resident_bytes -= v.bytes;
  v.residence = how == How::kDrop ? Residence::kDropped : Residence::kSwapped;
  if (!v.alive && how == How::kDrop) v.residence = Residence::kGone;
  relist(value);
  policy_->released(value, how);
}

void Keeper::restored(ValueId value, How how, std::int64_t took_ns) {
  Value& v = row(value);
  Counters& n = table_->counters;
  if (how == How::kDrop) {
    ++n.recomputes;
    n.recomputed_bytes += v.bytes;
    n.recompute_ns += took_ns;
  } else {
    ++n.swap_ins;
    n.swapped_in_bytes += v.bytes;
    v.swap_ns = table_->copy_ns(v.bytes) + took_ns;
    if (table_->in_bytes == 0) table_->measured_copy(v.bytes, took_ns);
    policy_->waited(value);
  }
  if (v.residence != Residence::kResident) table_->resident_bytes += v.bytes;
  v.residence = Residence::kResident;
  v.last_access_tick = table_->tick;
  policy_->restored(value);
  relist(value);
}

void Keeper::host_copy_lost(ValueId value) {
  Value& v = row(value);
  if (v.host_copy == HostCopy::kOnItsWay) {
    table_->out_bytes -= v.bytes;
    --table_->copies_out;
  }
  note_host_copy(v, HostCopy::kNone);
}

Advice Keeper::advise(std::int64_t room_bytes) {
  if (table_->options().release == Release::kDropOnly) return {};
  const Advice advice = policy_->advise(room_bytes);
  if (advice.kind == Advice::Kind::kRelease) ++table_->counters.early_releases;
  if (advice.kind != Advice::Kind::kFetch) return advice;
  return table_->options().prefetch && table_->fetches < table_->options().most_fetches ? advice : Advice{};
}

void Keeper::copy_out_started(ValueId value) {
  Value& v = row(value);
  note_host_copy(v, HostCopy::kOnItsWay);
  table_->out_bytes += v.bytes;
  ++table_->copies_out;
  ++table_->counters.early_copies;
  ++table_->counters.swap_outs;
  table_->counters.swapped_out_bytes += v.bytes;
}

void Keeper::copy_out_done(ValueId value) {
  Value& v = row(value);
  if (v.host_copy != HostCopy::kOnItsWay) return;
  table_->out_bytes -= v.bytes;
  --table_->copies_out;
  note_host_copy(v, HostCopy::kClean);
}

void Keeper::fetch_started(ValueId value) {
  Value& v = row(value);
  v.residence = Residence::kFetching;
  table_->resident_bytes += v.bytes;
  table_->in_bytes += v.bytes;
  ++table_->fetches;
  ++table_->counters.fetches;
  policy_->restored(value);
}

void Keeper::fetch_done(ValueId value, std::int64_t waited_ns) {
  Value& v = row(value);
  if (v.residence != Residence::kFetching) return;
  table_->in_bytes -= v.bytes;
  --table_->fetches;
  ++table_->counters.swap_ins;
  table_->counters.swapped_in_bytes += v.bytes;
  v.swap_ns = 2 * table_->copy_ns(v.bytes);
  if (waited_ns > 0) policy_->waited(value);
  v.residence = Residence::kResident;
  v.last_access_tick = table_->tick;
  relist(value);
}

void Keeper::fetch_cancelled(ValueId value) {
  Value& v = row(value);
  if (v.residence != Residence::kFetching) return;
  table_->in_bytes -= v.bytes;
  table_->resident_bytes -= v.bytes;
  --table_->fetches;
  ++table_->counters.cancelled_fetches;
  v.residence = Residence::kSwapped;
  policy_->released(value, How::kSwap);
}

const Value& Keeper::operator[](ValueId value) const { return (*table_)[value]; }
std::int64_t Keeper::tick() const { return table_->tick; }
const Counters& Keeper::counters() const { return table_->counters; }
std::int64_t Keeper::chain_ns(ValueId value) const { return table_->chain_ns(value); }
std::int64_t Keeper::resident_bytes() const { return table_->resident_bytes; }
std::int64_t Keeper::evictable_bytes() const {
  std::int64_t pinned = 0;
  for (std::size_t r = 0; r < table_->rows(); ++r) {
    const Value& v = (*table_)[ValueId(r)];
    if (v.in_use && v.listed && v.pins > 0) pinned += v.bytes;
  }
  return table_->candidate_bytes - pinned;
}
std::size_t Keeper::values() const { return table_->in_use(); }

}  // namespace stowage::eager
