// Reads and writes past the dispatcher: numpy(), data_ptr(), DLPack, a kernel of the user's own.
//
// A storage that is evicted throws. One that is resident carries a materializer, which PyTorch calls once, when a
// mutable pointer is asked for: outside a kernel that means that the address may be kept. Kernels ask too; the watch is
// then set again at the next op.
#include "runtime/evict/budget.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

thread_local int tl_kernels = 0;

void pointer_leaves(c10::StorageImpl* storage) {
  if (tl_kernels > 0) return;
  if (Budget* budget = active_budget()) budget->touched_outside(storage);
}

}  // namespace

InKernel::InKernel() { ++tl_kernels; }
InKernel::~InKernel() { --tl_kernels; }

void watch(c10::StorageImpl& storage) { torch_versions::call_back(storage, &pointer_leaves); }

void unwatch(c10::StorageImpl& storage) { torch_versions::do_not_call_back(storage); }

}  // namespace stowage::runtime::evict
