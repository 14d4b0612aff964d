#include "sharding/quotient.h"

#include <algorithm>
#include <unordered_map>

#include "base/concat.h"
#include "sharding/code.h"

namespace stowage {
namespace {

using Colour = std::uint64_t;

constexpr int kMostRounds = 1000;  // what is told apart only by what lies further away is as good as alike

Colour mix(Colour a, Colour b) {
  a ^= b + 0x9e3779b97f4a7c15ULL + (a << 6) + (a >> 2);
  a *= 0xff51afd7ed558ccdULL;
  return a ^ (a >> 32);
}

std::string shape_text(const ProgramTensor& tensor) {
  std::string text = concat(tensor.item_bytes, "[");
  for (const std::int64_t size : tensor.shape) text += concat(size, ",");
  return text;
}

struct AttributeText {
  std::string operator()(bool value) const { return value ? "t" : "f"; }
  std::string operator()(std::int64_t value) const { return concat(value); }
  std::string operator()(double value) const { return std::to_string(value); }
  std::string operator()(const std::string& value) const { return value; }
  std::string operator()(const std::vector<std::int64_t>& list) const {
    std::string text;
    for (const std::int64_t value : list) text += concat(value, ",");
    return text;
  }
};

class Refiner {
 public:
  Refiner(const TensorProgram& program, const std::vector<Unit>& units,
          const std::map<std::int32_t, MeshPlacement>& fixed)
      : program_(program), units_(units), unit_(units.size()), tensor_(program.tensors.size()) {
    for (std::size_t u = 0; u < units.size(); ++u)
      unit_[u] = std::hash<std::string>{}(unit_signature(program, units[u]));
    for (std::size_t t = 0; t < tensor_.size(); ++t) {
      const ProgramTensor& tensor = program.tensors[t];
      tensor_[t] = mix(std::hash<std::string>{}(shape_text(tensor)),
                       static_cast<Colour>(tensor.kind) + (tensor.alias_of.valid() ? 64 : 0));
      const auto at = fixed.find(static_cast<std::int32_t>(t));
      if (at != fixed.end()) tensor_[t] = mix(tensor_[t], to_code(at->second) + 1);
    }
  }

  // False when nothing more is told apart: then no later round does either, since colours take up those before.
  bool round() {
    std::vector<Colour> units = unit_, tensors = tensor_;
    for (std::size_t t = 0; t < tensor_.size(); ++t)
      if (program_.tensors[t].of.valid()) tensors[t] = mix(tensors[t], tensor_[program_.tensors[t].of.index()]);
    for (std::size_t u = 0; u < units_.size(); ++u) {
      for (std::size_t s = 0; s < units_[u].slots.size(); ++s) {
        const std::size_t t = units_[u].slots[s].tensor.index();
        units[u] = mix(units[u], tensor_[t]);
        tensors[t] += mix(unit_[u], s + 1);  // a sum: readers have no order
      }
      for (std::size_t o = 0; o < units_[u].outputs.size(); ++o) {
        if (!units_[u].outputs[o].valid()) continue;
        const std::size_t t = units_[u].outputs[o].index();
        units[u] = mix(units[u], tensor_[t] + 7);
        tensors[t] = mix(tensors[t], mix(unit_[u], 1000 + o));
      }
    }
    unit_ = std::move(units);
    tensor_ = std::move(tensors);
    const std::size_t before = classes_;
    classes_ = distinct(unit_) + distinct(tensor_);
    return classes_ != before;
  }

  // A made tensor is told by its maker, so that a class of units makes one class of tensors.
  Quotient finish(bool alone) {
    for (std::size_t u = 0; u < units_.size(); ++u) {
      if (alone) unit_[u] = u;
      for (std::size_t o = 0; o < units_[u].outputs.size(); ++o)
        if (units_[u].outputs[o].valid()) tensor_[units_[u].outputs[o].index()] = mix(mix(unit_[u], 77), o);
    }
    if (alone)
      for (std::size_t t = 0; t < tensor_.size(); ++t) tensor_[t] = t;
    Quotient quotient;
    std::unordered_map<Colour, std::int32_t> tensors, classes;
    for (std::size_t t = 0; t < tensor_.size(); ++t) {
      const auto [at, fresh] = tensors.try_emplace(tensor_[t], static_cast<std::int32_t>(tensors.size()));
      quotient.tensor_class.push_back(at->second);
      if (fresh) quotient.tensor_example.push_back(static_cast<std::int32_t>(t)), quotient.tensor_count.push_back(0);
      ++quotient.tensor_count[static_cast<std::size_t>(at->second)];
    }
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto [at, fresh] = classes.try_emplace(unit_[u], static_cast<std::int32_t>(classes.size()));
      quotient.unit_class.push_back(at->second);
      if (fresh) quotient.units.push_back(fresh_class(u, quotient));
      add(units_[u], quotient.units[static_cast<std::size_t>(at->second)], quotient);
    }
    return quotient;
  }

 private:
  UnitClass fresh_class(std::size_t u, const Quotient& quotient) const {
    UnitClass fresh;
    fresh.example = static_cast<std::int32_t>(u);
    fresh.sources.resize(units_[u].slots.size());
    for (const TensorId out : units_[u].outputs)
      fresh.outputs.push_back(out.valid() ? quotient.tensor_class[out.index()] : -1);
    return fresh;
  }

  static void add(const Unit& unit, UnitClass& to, const Quotient& quotient) {
    ++to.count;
    for (std::size_t s = 0; s < unit.slots.size(); ++s)
      ++to.sources[s][quotient.tensor_class[unit.slots[s].tensor.index()]];
  }

  static std::size_t distinct(std::vector<Colour> colours) {
    std::sort(colours.begin(), colours.end());
    return static_cast<std::size_t>(std::unique(colours.begin(), colours.end()) - colours.begin());
  }

  const TensorProgram& program_;
  const std::vector<Unit>& units_;
  std::vector<Colour> unit_, tensor_;
  std::size_t classes_ = 0;
};

}  // namespace

std::string unit_signature(const TensorProgram& program, const Unit& unit) {
  const ProgramOp& op = program.ops[unit.op.index()];
  std::string text = concat(op.target, "|", static_cast<int>(op.phase), "|", op.flops);
  for (const UnitSlot& slot : unit.slots) {
    text += concat("|", op.args[static_cast<std::size_t>(slot.argument)].name, slot.written ? "!" : "",
                   shape_text(program.tensors[slot.tensor.index()]));
  }
  for (const TensorId out : unit.outputs)
    text += out.valid() ? concat(">", shape_text(program.tensors[out.index()])) : std::string(">-");
  for (const auto& [name, value] : op.attributes) text += concat("|", name, "=", std::visit(AttributeText{}, value));
  return text;
}

Quotient make_quotient(const TensorProgram& program, const std::vector<Unit>& units,
                       const std::map<std::int32_t, MeshPlacement>& fixed, int rounds) {
  Refiner refiner(program, units, fixed);
  for (int r = 0; r < std::min(rounds, kMostRounds) && refiner.round(); ++r) {
  }
  return refiner.finish(rounds == 0);
}

}  // namespace stowage
