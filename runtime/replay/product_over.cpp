#include "runtime/replay/product_over.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kMostSlices = 8;

// All of its block, row after row once it is transposed.
bool is_dense_transposed(const TensorMeta& meta, const Block& block) {
  if (meta.sizes.size() != 2 || meta.storage_offset != 0 || meta.conjugated || meta.negated) return false;
  return meta.strides[0] == 1 && meta.strides[1] == meta.sizes[0] && meta.sizes[0] > 1 && meta.sizes[1] > 1 &&
         meta.sizes[0] * meta.sizes[1] * static_cast<std::int64_t>(meta.dtype.itemsize()) == block.bytes;
}

std::optional<ProductOver> product_over(const Tape& tape, TapeOpId id, const RowSlicing& options) {
  const TapeOp& op = tape.op(id);
  if (op.role != TapeOp::Role::kKernel || full_name(op.handle) != "aten::mm" || op.creates.size() != 1) return {};
  if (op.allocations.size() > 1 || op.random_order >= 0 || op.jump.moves() || op.settings != 0)
    return {};  // of fakes none is known
  for (const std::size_t i : {0UL, 1UL})
    if (op.tensors[i].kind != TensorRef::Kind::kTensor || !op.tensors[i].slots[0].valid()) return {};
  ProductOver product;
  product.op = id;
  product.wrong = options.wrong;
  product.transposed = op.tensors[0].slots[0];
  const Slot& left = tape.slots[product.transposed.index()];
  const Slot& right = tape.slots[op.tensors[1].slots[0].index()];
  product.operand = left.block;
  product.result = op.creates[0];
  const Block& operand = tape.blocks[product.operand.index()];
  const Block& result = tape.blocks[product.result.index()];
  const TensorMeta& made = tape.slots[result.owner.index()].meta;
  if (operand.external || operand.device != tape.device || result.device != tape.device) return {};
  if (right.block == left.block || right.meta.conjugated || right.meta.negated ||
      !is_dense_transposed(left.meta, operand))
    return {};
  product.columns = left.meta.sizes[0];
  product.rows = left.meta.sizes[1];
  product.width = made.sizes.back();
  product.item_bytes = static_cast<std::int64_t>(made.dtype.itemsize());
  product.slices = std::min(kMostSlices, product.columns / std::max<std::int64_t>(options.product_columns, 1));
  const bool whole = made.is_contiguous() && made.storage_offset == 0 && made.dtype == left.meta.dtype &&
                     product.columns * product.width * product.item_bytes == result.bytes;
  if (!whole || !at::isFloatingType(made.dtype.toScalarType())) return {};
  if (product.width > product.rows || product.width < options.product_columns / 4 || product.slices < 2) return {};
  return product;
}

// What the op reads, writes and makes in the arena.
std::int64_t bytes_at(const Tape& tape, const TapeOp& op) {
  std::set<BlockId> touched(op.creates.begin(), op.creates.end());
  for_each_access(tape, op, [&](BlockId block, Access) { touched.insert(block); });
  std::int64_t bytes = 0;
  for (const BlockId block : touched)
    if (!tape.blocks[block.index()].external) bytes += tape.planned_bytes(tape.blocks[block.index()]);
  return bytes;
}

}  // namespace

std::vector<ProductOver> find_products_over(const Tape& tape, const RowSlicing& options,
                                            const std::vector<RowChain>& chains, std::vector<bool> taken) {
  if (!options.on || options.product_columns <= 0 || !tape.device.is_cpu()) return {};
  for (const RowChain& chain : chains)
    for (const RowMember& member : chain.members) taken[member.op.index()] = true;
  std::int64_t most = 0;
  for (std::size_t i = 0; i < tape.ops.size(); ++i)
    if (!taken[i] && tape.ops[i].role == TapeOp::Role::kKernel) most = std::max(most, bytes_at(tape, tape.ops[i]));
  std::vector<ProductOver> found;
  for (std::size_t i = 0; i < tape.ops.size(); ++i) {
    if (taken[i]) continue;
    const std::optional<ProductOver> product = product_over(tape, TapeOpId(i), options);
    if (!product) continue;
    const std::int64_t bytes = tape.blocks[product->operand.index()].bytes + tape.blocks[product->result.index()].bytes;
    if (tape.blocks[product->result.index()].bytes >= options.least_bytes && 2 * bytes >= most)
      found.push_back(*product);
  }
  return found;
}

void pack_columns(char* memory, const ProductOver& product, std::int64_t c, std::int64_t gone) {
  const std::int64_t end = product.rows * product.columns, before = product.columns - c, after = before - gone;
  for (std::int64_t row = product.rows; row-- > 0;) {
    const std::int64_t from = end - (product.rows - row) * before + gone, to = end - (product.rows - row) * after;
    std::memmove(memory + to * product.item_bytes, memory + from * product.item_bytes,
                 static_cast<std::size_t>(after * product.item_bytes));
  }
}

}  // namespace stowage::runtime
