#include "eager/access_history.h"

#include <algorithm>

namespace stowage::eager {
namespace {

constexpr std::uint64_t kBase = 0x9e3779b97f4a7c15ULL;

std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace

AccessHistory::AccessHistory(ValueTable& table) : table_(table) {
  for (Places* places : {&long_, &short_})
    for (int i = 0; i < places->length; ++i) places->power *= kBase;
}

void AccessHistory::op_begins(std::uint64_t signature, std::span<const ValueId> reads) {
  if (static_cast<std::int64_t>(ops_.size()) >= kMostOps) shorten();
  const std::uint64_t own = mix(signature + reads.size() * kBase);
  follow(own);
  ++now_;
  ops_.push_back(
      {own, first_access_ + static_cast<std::int64_t>(accesses_.size()), table_.now_ns(), table_.unlimited_bytes()});
  roll(long_, own);
  roll(short_, own);
  operands_ = 0;
  for (const ValueId id : reads) access(id, operands_++);
}

void AccessHistory::op_ended(std::span<const ValueId> made) {
  if (ops_.empty()) return;
  ops_.back().unlimited_bytes = std::max(ops_.back().unlimited_bytes, table_.unlimited_bytes());
  for (const ValueId id : made) access(id, operands_++);
}

// Sets the matched op of the one that begins; now_ is still the one before.
void AccessHistory::follow(std::uint64_t signature) {
  if (match_ >= 0 && match_ + 1 <= now_ && known(match_ + 1) && op(match_ + 1).signature == signature) {
    ++match_;
    ++table_.counters.foreseen_ops;
    return;
  }
  match_ = look_up(long_, signature);
  if (match_ < 0) match_ = look_up(short_, signature);
  ++(match_ < 0 ? table_.counters.unforeseen_ops : table_.counters.foreseen_ops);
}

// The place of an op with this signature after the same last ops: contexts are stored with the op that ends them.
std::int64_t AccessHistory::look_up(const Places& places, std::uint64_t signature) const {
  if (now_ - first_op_ + 2 < places.length) return kUnknown;
  std::uint64_t hash = places.hash * kBase + signature;
  if (now_ - first_op_ + 1 >= places.length) hash -= op(now_ + 1 - places.length).signature * places.power;
  const auto& [key, position] = places.at[mix(hash) % places.at.size()];
  return key == hash && known(position) && op(position).signature == signature ? position : kUnknown;
}

// now_ has just been appended.
void AccessHistory::roll(Places& places, std::uint64_t signature) {
  places.hash = places.hash * kBase + signature;
  const std::int64_t leaving = now_ - places.length;
  if (leaving >= first_op_) places.hash -= op(leaving).signature * places.power;
  if (leaving >= first_op_ - 1) places.at[mix(places.hash) % places.at.size()] = {places.hash, now_};
}

void AccessHistory::access(ValueId id, std::int64_t operand) {
  if (id.index() >= expected_.size()) expected_.resize(std::max(id.index() + 1, 2 * expected_.size()));
  Expected& e = expected_[id];
  if (e.access >= first_access_) accesses_[static_cast<std::size_t>(e.access - first_access_)].next_op = now_;
  e.access = first_access_ + static_cast<std::int64_t>(accesses_.size());
  accesses_.emplace_back();
  e.tick = kUnknown;
  if (match_ < 0) return;
  const std::int64_t there = op(match_).first_access + operand;
  const std::int64_t end = match_ < now_ ? op(match_ + 1).first_access : e.access;
  if (there >= end) return;
  const std::int64_t next = accesses_[static_cast<std::size_t>(there - first_access_)].next_op;
  if (next <= match_) return;
  e.tick = table_.tick() + next - match_;
  e.ns = table_.now_ns() + op(next).begin_ns - op(match_).begin_ns;
}

void AccessHistory::forgotten(ValueId id) {
  if (id.index() < expected_.size()) expected_[id] = {};
}

std::int64_t AccessHistory::unlimited_bytes(std::int64_t ahead) const {
  const std::int64_t position = match_ + ahead;
  return match_ >= 0 && known(position) ? op(position).unlimited_bytes : 0;
}

// Forgets the older half. Amortised O(1) an op.
void AccessHistory::shorten() {
  const std::int64_t keep_from = first_op_ + static_cast<std::int64_t>(ops_.size()) / 2;
  const std::int64_t access_from = op(keep_from).first_access;
  accesses_.erase(accesses_.begin(), accesses_.begin() + (access_from - first_access_));
  ops_.erase(ops_.begin(), ops_.begin() + (keep_from - first_op_));
  first_op_ = keep_from;
  first_access_ = access_from;
  if (match_ < first_op_) match_ = -1;
}

}  // namespace stowage::eager
