#include "runtime/torch/split.h"

#include <ATen/core/List.h>

namespace stowage::runtime {
namespace {

bool is_number_list(const c10::Argument& argument) {
  const auto* list = argument.type()->castRaw<c10::ListType>();
  return list != nullptr && list->getElementType()->kind() == c10::TypeKind::NumberType;
}

}  // namespace

std::vector<torch::jit::Stack> split_list_op(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack.size() - arguments.size();
  if (!stack[first].isTensorList()) return {};
  const std::size_t count = stack[first].toTensorVector().size();
  std::vector<torch::jit::Stack> parts(count);
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    const c10::IValue& value = stack[first + a];
    if (value.isTensorList()) {
      const std::vector<at::Tensor> tensors = value.toTensorVector();
      if (!tensors.empty() && tensors.size() != count) return {};
      for (std::size_t i = 0; i < count; ++i) {
        c10::List<at::Tensor> one;
        if (!tensors.empty()) one.push_back(tensors[i]);
        parts[i].emplace_back(std::move(one));
      }
    } else if (value.isList() && is_number_list(arguments[a])) {
      const c10::List<c10::IValue> numbers = value.toList();
      if (numbers.size() != count) return {};
      for (std::size_t i = 0; i < count; ++i) {
        c10::impl::GenericList one(numbers.elementType());
        one.push_back(numbers.get(i));
        parts[i].emplace_back(std::move(one));
      }
    } else {
      for (std::size_t i = 0; i < count; ++i) parts[i].push_back(value);
    }
  }
  return parts;
}

void join_results(const c10::OperatorHandle& op, std::vector<torch::jit::Stack>& parts, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
  for (std::size_t r = 0; r < op.schema().returns().size(); ++r) {
    c10::List<at::Tensor> joined;
    for (const torch::jit::Stack& part : parts) {
      for (const at::Tensor& tensor : part[r].toTensorVector()) joined.push_back(tensor);
    }
    stack->emplace_back(std::move(joined));
  }
}

}  // namespace stowage::runtime
