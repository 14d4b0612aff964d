#include "eager/simulator.h"

#include <algorithm>

namespace stowage::testing {

Simulator::Simulator(const Program& program, const eager::Options& options)
    : program_(program), options_(options), table_(options) {}

void Simulator::rule(bool kept, const std::string& text) {
  if (!kept && result_.broken.empty()) result_.broken = text + " at tick " + std::to_string(table_.tick());
}

std::int64_t Simulator::copy_ns(std::int64_t bytes) const {
  return options_.link_latency_ns + static_cast<std::int64_t>(static_cast<double>(bytes) / options_.link_bytes_per_ns);
}

SimulationResult Simulator::run() {
  try {
    for (const int v : program_.persistent) now_[v] = make(program_.bytes[static_cast<std::size_t>(v)]);
    const std::size_t late = program_.iterations.size() * 2 / 3;
    for (std::size_t i = 0; i < program_.iterations.size(); ++i) {
      const SimulationResult before = result_;
      const std::int64_t from_ns = time_ns_;
      for (const ProgramOp& op : program_.iterations[i]) run_op(op);
      if (i < late) continue;
      result_.late_compute_ns += result_.compute_ns - before.compute_ns;
      result_.late_stall_ns += result_.stall_ns - before.stall_ns;
      result_.late_total_ns += time_ns_ - from_ns;
    }
    std::vector<int> left;
    for (const auto& [v, id] : now_) left.push_back(v);
    for (const int v : left) die(v);
  } catch (const Infeasible& infeasible) {
    result_.feasible = false;
    result_.why = infeasible.why;
  }
  result_.total_ns = time_ns_;
  result_.counters = table_.counters;
  result_.values_left = table_.in_use();
  return result_;
}

void Simulator::run_op(const ProgramOp& op) {
  work_ = 0;
  std::vector<ValueId> reads;
  for (const int v : op.reads) reads.push_back(now_.at(v));
  keeper_.op_begins(op.signature, reads);
  for (const ValueId id : reads) table_.soft_pin(id);
  for (bool all = false; !all;) {  // restoring one may push out another
    all = true;
    for (const ValueId id : reads)
      if (table_[id].residence != eager::Residence::kResident) {
        bring(id, 0);
        all = false;
      }
    if (++work_ > 10'000) throw Infeasible{"inputs push each other out"};
  }
  for (const ValueId id : reads) table_.pin(id);
  std::vector<ValueId> made;
  if (in_place(op)) {
    for (std::size_t i = 0; i < op.makes.size(); ++i) {
      const ValueId old = now_.at(op.dies[i]);
      table_.unpin(old);
      table_.soft_unpin(old);
      std::erase(reads, old);  // its row may be another's soon
      die(op.dies[i]);
    }
  }
  for (const int v : op.makes) {
    made.push_back(make(program_.bytes[static_cast<std::size_t>(v)]));
    table_.pin(made.back());
    now_[v] = made.back();
    if (!op.recomputable) continue;
    Live& l = live_.at(made.back().value);
    l.op = &op;
    l.parents = reads;
    for (const ValueId p : reads) live_.at(p.value).children.push_back(made.back());
    table_.recipe(made.back(), op.compute_ns, reads);
  }
  time_ns_ += op.compute_ns;
  result_.compute_ns += op.compute_ns;
  finish_copies();
  keeper_.op_ended(op.compute_ns, made);
  for (const ValueId id : reads) {
    table_.unpin(id);
    table_.soft_unpin(id);
  }
  for (const ValueId id : made) table_.unpin(id);
  for (const int v : op.dies)
    if (now_.count(v)) die(v);
  take_advice();
}

// Room for so many bytes, counted as resident from here on.
void Simulator::place(std::int64_t bytes) {
  while (resident_ + bytes > options_.limit_bytes) {
    const auto victim = keeper_.victim();
    if (!victim && !cancel_fetch()) throw Infeasible{"all is pinned"};
    if (victim) release(*victim);
  }
  resident_ += bytes;
  result_.peak_bytes = std::max(result_.peak_bytes, resident_);
}

bool Simulator::cancel_fetch() {
  for (auto& [row, l] : live_) {
    if (l.fetched_at_ns < 0) continue;
    l.fetched_at_ns = -1;
    resident_ -= table_[l.id].bytes;
    table_.fetch_cancelled(l.id);
    return true;
  }
  return false;
}

eager::ValueId Simulator::make(std::int64_t bytes) {
  place(bytes);
  const ValueId id = table_.created(bytes);
  live_[id.value] = Live{id, nullptr, {}, {}, false, -1, -1};
  return id;
}

void Simulator::release(const eager::Victim& victim) {
  const eager::Row& v = table_[victim.value];
  Live& l = live_.at(victim.value.value);
  rule(v.pins == 0, "a pinned victim");
  rule(v.residence == eager::Residence::kResident, "a victim that is not resident");
  rule(victim.how == eager::How::kSwap || l.op != nullptr, "dropped without a recipe");
  rule(options_.release != eager::Release::kDropOnly || victim.how == eager::How::kDrop,
       "a swap where only drops are allowed");
  rule(options_.release != eager::Release::kSwapOnly || victim.how == eager::How::kSwap,
       "a drop where only swaps are allowed");
  if (victim.how == eager::How::kSwap && v.host_copy != eager::HostCopy::kClean) {
    if (v.host_copy == eager::HostCopy::kNone)
      out_free_ns_ = l.copied_at_ns = std::max(time_ns_, out_free_ns_) + copy_ns(v.bytes);
    result_.stall_ns += std::max<std::int64_t>(l.copied_at_ns - time_ns_, 0);
    time_ns_ = std::max(time_ns_, l.copied_at_ns);
  }
  resident_ -= v.bytes;
  table_.released(victim.value, victim.how);
}

void Simulator::bring(ValueId id, int depth) {
  using eager::Residence;
  const eager::Row& v = table_[id];
  if (v.residence == Residence::kResident) return;
  if (v.residence == Residence::kFetching) {
    const std::int64_t end = live_.at(id.value).fetched_at_ns;
    const std::int64_t waited = std::max<std::int64_t>(end - time_ns_, 0);
    result_.stall_ns += waited;
    time_ns_ += waited;
    live_.at(id.value).fetched_at_ns = -1;
    table_.fetch_done(id, waited);
    finish_copies();
    return;
  }
  if (v.host_copy == eager::HostCopy::kClean) {
    place(v.bytes);
    const std::int64_t end = std::max(time_ns_, in_free_ns_) + copy_ns(table_[id].bytes);
    result_.stall_ns += end - time_ns_;
    in_free_ns_ = end;
    table_.restored(id, eager::How::kSwap, end - time_ns_);
    time_ns_ = end;
    return;
  }
  recompute(id, depth);
}

void Simulator::recompute(ValueId id, int depth) {
  if (depth > 200 || ++work_ > 3000) throw Infeasible{"recomputing without end"};
  const std::vector<ValueId> parents = live_.at(id.value).parents;
  const ProgramOp* op = live_.at(id.value).op;
  rule(op != nullptr, "recomputed without a recipe");
  if (op == nullptr) throw Infeasible{"no recipe"};
  for (bool all = false; !all;) {
    all = true;
    for (const ValueId p : parents)
      if (table_[p].residence != eager::Residence::kResident) {
        for (const ValueId q : parents) table_.soft_pin(q);
        bring(p, depth + 1);
        for (const ValueId q : parents) table_.soft_unpin(q);
        all = false;
      }
    if (++work_ > 3000) throw Infeasible{"parents push each other out"};
  }
  for (const ValueId p : parents) table_.pin(p);
  place(table_[id].bytes);
  time_ns_ += op->compute_ns;
  result_.recompute_ns += op->compute_ns;
  table_.restored(id, eager::How::kDrop, op->compute_ns);
  for (const ValueId p : parents) {
    table_.unpin(p);
    if (live_.at(p.value).dead && table_[p].residence == eager::Residence::kResident && table_[p].pins == 0) {
      resident_ -= table_[p].bytes;
      table_.died(p);
    }
  }
}

void Simulator::finish_copies() {
  for (auto& [row, l] : live_) {
    if (l.copied_at_ns >= 0 && l.copied_at_ns <= time_ns_) {
      l.copied_at_ns = -1;
      table_.copy_out_done(l.id);
    }
    if (l.fetched_at_ns >= 0 && l.fetched_at_ns <= time_ns_) {
      l.fetched_at_ns = -1;
      table_.fetch_done(l.id, 0);
    }
  }
}

void Simulator::take_advice() {
  finish_copies();
  for (int i = 0; i < 64; ++i) {
    const eager::Advice advice = keeper_.advise(options_.limit_bytes - resident_);
    if (advice.kind == eager::Advice::Kind::kNone) return;
    Live& l = live_.at(advice.value.value);
    const std::int64_t bytes = table_[advice.value].bytes;
    if (advice.kind == eager::Advice::Kind::kRelease) {
      release({advice.value, advice.how});
    } else if (advice.kind == eager::Advice::Kind::kCopyOut) {
      rule(table_[advice.value].residence == eager::Residence::kResident, "a copy out of what is not there");
      rule(table_[advice.value].host_copy == eager::HostCopy::kNone, "a second copy out");
      out_free_ns_ = l.copied_at_ns = std::max(time_ns_, out_free_ns_) + copy_ns(bytes);
      table_.copy_out_started(advice.value);
    } else {
      rule(table_[advice.value].residence == eager::Residence::kSwapped, "a fetch of what is not on the host");
      rule(resident_ + bytes <= options_.limit_bytes, "a fetch that passes the limit");
      place(bytes);
      in_free_ns_ = l.fetched_at_ns = std::max(time_ns_, in_free_ns_) + copy_ns(bytes);
      table_.fetch_started(advice.value);
    }
  }
  rule(false, "advice without end");
}

void Simulator::die(int program_value) {
  const ValueId id = now_.at(program_value);
  now_.erase(program_value);
  Live& l = live_.at(id.value);
  const auto residence = table_[id].residence;
  if (residence == eager::Residence::kResident || residence == eager::Residence::kFetching)
    resident_ -= table_[id].bytes;
  l.dead = true;
  l.fetched_at_ns = -1;
  std::set<ValueId> seen;
  const bool kept = l.op == nullptr && needed(id, seen);
  if (kept && table_[id].host_copy == eager::HostCopy::kNone) table_.released(id, eager::How::kSwap);  // a snapshot
  table_.died(id);
  if (l.op == nullptr && !kept) lose_children(id);
  forget_if_unneeded(id);
}

// Is a value that the program holds, and that is dropped, made from it along recipes?
bool Simulator::needed(ValueId id, std::set<ValueId>& seen) const {
  if (!seen.insert(id).second) return false;
  for (const ValueId child : live_.at(id.value).children) {
    const Live& l = live_.at(child.value);
    if (l.dead ? needed(child, seen) : table_[child].residence == eager::Residence::kDropped) return true;
  }
  return false;
}

// Nothing can be made from it any more.
void Simulator::lose_children(ValueId id) {
  const std::vector<ValueId> children = std::move(live_.at(id.value).children);
  live_.at(id.value).children.clear();
  for (const ValueId child : children) {
    if (!live_.count(child.value)) continue;  // it went with another one
    const Live& l = live_.at(child.value);
    rule(l.dead || table_[child].residence != eager::Residence::kDropped, "the program lost a dropped value");
    table_.lost_recipe(child);
    unlink(child);
    if (l.dead && table_[child].host_copy == eager::HostCopy::kNone) lose_children(child);
    forget_if_unneeded(child);
  }
}

// It has no recipe any more; parents that were kept for it may go.
void Simulator::unlink(ValueId id) {
  Live& l = live_.at(id.value);
  const std::vector<ValueId> parents = std::move(l.parents);
  l.parents.clear();
  l.op = nullptr;
  for (const ValueId p : parents) {
    const auto parent = live_.find(p.value);
    if (parent == live_.end()) continue;  // it went with another child
    std::erase(parent->second.children, id);
    forget_if_unneeded(p);
  }
}

void Simulator::forget_if_unneeded(ValueId id) {
  const auto it = live_.find(id.value);
  if (it == live_.end() || !it->second.dead || !it->second.children.empty() || table_[id].pins > 0) return;
  unlink(id);
  table_.forgotten(id);
  live_.erase(id.value);
}

}  // namespace stowage::testing
