#include "runtime/torch/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "runtime/torch/torch_versions.h"

namespace stowage::runtime {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

std::string_view functional_name(const c10::OperatorHandle& op) {
  constexpr std::string_view kSpace = "_c10d_functional::";
  const std::string_view name = op.schema().name();
  return name.starts_with(kSpace) ? name.substr(kSpace.size()) : std::string_view();
}

Group group_of(const c10::IValue& value) {
  return value.isString() ? c10d::resolve_process_group(value.toStringRef())
                          : value.toCustomClass<c10d::ProcessGroup>();
}

c10d::ReduceOp reduction(const std::string& name) {
  if (name == "sum") return c10d::ReduceOp::SUM;
  if (name == "avg") return c10d::ReduceOp::AVG;
  if (name == "max") return c10d::ReduceOp::MAX;
  if (name == "min") return c10d::ReduceOp::MIN;
  if (name == "product") return c10d::ReduceOp::PRODUCT;
  TORCH_CHECK_NOT_IMPLEMENTED(false, "stowage: a collective that reduces by '", name, "'");
}

// The same memory, owned by nobody.
at::Tensor borrowed(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.options().requires_grad(false));
}

void finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (work) work->wait();
}

at::Tensor all_reduce(const at::Tensor& input, const std::string& how, const Group& group) {
  at::Tensor result = at::empty(input.sizes(), input.options());
  result.copy_(input);
  std::vector<at::Tensor> tensors = {borrowed(result)};
  c10d::AllreduceOptions options;
  const bool divide = how == "avg" && input.device().is_cpu();  // gloo has no average
  options.reduceOp = divide ? c10d::ReduceOp(c10d::ReduceOp::SUM) : reduction(how);
  finish(group->allreduce(tensors, options));
  if (divide) result.div_(group->getSize());
  return result;
}

// Gloo gathers into a tensor of its own, on a thread of its own, and copies that: as many bytes again, which no plan
// would know of. So each rank sends its rows to every other, and receives theirs where they belong.
void exchange_rows(const at::Tensor& result, const at::Tensor& input, const Group& group) {
  constexpr int kTag = 0x73746f77;  // a user's own messages have small ones
  const std::size_t bytes = input.nbytes();
  if (bytes == 0) return;
  const int rank = group->getRank();
  const std::int64_t rows = input.size(0);
  std::memcpy(static_cast<char*>(result.data_ptr()) + bytes * static_cast<std::size_t>(rank), input.data_ptr(), bytes);
  std::vector<c10::intrusive_ptr<c10d::Work>> under_way;
  for (int peer = 0; peer < group->getSize(); ++peer) {
    if (peer == rank) continue;
    std::vector<at::Tensor> mine = {borrowed(input)}, theirs = {borrowed(result.narrow(0, peer * rows, rows))};
    under_way.push_back(group->send(mine, peer, kTag));
    under_way.push_back(group->recv(theirs, peer, kTag));
  }
  for (const auto& work : under_way) finish(work);
}

at::Tensor all_gather(const at::Tensor& input, const Group& group) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  TORCH_CHECK(!sizes.empty(), "stowage: a gather of a tensor without dimensions");
  sizes[0] *= group->getSize();
  at::Tensor result = at::empty(sizes, input.options());
  if (input.device().is_cpu()) {
    exchange_rows(result, input, group);
    return result;
  }
  at::Tensor from = borrowed(input);
  at::Tensor to = borrowed(result);
  finish(torch_versions::all_gather(*group, to, from));
  return result;
}

at::Tensor reduce_scatter(const at::Tensor& input, const std::string& how, const Group& group) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  TORCH_CHECK(!sizes.empty() && sizes[0] % group->getSize() == 0,
              "stowage: a reduce-scatter whose size the group does not divide");
  sizes[0] /= group->getSize();
  at::Tensor result = at::empty(sizes, input.options());
  if (input.device().is_cpu()) {
    const at::Tensor all = all_reduce(input, how, group);
    const auto bytes = result.nbytes();
    if (bytes > 0)
      std::memcpy(result.mutable_data_ptr(),
                  static_cast<const char*>(all.data_ptr()) + bytes * static_cast<std::size_t>(group->getRank()), bytes);
    return result;
  }
  at::Tensor from = borrowed(input);
  at::Tensor to = borrowed(result);
  c10d::ReduceScatterOptions options;
  options.reduceOp = reduction(how);
  finish(torch_versions::reduce_scatter(*group, to, from, options));
  return result;
}

at::Tensor all_to_all(const at::Tensor& input, std::vector<std::int64_t> to_rows, std::vector<std::int64_t> from_rows,
                      const Group& group) {
  std::vector<std::int64_t> sizes = input.sizes().vec();
  sizes[0] = 0;
  for (const std::int64_t rows : to_rows) sizes[0] += rows;
  at::Tensor result = at::empty(sizes, input.options());
  at::Tensor from = borrowed(input);
  at::Tensor to = borrowed(result);
  finish(torch_versions::all_to_all(*group, to, from, to_rows, from_rows));
  return result;
}

at::Tensor broadcast(const at::Tensor& input, std::int64_t root, const Group& group) {
  at::Tensor result = at::empty(input.sizes(), input.options());
  result.copy_(input);
  std::vector<at::Tensor> tensors = {borrowed(result)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  finish(group->broadcast(tensors, options));
  return result;
}

}  // namespace

bool is_collective(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 5> kKnown = {"all_reduce", "all_gather_into_tensor",
                                                             "reduce_scatter_tensor", "all_to_all_single", "broadcast"};
  const std::string_view name = functional_name(op);
  return std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
}

void run_collective(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string_view name = functional_name(op);
  const std::vector<c10::IValue> args = torch::jit::pop(*stack, op.schema().arguments().size());
  const at::Tensor input = args[0].toTensor().is_contiguous() ? args[0].toTensor() : args[0].toTensor().contiguous();
  const Group group = group_of(args.back());
  at::Tensor result;
  if (name == "all_reduce") {
    result = all_reduce(input, args[1].toStringRef(), group);
  } else if (name == "all_gather_into_tensor") {
    result = all_gather(input, group);
  } else if (name == "reduce_scatter_tensor") {
    result = reduce_scatter(input, args[1].toStringRef(), group);
  } else if (name == "all_to_all_single") {
    result = all_to_all(input, args[1].toIntVector(), args[2].toIntVector(), group);
  } else {
    result = broadcast(input, args[1].toInt(), group);
  }
  stack->emplace_back(std::move(result));
}

}  // namespace stowage::runtime
