#include "sharding/unit.h"

#include <algorithm>

namespace stowage {
namespace {

bool is_written(const ProgramOp& op, TensorId tensor) {
  return std::find(op.writes.begin(), op.writes.end(), tensor) != op.writes.end();
}

bool works_by_element(const ProgramOp& op) {
  return op.target.find("._foreach_") != std::string::npos || op.target.find("._fused_adam") != std::string::npos ||
         op.target.find("._fused_sgd") != std::string::npos || op.target.find("._fused_adagrad") != std::string::npos;
}

// Slots of element `element` of each list, and of all tensors that are no list. -1: all of everything.
Unit make_unit(const TensorProgram& program, std::size_t o, int element, std::size_t elements) {
  const ProgramOp& op = program.ops[o];
  Unit unit{.op = TensorOpId(o), .slots = {}, .outputs = {}};
  std::int32_t position = 0;
  for (std::size_t a = 0; a < op.args.size(); ++a) {
    const TensorArgument& argument = op.args[a];
    for (std::size_t i = 0; i < argument.tensors.size(); ++i, ++position) {
      const bool one_of_many = element >= 0 && argument.is_list && argument.tensors.size() == elements;
      if (one_of_many && i != static_cast<std::size_t>(element)) continue;
      unit.slots.push_back(
          {static_cast<std::int32_t>(a), position, argument.tensors[i], is_written(op, argument.tensors[i])});
    }
  }
  if (element < 0) {
    unit.outputs = op.outputs;
  } else if (op.outputs.size() == elements) {
    unit.first_output = element;
    unit.outputs = {op.outputs[static_cast<std::size_t>(element)]};
  }
  return unit;
}

}  // namespace

std::vector<Unit> make_units(const TensorProgram& program) {
  std::vector<Unit> units;
  for (std::size_t o = 0; o < program.ops.size(); ++o) {
    const ProgramOp& op = program.ops[o];
    const bool lists = works_by_element(op) && !op.args.empty() && op.args[0].is_list && !op.args[0].tensors.empty();
    if (!lists) {
      units.push_back(make_unit(program, o, -1, 0));
      continue;
    }
    const std::size_t elements = op.args[0].tensors.size();
    for (std::size_t i = 0; i < elements; ++i) units.push_back(make_unit(program, o, static_cast<int>(i), elements));
  }
  return units;
}

std::string family_name(std::string_view target) {
  if (target.starts_with("aten.")) target.remove_prefix(5);
  target = target.substr(0, target.find('.'));
  constexpr std::string_view each = "_foreach_";
  if (target.starts_with(each)) target.remove_prefix(each.size());
  if (target.size() > 1 && target.ends_with('_') && !target.ends_with("__")) target.remove_suffix(1);
  return std::string(target);
}

UnitView::Shape UnitView::out_shape(int i) const {
  return has_output(i) ? Shape(program_.tensors[unit_.outputs[static_cast<std::size_t>(i)].index()].shape) : Shape();
}

int UnitView::slot_of(std::string_view argument) const {
  for (int s = 0; s < slots(); ++s)
    if (argument_of(s) == argument) return s;
  return -1;
}

std::string_view UnitView::argument_of(int slot) const {
  return op_.args[static_cast<std::size_t>(at(slot).argument)].name;
}

std::int64_t UnitView::integer(std::string_view attribute, std::int64_t otherwise) const {
  const auto found = op_.attributes.find(attribute);
  if (found == op_.attributes.end()) return otherwise;
  if (const auto* value = std::get_if<std::int64_t>(&found->second)) return *value;
  if (const auto* flag = std::get_if<bool>(&found->second)) return *flag ? 1 : 0;
  return otherwise;
}

double UnitView::number(std::string_view attribute, double otherwise) const {
  const auto found = op_.attributes.find(attribute);
  if (found == op_.attributes.end()) return otherwise;
  if (const auto* value = std::get_if<double>(&found->second)) return *value;
  return static_cast<double>(integer(attribute, static_cast<std::int64_t>(otherwise)));
}

std::vector<std::int64_t> UnitView::integers(std::string_view attribute) const {
  const auto found = op_.attributes.find(attribute);
  if (found == op_.attributes.end()) return {};
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&found->second)) return *list;
  if (const auto* value = std::get_if<std::int64_t>(&found->second)) return {*value};
  return {};
}

}  // namespace stowage
