// Running a product over its operand (product_over.h).
//
//   script     result | slice 0 | slice 1 | ...      the slices one after the other at one address
#include <cstring>

#include "runtime/replay/executor.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

// After the op's own allocation, which is its result. False where the plan has that elsewhere: nothing is added.
bool Executor::write_product_script(std::int32_t step, std::size_t from,
                                    const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch) {
  const Instruction& instruction = instructions_[static_cast<std::size_t>(step)];
  if (allocations_.size() == from || !allocations_[from].takes_over) return false;
  const ProductOver& product = lowered_.products[static_cast<std::size_t>(instruction.product)];
  for (std::int64_t i = 0; i < product.slices; ++i)
    allocations_.push_back({product.slice_bytes(i), scratch.at({step, 0})});
  return true;
}

void Executor::call_product(const Instruction& instruction, torch::jit::Stack& stack) {
  const ProductOver& product = lowered_.products[static_cast<std::size_t>(instruction.product)];
  const TapeOp& op = tape_->op(product.op);
  const Block& block = tape_->blocks[product.result.index()];
  const c10::Storage& operand = storages_[product.operand.index()];
  auto* const memory = static_cast<char*>(operand.mutable_data());
  const at::Tensor right = stack[1].toTensor();
  c10::Allocator* const allocator = c10::GetAllocator(block.device.type());
  const auto bytes = static_cast<std::size_t>(block.bytes);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator,
                       /*resizable=*/true);
  if (storage.data() != memory) {  // a kernel before took other memory than planned (allocation_script.h)
    storage = c10::Storage();
    return op.handle.callBoxed(&stack);
  }
  rows_written_ = true;
  TensorMeta columns = tape_->slots[product.transposed.index()].meta;
  for (std::int64_t i = 0; i < product.slices; ++i) {
    const std::int64_t from = product.from(i), count = product.from(i + 1) - from, left = product.columns - from;
    columns.sizes = {count, product.rows};
    columns.strides = {1, left};
    columns.storage_offset = product.rows * (product.columns - left);
    stack.assign({make_alias(operand, columns), right});
    op.handle.callBoxed(&stack);
    const at::Tensor made = stack[0].toTensor();
    stack.clear();
    if (!made.is_contiguous() || static_cast<std::int64_t>(made.nbytes()) != product.slice_bytes(i))
      throw std::runtime_error(name_with_line(*tape_, op) + " gives another form for a part of its rows");
    pack_columns(memory, product, from, count);
    std::memcpy(memory + from * product.width * product.item_bytes, made.const_data_ptr(), made.nbytes());
  }
  if (product.wrong) memory[bytes / 2] ^= 1;
  stack.emplace_back(make_alias(storage, tape_->slots[block.owner.index()].meta));
}

}  // namespace stowage::runtime
