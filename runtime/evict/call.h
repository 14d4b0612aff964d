// The tensors of one call, and the recipe that remembers it.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/SmallVector.h>

#include "runtime/evict/value.h"

namespace stowage::runtime::evict {

struct Operand {
  const at::Tensor* tensor = nullptr;   // on the stack, or in a list that is
  c10::StorageImpl* storage = nullptr;  // of a strided CPU tensor that is no wrapped number; else null
  std::uint16_t argument = 0;
  bool written = false;
  bool overwritten = false;  // every byte of its storage, and nothing of it is read
  bool shape_only = false;
  Value* value = nullptr;  // that the storage holds; null: none, or foreign memory
};

using Operands = c10::SmallVector<Operand, 8>;

// Undefined tensors and empty optionals included. Valid as long as the stack is untouched.
void collect(const OpTraits& op, const torch::jit::Stack& stack, Operands& operands);

// Batch norm in training writes its running statistics on the side: they are left out when it runs again.
bool left_out(const OpTraits& op, const torch::jit::Stack& stack, const Operand& operand);

// The op could run again from what its arguments hold now. Foreign memory can change unseen, a generator of the user's
// own cannot be rewound, and objects may do anything.
bool can_remember(const OpTraits& op, const torch::jit::Stack& stack, const Operands& operands);

// `settings`: under which it runs.
Ref<Recipe> remember(Graph& graph, const c10::OperatorHandle& handle, const OpTraits& op,
                     const torch::jit::Stack& stack, const Operands& operands,
                     const std::shared_ptr<const KernelSettings>& settings);

// The tensors that an op returned, in order.
void collect_results(const OpTraits& op, const torch::jit::Stack& stack,
                     c10::SmallVector<const at::Tensor*, 4>& tensors);

// Equal for calls of one op on tensors of equal shapes.
std::uint64_t signature_of(const OpTraits& op, const Operands& operands);

}  // namespace stowage::runtime::evict
