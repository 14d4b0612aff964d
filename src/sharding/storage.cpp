#include "sharding/storage.h"

#include <algorithm>

namespace stowage {
namespace {

std::int64_t bytes_of(const ProgramTensor& tensor) {
  std::int64_t bytes = tensor.item_bytes;
  for (const std::int64_t size : tensor.shape) bytes *= size;
  return bytes;
}

class Finder {
 public:
  Finder(const TensorProgram& program, const std::vector<Unit>& units, const std::vector<char>& follows)
      : program_(program),
        units_(units),
        follows_(follows),
        n_(program.tensors.size()),
        needed_(n_, 0),
        children_(n_) {}

  Storage run() {
    find_uses();
    for (std::size_t t = 0; t < n_; ++t) place_in_fragment(t);
    find_ends();
    find_needs();
    s_.counted.assign(n_, Counted::kNot);
    s_.saved.assign(n_, 0);
    std::vector<char> kept(n_, 0);          // per fragment: its storage is
    for (std::size_t t = 0; t < n_; ++t) {  // what a fragment is a view of comes before it
      if (fragment(t) != t) continue;
      kept[t] = count(t, parent_[t] >= 0 && kept[static_cast<std::size_t>(parent_[t])] != 0);
      if (program_.tensors[t].kind == TensorKind::kGradient && s_.counted[t] == Counted::kNot)
        s_.counted[t] = Counted::kFull;
    }
    count_gradients();
    find_pins();
    return std::move(s_);
  }

 private:
  [[nodiscard]] std::size_t fragment(std::size_t t) const { return static_cast<std::size_t>(s_.fragment[t]); }

  void find_uses() {
    s_.maker.assign(n_, -1);
    s_.last_use.assign(n_, -1);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (const UnitSlot& slot : units_[u].slots) s_.last_use[slot.tensor.index()] = static_cast<std::int32_t>(u);
      for (const TensorId out : units_[u].outputs)
        if (out.valid()) s_.maker[out.index()] = static_cast<std::int32_t>(u);
    }
  }

  // The tensor that a view was made from: the first tensor of the op that made it.
  [[nodiscard]] std::int32_t base_of(std::size_t t) const {
    const TensorId alias = program_.tensors[t].alias_of;
    if (!alias.valid()) return -1;
    const std::int32_t maker = s_.maker[t];
    if (maker < 0 || units_[static_cast<std::size_t>(maker)].slots.empty()) return alias.value;
    return units_[static_cast<std::size_t>(maker)].slots[0].tensor.value;
  }

  void place_in_fragment(std::size_t t) {
    if (t == 0) s_.fragment.assign(n_, -1), parent_.assign(n_, -1);
    const std::int32_t base = base_of(t);
    const bool stays = base >= 0 && static_cast<std::size_t>(base) < t &&
                       (s_.maker[t] < 0 || follows_[static_cast<std::size_t>(s_.maker[t])]);
    s_.fragment[t] = stays ? s_.fragment[static_cast<std::size_t>(base)] : static_cast<std::int32_t>(t);
    if (stays || base < 0 || static_cast<std::size_t>(base) >= t) return;
    parent_[t] = s_.fragment[static_cast<std::size_t>(base)];
    children_[static_cast<std::size_t>(parent_[t])].push_back(static_cast<std::int32_t>(t));
  }

  void find_ends() {
    s_.fragment_end.assign(n_, -1);
    for (std::size_t t = 0; t < n_; ++t) {
      std::int32_t& end = s_.fragment_end[fragment(t)];
      end = std::max({end, s_.last_use[t], s_.maker[t]});
      if (program_.tensors[t].kind == TensorKind::kOutput) end = static_cast<std::int32_t>(units_.size()) - 1;
    }
  }

  [[nodiscard]] Phase phase_of(std::int32_t unit) const {
    return program_.ops[units_[static_cast<std::size_t>(unit)].op.index()].phase;
  }

  void find_needs() {
    std::vector<char> own(n_, 0);
    for (const Unit& unit : units_) {
      if (program_.ops[unit.op.index()].phase != Phase::kBackward) continue;
      for (const UnitSlot& slot : unit.slots) {
        const std::size_t t = slot.tensor.index();
        if (s_.maker[t] < 0 || phase_of(s_.maker[t]) == Phase::kForward) own[fragment(t)] = 1;
      }
    }
    direct_ = own;
    needed_ = own;
    for (std::size_t t = n_; t-- > 0;)
      if (needed_[t] && parent_[t] >= 0) needed_[static_cast<std::size_t>(parent_[t])] = 1;
  }

  // The needed children hold all of `f` between them, or are all of it.
  [[nodiscard]] bool covered(std::size_t f) const {
    std::int64_t sum = 0;
    for (const std::int32_t child : children_[f])
      if (needed_[static_cast<std::size_t>(child)]) sum += bytes_of(program_.tensors[static_cast<std::size_t>(child)]);
    return sum == bytes_of(program_.tensors[f]);
  }

  // Whether the fragment's storage is kept.
  bool count(std::size_t f, bool base_is_kept) {
    const bool state = s_.maker[f] < 0;
    if (state) {
      s_.counted[f] = Counted::kFull;
    } else if (needed_[f]) {
      if (base_is_kept) {
        s_.counted[f] = Counted::kCopy;
      } else if (direct_[f] || !covered(f)) {
        s_.counted[f] = Counted::kFull;
        s_.saved[f] = 1;
      }
    }
    return base_is_kept || s_.counted[f] == Counted::kFull;
  }

  // A gradient lives from backward to the optimizer, as what it is a view of.
  void count_gradients() {
    for (std::size_t t = 0; t < n_; ++t) {
      if (program_.tensors[t].kind != TensorKind::kGradient) continue;
      Counted& counted = s_.counted[fragment(t)];
      if (counted == Counted::kNot) counted = Counted::kFull;
    }
  }

  [[nodiscard]] std::size_t root(std::size_t t) const {
    for (t = fragment(t); parent_[t] >= 0;) t = static_cast<std::size_t>(parent_[t]);
    return t;
  }

  void find_pins() {
    s_.pinned.assign(units_.size(), 0);
    std::vector<std::int32_t> last_write(n_, -1);
    for (std::size_t u = 0; u < units_.size(); ++u)
      for (const UnitSlot& slot : units_[u].slots)
        if (slot.written) last_write[root(slot.tensor.index())] = static_cast<std::int32_t>(u);
    for (std::size_t t = 0; t < n_; ++t) {
      if (fragment(t) != t || parent_[t] < 0 || s_.maker[t] < 0) continue;
      const std::int32_t write = last_write[root(t)];
      if (write > s_.maker[t] && latest_use(t) >= first_write_after(s_.maker[t], root(t)))
        s_.pinned[static_cast<std::size_t>(s_.maker[t])] = 1;
    }
  }

  [[nodiscard]] std::int32_t latest_use(std::size_t t) const {
    std::int32_t last = -1;
    for (std::size_t v = 0; v < n_; ++v)
      if (fragment(v) == t) last = std::max(last, s_.last_use[v]);
    return last;
  }

  [[nodiscard]] std::int32_t first_write_after(std::int32_t unit, std::size_t storage) const {
    for (std::size_t u = static_cast<std::size_t>(unit) + 1; u < units_.size(); ++u)
      for (const UnitSlot& slot : units_[u].slots)
        if (slot.written && root(slot.tensor.index()) == storage) return static_cast<std::int32_t>(u);
    return static_cast<std::int32_t>(units_.size());
  }

  const TensorProgram& program_;
  const std::vector<Unit>& units_;
  const std::vector<char>& follows_;
  std::size_t n_;
  Storage s_;
  std::vector<std::int32_t> parent_;  // per fragment: the fragment it may be a view of
  std::vector<char> needed_, direct_;
  std::vector<std::vector<std::int32_t>> children_;
};

}  // namespace

bool is_state(TensorKind kind) {
  return kind == TensorKind::kParameter || kind == TensorKind::kOptimizerState || kind == TensorKind::kModuleBuffer ||
         kind == TensorKind::kInput || kind == TensorKind::kConstant;
}

Storage find_storage(const TensorProgram& program, const std::vector<Unit>& units, const std::vector<char>& follows) {
  return Finder(program, units, follows).run();
}

}  // namespace stowage
