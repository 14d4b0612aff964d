// Units: the ops as the search sees them. An op on lists, element by element (_foreach_add_, _fused_adamw_), is one
// unit for each element, so that every parameter chooses alone; every other op is one unit.
//
//   _fused_adamw_([w0, w1], [g0, g1], [m0, m1], ...)   ──▶   unit (w0, g0, m0, ...)   unit (w1, g1, m1, ...)
#pragma once

#include <algorithm>
#include <exception>
#include <span>
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

// An op that does not have the arguments, results or dimensions that its name promises: whoever asks for one gets this.
class Misfit : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override {
    return "an argument, a result or a dimension is not there";
  }
};

// The sizes of a tensor's dimensions; one that is not there is a Misfit.
class Sizes {
 public:
  Sizes() = default;
  explicit Sizes(std::span<const std::int64_t> sizes) : sizes_(sizes) {}
  [[nodiscard]] std::size_t size() const { return sizes_.size(); }
  [[nodiscard]] bool empty() const { return sizes_.empty(); }
  [[nodiscard]] auto begin() const { return sizes_.begin(); }
  [[nodiscard]] auto end() const { return sizes_.end(); }
  [[nodiscard]] std::int64_t back() const { return (*this)[sizes_.size() - 1]; }
  std::int64_t operator[](std::size_t d) const {
    if (d >= sizes_.size()) throw Misfit();
    return sizes_[d];
  }
  friend bool operator==(const Sizes& a, const Sizes& b) { return std::ranges::equal(a.sizes_, b.sizes_); }

 private:
  std::span<const std::int64_t> sizes_;
};

// What a rule asks of a unit. A slot or result that is not there is a Misfit.
class UnitView {
 public:
  UnitView(const TensorProgram& program, const Unit& unit)
      : program_(program), unit_(unit), op_(program.ops[unit.op.index()]), name(family_name(op_.target)) {}

  using Shape = Sizes;
  [[nodiscard]] int slots() const { return static_cast<int>(unit_.slots.size()); }
  [[nodiscard]] int outputs() const { return static_cast<int>(unit_.outputs.size()); }
  [[nodiscard]] Shape shape(int slot) const { return Shape(program_.tensors[at(slot).tensor.index()].shape); }
  [[nodiscard]] bool has_output(int i) const {
    return i < outputs() && unit_.outputs[static_cast<std::size_t>(i)].valid();
  }
  [[nodiscard]] Shape out_shape(int i) const;                  // empty when it is not there
  [[nodiscard]] int slot_of(std::string_view argument) const;  // -1: not given
  [[nodiscard]] std::string_view argument_of(int slot) const;
  [[nodiscard]] bool written(int slot) const { return at(slot).written; }
  [[nodiscard]] std::int64_t integer(std::string_view attribute, std::int64_t otherwise) const;
  [[nodiscard]] double number(std::string_view attribute, double otherwise) const;
  [[nodiscard]] std::vector<std::int64_t> integers(std::string_view attribute) const;  // a single one counts as a list
  [[nodiscard]] bool given(std::string_view attribute) const {
    return op_.attributes.find(attribute) != op_.attributes.end();
  }
  [[nodiscard]] const ProgramOp& op() const { return op_; }

 private:
  [[nodiscard]] const UnitSlot& at(int slot) const {
    if (slot < 0 || slot >= slots()) throw Misfit();
    return unit_.slots[static_cast<std::size_t>(slot)];
  }

  const TensorProgram& program_;
  const Unit& unit_;
  const ProgramOp& op_;

 public:
  const std::string name;
};

}  // namespace stowage
