#include "sharding/ledger.h"

#include <algorithm>
#include <cmath>

#include "sharding/timeline.h"

namespace stowage {
namespace {

constexpr int kBuckets = 6;  // sizes that are tried besides none: of the largest copies, and of halves of them

class Ledger {
 public:
  Ledger(const Space& space, const Choice& choice)
      : space_(space),
        program_(*space.program),
        choice_(choice),
        axes_(space.mesh.axes.size()),
        n_(program_.tensors.size()) {
    unit_of_class_.assign(space.quotient.units.size(), -1);
    for (std::size_t u = 0; u < space.units.size(); ++u)
      unit_of_class_[static_cast<std::size_t>(space.units[u].unit_class)] = static_cast<std::int32_t>(u);
  }

  ShardingPlan run() {
    place_tensors();
    plan_.ops.resize(program_.ops.size());
    for (std::size_t o = 0; o < program_.ops.size(); ++o) size_op(o);
    for (std::size_t i = 0; i < space_.units_of_program.size(); ++i) run_unit(i);
    count_bytes();
    if (space_.overlap)
      overlap();
    else
      find_peak({});
    return std::move(plan_);
  }

 private:
  [[nodiscard]] Code code_of(std::size_t t) const {
    const SpaceTensor& tensor = space_.tensors[static_cast<std::size_t>(space_.quotient.tensor_class[t])];
    const HomeClass& home = space_.homes[static_cast<std::size_t>(tensor.home)];
    return tensor.of_root(home.codes[static_cast<std::size_t>(choice_.homes[static_cast<std::size_t>(tensor.home)])],
                          axes_);
  }

  [[nodiscard]] std::int64_t largest(std::size_t t, Code code) const {
    return largest_bytes(program_.tensors[t], code, space_.mesh);
  }
  [[nodiscard]] std::int64_t even_share(std::size_t t) const {
    const std::int64_t n = space_.mesh.devices();
    return (largest(t, kAllWhole) + n - 1) / n;
  }

  void place_tensors() {
    for (std::size_t t = 0; t < n_; ++t) {
      const Code code = code_of(t);
      codes_.push_back(code);
      plan_.tensors.push_back({to_placement(code, axes_), largest(t, code), largest(t, code) - even_share(t),
                               space_.storage.saved[t] != 0});
    }
  }

  void size_op(std::size_t o) {
    std::size_t inputs = 0;
    for (const TensorArgument& argument : program_.ops[o].args) inputs += argument.tensors.size();
    plan_.ops[o].inputs.resize(inputs);
    plan_.ops[o].computed.resize(program_.ops[o].outputs.size());
    plan_.ops[o].outputs.resize(program_.ops[o].outputs.size());
  }

  // A follower runs as its input lives.
  [[nodiscard]] const Strategy& strategy_of(std::size_t i) const {
    const UnitType& type = space_.types[static_cast<std::size_t>(space_.type_of_unit[i])];
    const std::int32_t u = unit_of_class_[static_cast<std::size_t>(space_.quotient.unit_class[i])];
    if (u >= 0) {
      const SpaceUnit& unit = space_.units[static_cast<std::size_t>(u)];
      return type.strategies[static_cast<std::size_t>(
          unit.usable[static_cast<std::size_t>(choice_.strategies[static_cast<std::size_t>(u)])])];
    }
    const Code in = codes_[space_.units_of_program[i].slots[0].tensor.index()];
    const auto found =
        std::find_if(type.strategies.begin(), type.strategies.end(), [&](const Strategy& s) { return s.in[0] == in; });
    return found == type.strategies.end() ? type.strategies[0] : *found;
  }

  void run_unit(std::size_t i) {
    const Unit& unit = space_.units_of_program[i];
    const Strategy& strategy = strategy_of(i);
    const UnitType& type = space_.types[static_cast<std::size_t>(space_.type_of_unit[i])];
    OpSharding& op = plan_.ops[unit.op.index()];
    op.compute_ns += strategy.compute_ns;
    const bool follows = space_.follows[i] != 0;
    std::int64_t copies = 0;
    KernelTurn turn{.still = space_.is_still(i), .ns = strategy.compute_ns};
    for (std::size_t s = 0; s < unit.slots.size(); ++s) {
      const std::size_t t = unit.slots[s].tensor.index();
      const bool touched = axis_code(strategy.in[s], 0) != kUntouched;
      const Code in = follows || !touched ? codes_[t] : strategy.in[s];
      op.inputs[static_cast<std::size_t>(unit.slots[s].position)] = to_placement(in, axes_);
      if (unit.slots[s].written) turn.writes.push_back(t);
      if (in == codes_[t]) {
        if (touched) turn.reads.push_back(t);
        continue;
      }
      turn.before.push_back(bringing(t, codes_[t], in, in));
      if (unit.slots[s].written) turn.after.push_back(bringing(t, in, codes_[t], in));
      const SpaceEdge edge{.at = static_cast<std::int32_t>(s),
                           .written = unit.slots[s].written,
                           .tensor_class = space_.quotient.tensor_class[t],
                           .count = 1};
      op.communication_ns += space_.edge_ns(edge, codes_[t], in);
      copies += largest(t, in);
      if (s == 0) redistributed_.resize(space_.units_of_program.size(), 0), redistributed_[i] = 1;
    }
    for (std::size_t o = 0; o < unit.outputs.size(); ++o) {
      if (!unit.outputs[o].valid()) continue;
      const std::size_t t = unit.outputs[o].index(), at = o + static_cast<std::size_t>(unit.first_output);
      const Code out = follows ? codes_[t] : strategy.out[o];
      op.computed[at] = to_placement(out, axes_);
      op.outputs[at] = to_placement(codes_[t], axes_);
      turn.makes.push_back(t);
      if (out == codes_[t]) continue;
      turn.after.push_back(bringing(t, out, codes_[t], out));
      const SpaceEdge edge{.at = static_cast<std::int32_t>(o),
                           .output = true,
                           .tensor_class = space_.quotient.tensor_class[t],
                           .count = 1};
      op.communication_ns += space_.edge_ns(edge, codes_[t], out);
      copies += largest(t, out);
      moved_out_.resize(space_.units_of_program.size(), 0), moved_out_[i] = 1;
    }
    op.transient_bytes += copies;
    if (space_.overlap) turns_.push_back(std::move(turn));
    plan_.compute_ns += strategy.compute_ns;
    if (strategy.recipe) op.recipe = type.rule.recipe;
    if (!type.rule.why.empty()) op.replicated = true, op.why = type.rule.why;
  }

  // `held`: how the copy lies that is alive meanwhile.
  [[nodiscard]] Bringing bringing(std::size_t t, Code from, Code to, Code held) const {
    if (!space_.overlap) return {};
    Bringing made{.tensor = t, .bytes = largest(t, held), .legs = {}};
    for (const Hop& hop : space_.hops(space_.quotient.tensor_class[t], from, to))
      if (hop.ns > 0) {
        const double latency = latency_ns(hop, space_.mesh);
        made.legs.push_back({axis_of(hop), latency, std::max(0.0, hop.ns - latency)});
      }
    return made;
  }

  // With the fastest of some sizes of buckets that keep the limit; where none does, without any.
  void overlap() {
    const std::vector<std::size_t> roots = find_roots();
    const std::int64_t largest = largest_copies(turns_);
    plan_.overlap = true;
    for (int tries = 0; tries <= kBuckets; ++tries) {
      const std::int64_t bucket = tries == 0 ? 0 : largest >> (kBuckets - tries);
      const OverlapTimeline line = make_timeline(turns_, roots, axes_, bucket);
      const ShardingBytes before = plan_.bytes;
      find_peak(line.beside);
      const bool fits = !space_.limit || plan_.bytes.limited_peak <= *space_.limit;
      if (tries > 0 && (!fits || line.ns >= plan_.overlapped_ns))
        plan_.bytes = before;
      else
        write(line, bucket);
    }
  }

  void write(const OverlapTimeline& line, std::int64_t bucket) {
    plan_.bucket_bytes = bucket;
    plan_.overlapped_ns = line.ns;
    plan_.links_ns = line.links;
    for (OpSharding& op : plan_.ops) op.waited_ns = 0, op.ahead_bytes = 0;
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      OpSharding& op = plan_.ops[space_.units_of_program[i].op.index()];
      op.waited_ns += line.waited[i];
      op.ahead_bytes = std::max(op.ahead_bytes, line.beside[i]);
    }
  }

  // Per tensor, the one whose storage it lies in.
  [[nodiscard]] std::vector<std::size_t> find_roots() const {
    std::vector<std::size_t> roots;
    for (std::size_t t = 0; t < n_; ++t) {
      std::size_t root = t;
      while (program_.tensors[root].alias_of.valid() && program_.tensors[root].alias_of.index() < root)
        root = program_.tensors[root].alias_of.index();
      roots.push_back(root);
    }
    return roots;
  }

  void add_state(std::size_t t, std::int64_t bytes) {
    ShardingBytes& sum = plan_.bytes;
    switch (program_.tensors[t].kind) {
      case TensorKind::kParameter: sum.parameters += bytes; break;
      case TensorKind::kOptimizerState: sum.optimizer_state += bytes; break;
      case TensorKind::kModuleBuffer: sum.buffers += bytes; break;
      default: sum.inputs += bytes; break;
    }
  }

  [[nodiscard]] bool holds_gradient(std::size_t t) const { return gradient_[t] != 0; }

  void count_bytes() {
    gradient_.assign(n_, 0);
    for (std::size_t t = 0; t < n_; ++t)
      if (program_.tensors[t].kind == TensorKind::kGradient)
        gradient_[static_cast<std::size_t>(space_.storage.fragment[t])] = 1;
    redistributed_.resize(space_.units_of_program.size(), 0);
    moved_out_.resize(space_.units_of_program.size(), 0);
    for (std::size_t t = 0; t < n_; ++t) {
      const std::int32_t maker = space_.storage.maker[t];
      if (space_.storage.counted[t] == Counted::kCopy && maker >= 0 &&
          redistributed_[static_cast<std::size_t>(maker)]) {
        const std::int64_t copy = copied_bytes(t);
        plan_.bytes.saved += copy;
        plan_.bytes.redundant += copy;
      }
      if (space_.storage.counted[t] != Counted::kFull) continue;
      const std::int64_t bytes = plan_.tensors[t].local_bytes;
      if (maker < 0)
        add_state(t, bytes);
      else if (holds_gradient(t))
        plan_.bytes.gradients += bytes;
      else
        plan_.bytes.saved += bytes;
      plan_.bytes.redundant += plan_.tensors[t].redundant_bytes;
      plan_.bytes.ideal += even_share(t);
    }
    for (const OpSharding& op : plan_.ops) plan_.communication_ns += op.communication_ns;
  }

  // What a view's input was brought to, and is kept as.
  [[nodiscard]] std::int64_t copied_bytes(std::size_t t) const {
    const auto maker = static_cast<std::size_t>(space_.storage.maker[t]);
    return largest(space_.units_of_program[maker].slots[0].tensor.index(), strategy_of(maker).in[0]);
  }

  // State, and what lives between its maker and its last use: each fragment of storage once, copies of views on their
  // own.
  void find_peak(const std::vector<std::int64_t>& beside) {
    plan_.bytes.peak = plan_.bytes.limited_peak = 0;
    plan_.bytes.peak_op = plan_.bytes.limited_peak_op = -1;
    const std::size_t units = space_.units_of_program.size();
    std::vector<std::int32_t> last = space_.storage.fragment_end;
    for (std::size_t t = n_; t-- > 0;) {  // a view that holds no copy keeps its base
      const std::int32_t base = kept_base(t);
      if (base >= 0) last[static_cast<std::size_t>(base)] = std::max(last[static_cast<std::size_t>(base)], last[t]);
    }
    std::vector<std::int64_t> change(units + 1, 0), held(n_, 0);
    std::int64_t state = 0;
    for (std::size_t t = 0; t < n_; ++t) {
      if (space_.storage.fragment[t] != static_cast<std::int32_t>(t)) continue;
      const std::int32_t maker = space_.storage.maker[t];
      if (maker < 0) {
        state += program_.tensors[t].alias_of.valid() ? 0 : plan_.tensors[t].local_bytes;
      } else if (kept_base(t) < 0) {
        const std::int64_t bytes =
            program_.tensors[t].alias_of.valid() ? copied_or_own(t) : plan_.tensors[t].local_bytes;
        held[t] = bytes;
        change[static_cast<std::size_t>(maker)] += bytes;
        change[static_cast<std::size_t>(last[t]) + 1] -= bytes;
      }
    }
    std::int64_t live = state;
    for (std::size_t i = 0; i < units; ++i) {
      live += change[i];
      const std::int32_t o = space_.units_of_program[i].op.value;
      const std::int64_t copies =
          plan_.ops[static_cast<std::size_t>(o)].transient_bytes + (beside.empty() ? 0 : beside[i]);
      const std::int64_t at = live + copies;
      if (at > plan_.bytes.peak) plan_.bytes.peak = at, plan_.bytes.peak_op = o;
      const std::int64_t others = space_.kept_share < 1 ? live - state - own_bytes(i, held) : 0;
      const double gone = (1 - space_.kept_share) * static_cast<double>(std::max<std::int64_t>(others, 0));
      const std::int64_t limited = at - static_cast<std::int64_t>(std::floor(gone));
      if (limited > plan_.bytes.limited_peak) plan_.bytes.limited_peak = limited, plan_.bytes.limited_peak_op = o;
    }
    plan_.bytes.peak = std::max(plan_.bytes.peak, state);
    plan_.bytes.limited_peak = std::max(plan_.bytes.limited_peak, state);
  }

  // Of the storages, not state, that a unit reads, changes or makes. `held`: bytes per fragment that has its own.
  [[nodiscard]] std::int64_t own_bytes(std::size_t i, const std::vector<std::int64_t>& held) const {
    std::vector<std::int32_t> own;
    const auto add = [&](TensorId t) {
      std::int32_t at = space_.storage.fragment[t.index()];
      for (std::int32_t base = at; base >= 0; base = kept_base(static_cast<std::size_t>(at))) at = base;
      if (std::find(own.begin(), own.end(), at) == own.end()) own.push_back(at);
    };
    const Unit& unit = space_.units_of_program[i];
    for (const UnitSlot& slot : unit.slots) add(slot.tensor);
    for (const TensorId out : unit.outputs)
      if (out.valid()) add(out);
    std::int64_t sum = 0;
    for (const std::int32_t t : own) sum += held[static_cast<std::size_t>(t)];
    return sum;
  }

  [[nodiscard]] std::int64_t copied_or_own(std::size_t t) const {
    const auto maker = static_cast<std::size_t>(space_.storage.maker[t]);
    return redistributed_[maker] && !moved_out_[maker] ? copied_bytes(t) : plan_.tensors[t].local_bytes;
  }

  // The fragment whose storage the first tensor of a fragment lies in; -1: its own.
  [[nodiscard]] std::int32_t kept_base(std::size_t t) const {
    const std::int32_t maker = space_.storage.maker[t];
    const bool view = space_.storage.fragment[t] == static_cast<std::int32_t>(t) &&
                      program_.tensors[t].alias_of.valid() && maker >= 0;
    if (!view || redistributed_[static_cast<std::size_t>(maker)] || moved_out_[static_cast<std::size_t>(maker)])
      return -1;
    const std::size_t base = space_.units_of_program[static_cast<std::size_t>(maker)].slots[0].tensor.index();
    return space_.storage.fragment[base];
  }

  const Space& space_;
  const TensorProgram& program_;
  const Choice& choice_;
  std::size_t axes_, n_;
  ShardingPlan plan_;
  std::vector<std::int32_t> unit_of_class_;
  std::vector<Code> codes_;
  std::vector<char> redistributed_;  // per unit: its first input is brought elsewhere
  std::vector<char> moved_out_;      // per unit: an output is
  std::vector<char> gradient_;       // per fragment
  std::vector<KernelTurn> turns_;    // with overlap: per unit
};

}  // namespace

ShardingPlan make_ledger(const Space& space, const Choice& choice) { return Ledger(space, choice).run(); }

}  // namespace stowage
