#include "eager/access_history.h"
#include "eager/policy.h"
#include "stowage/eager.h"

namespace stowage::eager {

Keeper::Keeper(ValueTable& table)
    : table_(table), history_(std::make_unique<AccessHistory>(table)), policy_(make_policy(table, *history_)) {
  table.tell(*policy_);
  table.tell(*history_);
}

Keeper::~Keeper() = default;

void Keeper::op_begins(std::uint64_t signature, std::span<const ValueId> reads) {
  table_.op_begins(reads);
  history_->op_begins(signature, reads);
  for (const ValueId id : reads) {
    if (table_[id].listed) policy_->accessed(id);
  }
}

void Keeper::op_ended(std::int64_t compute_ns, std::span<const ValueId> made) {
  table_.op_ended(compute_ns);
  history_->op_ended(made);
  for (const ValueId id : made) {
    if (table_[id].listed) policy_->accessed(id);
  }
}

std::optional<Victim> Keeper::victim() {
  ++table_.counters.picks;
  auto id = policy_->pick(false);
  if (!id) id = policy_->pick(true);
  if (!id) return std::nullopt;
  How how = How::kSwap;
  if (!table_.may_swap()) {
    how = How::kDrop;
  } else if (table_.may_drop(*id) && table_[*id].host_copy == HostCopy::kNone) {
    how = policy_->choose(*id);
  }
  return Victim{*id, how};
}

Advice Keeper::advise(std::int64_t room_bytes) {
  const Options& options = table_.options();
  if (options.release == Release::kDropOnly) return {};
  const Advice advice = policy_->advise(room_bytes);
  if (advice.kind == Advice::Kind::kRelease) ++table_.counters.early_releases;
  if (advice.kind != Advice::Kind::kFetch) return advice;
  return options.prefetch && std::ssize(table_.coming_in()) < options.most_fetches ? advice : Advice{};
}

}  // namespace stowage::eager
