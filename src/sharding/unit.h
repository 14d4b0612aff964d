// Units: the ops as the search sees them. An op on lists, element by element (_foreach_add_, _fused_adamw_), is one unit for each
// element, so that every parameter chooses alone; every other op is one unit.
//
//   _fused_adamw_([w0, w1], [g0, g1], [m0, m1], ...)   ──▶   unit (w0, g0, m0, ...)   unit (w1, g1, m1, ...)
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "stowage/sharding.h"

namespace stowage {

struct UnitSlot {
  std::int32_t argument = 0;  // of the op
  std::int32_t position = 0;  // among all tensors of all arguments
  TensorId tensor;
  bool written = false;
};

struct Unit {
  TensorOpId op;
  std::vector<UnitSlot> slots;
  std::vector<TensorId> outputs;
  std::int32_t first_output = 0;  // of the op
};

std::vector<Unit> make_units(const TensorProgram& program);

// "aten._foreach_add_.List" -> "add", "aten.add_.Tensor" -> "add", "aten._softmax.default" -> "_softmax"
std::string family_name(std::string_view target);

// What a rule asks of a unit.
class UnitView {
 public:
  UnitView(const TensorProgram& program, const Unit& unit)
      : program_(program), unit_(unit), op_(program.ops[unit.op.index()]), name(family_name(op_.target)) {}

  using Shape = std::vector<std::int64_t>;
  [[nodiscard]] int slots() const { return static_cast<int>(unit_.slots.size()); }
  [[nodiscard]] int outputs() const { return static_cast<int>(unit_.outputs.size()); }
  [[nodiscard]] const Shape& shape(int slot) const { return program_.tensors[unit_.slots[static_cast<std::size_t>(slot)].tensor.index()].shape; }
  [[nodiscard]] bool has_output(int i) const { return i < outputs() && unit_.outputs[static_cast<std::size_t>(i)].valid(); }
  [[nodiscard]] const Shape& out_shape(int i) const;  // empty when it is not there
  [[nodiscard]] int slot_of(std::string_view argument) const;  // -1: not given
  [[nodiscard]] std::string_view argument_of(int slot) const;
  [[nodiscard]] bool written(int slot) const { return unit_.slots[static_cast<std::size_t>(slot)].written; }
  [[nodiscard]] std::int64_t integer(std::string_view attribute, std::int64_t otherwise) const;
  [[nodiscard]] double number(std::string_view attribute, double otherwise) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view attribute) const;  // a single one counts as a list
  [[nodiscard]] bool given(std::string_view attribute) const { return op_.attributes.find(attribute) != op_.attributes.end(); }
  [[nodiscard]] const ProgramOp& op() const { return op_; }

 private:
  const TensorProgram& program_;
  const Unit& unit_;
  const ProgramOp& op_;

 public:
  const std::string name;
};

}  // namespace stowage
