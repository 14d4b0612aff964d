#include "runtime/torch/shape_questions.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/core/List.h>

#include <algorithm>
#include <string_view>
#include <vector>

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

// What bincount() will have room for. What that refuses (negative numbers), it refuses here.
at::Tensor bins(const at::Tensor& numbers, std::int64_t minlength) {
  const bool refused = numbers.dim() != 1 || (numbers.numel() > 0 && numbers.min().item().toLong() < 0);
  if (refused) return at::bincount(numbers, {}, minlength);
  const std::int64_t most = numbers.numel() == 0 ? -1 : numbers.max().item().toLong();
  return at::full({}, std::max(minlength, most + 1), at::TensorOptions(numbers.device()).dtype(at::kLong));
}

// How many different numbers unique() will find; one after the other, unique_consecutive(). In memory of its own: what
// it needs is not known before.
at::Tensor different(const at::Tensor& numbers, bool consecutive) {
  const at::Tensor here = numbers.contiguous().cpu();
  std::int64_t count = 0;
  const auto count_them = [&]<class T>(const T* first) {
    std::vector<T> all(first, first + here.numel());
    const auto is_number = [](T value) { return value == value; };
    auto end = all.end();
    if (!consecutive) {
      end = std::partition(all.begin(), all.end(), is_number);
      std::sort(all.begin(), end);
      count = all.end() - end;  // no NaN is like another
    }
    for (auto it = all.begin(); it != end; ++it) count += it == all.begin() || *it != *(it - 1);
  };
  if (here.scalar_type() == at::kBool) {
    count_them(reinterpret_cast<const unsigned char*>(here.const_data_ptr<bool>()));
  } else {
    AT_DISPATCH_V2(here.scalar_type(), "different", AT_WRAP([&] { count_them(here.const_data_ptr<scalar_t>()); }),
                   AT_EXPAND(AT_ALL_TYPES), at::kHalf, at::kBFloat16);
  }
  return at::full({}, count, at::TensorOptions(numbers.device()).dtype(at::kLong));
}

ShapeQuestion bins_of(const at::Tensor& numbers, const c10::IValue& minlength) {
  static const c10::OperatorHandle count = find("stowage::bins", "");
  return {count, {numbers, minlength}};
}

ShapeQuestion different_of(const at::Tensor& numbers, bool consecutive) {
  static const c10::OperatorHandle count = find("stowage::different", "");
  return {count, {numbers, consecutive}};
}

}  // namespace

c10::OperatorHandle scalar_reader() {
  static const c10::OperatorHandle reader = find("aten::_local_scalar_dense", "");
  return reader;
}

bool refuses_when_asked(const c10::OperatorHandle& op) { return op.schema().name() == "aten::bincount"; }

std::vector<ShapeQuestion> shape_questions(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!depends_on_data(op, stack) || tells_value(op)) return {};
  const std::string_view name = op.schema().name();
  const std::size_t first = stack.size() - op.schema().arguments().size();
  if (name == "aten::nonzero") return {count_of(stack[first].toTensor())};
  if (name == "aten::masked_select") return {count_of(stack[first + 1].toTensor())};
  if (name == "aten::repeat_interleave" && op.schema().overload_name() == "Tensor")
    return {sum_of(stack[first].toTensor())};
  if (name == "aten::bincount") return {bins_of(stack[first].toTensor(), stack[first + 2])};
  if (name == "aten::_unique2" || name == "aten::_unique") return {different_of(stack[first].toTensor(), false)};
  if (name == "aten::unique_consecutive" && stack[first + 3].isNone())
    return {different_of(stack[first].toTensor(), true)};
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

TORCH_LIBRARY_FRAGMENT(stowage, m) {
  m.def("bins(Tensor numbers, int minlength) -> Tensor");
  m.def("different(Tensor numbers, bool consecutive) -> Tensor");
  m.impl("bins", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(stowage::runtime::bins)));
  m.impl("different",
         torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(stowage::runtime::different)));
}
