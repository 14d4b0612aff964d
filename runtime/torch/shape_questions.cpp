#include "runtime/torch/shape_questions.h"

#include <ATen/core/List.h>

#include <string_view>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

c10::OperatorHandle find(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

ShapeQuestion count_of(const at::Tensor& mask) {
  static const c10::OperatorHandle count = find("aten::count_nonzero", "dim_IntList");
  return {count, {mask, c10::List<std::int64_t>()}};
}

ShapeQuestion sum_of(const at::Tensor& numbers) {
  static const c10::OperatorHandle sum = find("aten::sum", "");
  return {sum, {numbers, c10::IValue()}};
}

}  // namespace

c10::OperatorHandle scalar_reader() {
  static const c10::OperatorHandle reader = find("aten::_local_scalar_dense", "");
  return reader;
}

std::vector<ShapeQuestion> shape_questions(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!depends_on_data(op, stack) || tells_value(op)) return {};
  const std::string_view name = op.schema().name();
  const std::size_t first = stack.size() - op.schema().arguments().size();
  if (name == "aten::nonzero") return {count_of(stack[first].toTensor())};
  if (name == "aten::masked_select") return {count_of(stack[first + 1].toTensor())};
  if (name == "aten::repeat_interleave" && op.schema().overload_name() == "Tensor")
    return {sum_of(stack[first].toTensor())};
  std::vector<ShapeQuestion> questions;
  if (name != "aten::index") return questions;
  for (const std::optional<at::Tensor>& index : stack.back().toOptionalTensorVector()) {
    const bool mask =
        index && index->defined() && (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte);
    if (mask) questions.push_back(count_of(*index));
  }
  return questions;
}

}  // namespace stowage::runtime
