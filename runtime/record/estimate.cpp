#include "runtime/record/estimate.h"

#include <algorithm>
#include <numeric>
#include <string_view>

namespace stowage::runtime {
namespace {

using Shape = std::vector<std::int64_t>;

double count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0,
                         [](double a, std::int64_t b) { return a * static_cast<double>(b); });
}

// Shape of the i-th argument that is a single tensor; empty when there is none.
Shape tensor_shape(const Tape& tape, const TapeOp& op, std::size_t i) {
  for (const TensorRef& ref : op.tensors) {
    if (ref.kind != TensorRef::Kind::kTensor || !ref.slots[0].valid()) continue;
    if (i-- == 0) return tape.slots[ref.slots[0].index()].meta.sizes;
  }
  return {};
}

double flops(const Tape& tape, const TapeOp& op) {
  const std::string_view name = op.handle.schema().name();
  const Shape a = tensor_shape(tape, op, 0);
  const Shape b = tensor_shape(tape, op, 1);
  const Shape c = tensor_shape(tape, op, 2);
  // [.., m, k] x [.., k, n]: the result has m * n elements, of k products each.
  if ((name == "aten::mm" || name == "aten::bmm") && !a.empty() && !b.empty())
    return 2 * count(a) * static_cast<double>(b.back());
  if ((name == "aten::addmm" || name == "aten::baddbmm") && !b.empty() && !c.empty()) {
    return 2 * count(b) * static_cast<double>(c.back());
  }
  // Each output element takes a product with every element of one output channel's filter.
  if (name == "aten::convolution" && b.size() > 2 && !op.creates.empty()) {
    const Shape& out = tape.slots[tape.blocks[op.creates[0].index()].owner.index()].meta.sizes;
    return 2 * count(out) * count(b) / static_cast<double>(b[0]);
  }
  if (name == "aten::convolution_backward" && c.size() > 2) return 4 * count(a) * count(c) / static_cast<double>(c[0]);
  // Queries against keys, and their weights against values; twice and a half that backward.
  if (name.find("scaled_dot_product") != std::string_view::npos && a.size() == 4 && b.size() == 4) {
    const double forward = 4 * count(a) * static_cast<double>(b[2]);
    return name.ends_with("_backward") ? 2.5 * forward : forward;
  }
  return 0;
}

double bytes(const Tape& tape, const TapeOp& op) {
  double total = 0;
  for_each_access(tape, op, [&](BlockId block, Access access) {
    total += static_cast<double>(tape.blocks[block.index()].bytes) * (access == Access::kWrite ? 2 : 1);
  });
  for (const BlockId block : op.creates) total += static_cast<double>(tape.blocks[block.index()].bytes);
  return total;
}

}  // namespace

std::int64_t estimated_cost_ns(const Tape& tape, const TapeOp& op, const Roofline& roofline) {
  return static_cast<std::int64_t>(
      std::max(flops(tape, op) / roofline.flops_per_ns, bytes(tape, op) / roofline.bytes_per_ns));
}

}  // namespace stowage::runtime
