#include "runtime/torch/split.h"

#include <ATen/core/List.h>

#include <cstdint>
#include <utility>

namespace stowage::runtime {
namespace {

bool is_number_list(const c10::Argument& argument) {
  const auto* list = argument.type()->castRaw<c10::ListType>();
  return list != nullptr && list->getElementType()->kind() == c10::TypeKind::NumberType;
}

constexpr std::int64_t kWholeBytes = 16384;  // of a list that is not split
constexpr std::int64_t kPieces = 32;

thread_local bool on_pieces = false;

struct Piece {
  std::size_t begin, end;
};

std::int64_t size_in_bytes(const at::Tensor& tensor) {  // nbytes() raises for sparse ones
  return tensor.numel() * static_cast<std::int64_t>(tensor.itemsize());
}

std::vector<Piece> pieces_of(const std::vector<at::Tensor>& tensors) {
  std::int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += size_in_bytes(tensor);
  std::int64_t least = total;
  if (total > kWholeBytes) least = tensors[0].device().is_cpu() ? 0 : total / kPieces;
  std::vector<Piece> pieces;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (pieces.empty() || bytes >= least) {
      pieces.push_back({i, i});
      bytes = 0;
    }
    bytes += size_in_bytes(tensors[i]);
    pieces.back().end = i + 1;
  }
  return pieces;
}

template <class List, class Values>
List some(List list, const Values& values, Piece piece) {
  for (std::size_t i = piece.begin; i < piece.end; ++i) list.push_back(values[i]);
  return list;
}

}  // namespace

OnPieces::OnPieces() : before_(std::exchange(on_pieces, true)) {}
OnPieces::~OnPieces() { on_pieces = before_; }

std::vector<torch::jit::Stack> split_list_op(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const std::size_t first = stack.size() - arguments.size();
  if (on_pieces || !stack[first].isTensorList()) return {};
  const std::vector<at::Tensor> leading = stack[first].toTensorVector();
  const std::vector<Piece> pieces = pieces_of(leading);
  std::vector<torch::jit::Stack> parts(pieces.size());
  for (std::size_t a = 0; a < arguments.size(); ++a) {
    const c10::IValue& value = stack[first + a];
    if (value.isTensorList()) {
      const std::vector<at::Tensor> tensors = value.toTensorVector();
      if (!tensors.empty() && tensors.size() != leading.size()) return {};
      for (std::size_t p = 0; p < pieces.size(); ++p)
        parts[p].emplace_back(some(c10::List<at::Tensor>(), tensors, tensors.empty() ? Piece{0, 0} : pieces[p]));
    } else if (value.isList() && is_number_list(arguments[a])) {
      const c10::List<c10::IValue> numbers = value.toList();
      if (numbers.size() != leading.size()) return {};
      for (std::size_t p = 0; p < pieces.size(); ++p)
        parts[p].emplace_back(some(c10::impl::GenericList(numbers.elementType()), numbers.vec(), pieces[p]));
    } else {
      for (torch::jit::Stack& part : parts) part.push_back(value);
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
