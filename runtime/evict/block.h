// Blocks and storages: the bytes of a value leave its storage, and come back to it.
//
//   resident   S ─► block ─► header.value ─► v     found in O(1) from the storage
//   evicted    S ─► DataPtr(null, context = v)     so is it here; any read past the dispatcher throws a message that names v
//
//              take_block(v)                put(v, block)
//   S ─► block ───────────► S ─► (null, v) ───────────► S ─► block'       the reference to v moves along
//
// Neither changes the table: whoever calls them says there what happened, under the same lock. A storage has no lock of
// its own, and other threads may let go of it at any time: a reference is had by hold(), or the value is left alone.
#pragma once

#include "runtime/evict/value.h"

namespace stowage::runtime::evict {

// Of the one budget that is active, or was last: whose bytes are limited.
void set_budget_device(c10::Device where);
c10::Device budget_device();

// Of a strided tensor on the budget's device that is no wrapped number; null for what has no bytes of its own there.
c10::StorageImpl* storage_of(const at::Tensor& tensor);

StoragePtr bare_storage(c10::DataPtr block, std::int64_t bytes);
StoragePtr new_storage(std::int64_t bytes);

// Where a value is noted in a resident storage; null when the memory is foreign.
void** mark_in(c10::StorageImpl& storage);
// Where the value is noted: in the block, or in the context that stands for an evicted one.
Value* value_in(c10::StorageImpl* storage);

// The value's block, no longer marked; its storage, if it has one, is left evicted.
c10::DataPtr take_block(Value& value);
// The block becomes the value's, in its storage or in one of our own. False, and nothing has changed, where only a
// Python object has the storage, or its last owner lets go of it this very moment: it is buried by whoever looks next.
bool put(Value& value, c10::DataPtr& block);
// The evicted storage's context, which stands for `value` from now on: its reference is the context's.
void stand_for(c10::StorageImpl& storage, Ref<Value> value);

// Copies what is there, or on the host, into device memory; false when it is neither. A storage whose last owner is taking
// it apart has no context any more, but its address still, and its marked block stays until block_dies() has had the
// lock.
bool copy_bytes(Value& value, void* into);

// A pointer that leaves a watched storage other than to a kernel is told to the budget that is active. PyTorch calls
// back once, when a mutable pointer is asked for: outside a kernel that means that the address may be kept. Kernels ask
// too; the watch is then set again at the next op.
void watch(c10::StorageImpl& storage);
void unwatch(c10::StorageImpl& storage);
struct InKernel {
  InKernel();
  ~InKernel();
  InKernel(const InKernel&) = delete;
  InKernel& operator=(const InKernel&) = delete;
};
// How many the calling thread was in; it is in none from then on. And back.
int leave_kernels();
void enter_kernels(int count);

}  // namespace stowage::runtime::evict
