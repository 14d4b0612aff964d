#include "runtime/evict/block.h"

#include <atomic>
#include <utility>

#include "runtime/evict/budget.h"
#include "runtime/memory/allocator.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

thread_local int tl_kernels = 0;
std::atomic<c10::Device> g_device{kHost};

// Marks the data pointer of an evicted storage, whose context is the value.
void evicted_storage_is_freed(void* context) {
  if (Budget* budget = active_budget()) budget->evicted_storage_dies(static_cast<Value*>(context));
}

void pointer_leaves(c10::StorageImpl* storage) {
  if (tl_kernels > 0) return;
  if (Budget* budget = active_budget()) budget->outside().touched(storage);
}

}  // namespace

InKernel::InKernel() { ++tl_kernels; }
InKernel::~InKernel() { --tl_kernels; }
int leave_kernels() { return std::exchange(tl_kernels, 0); }
void enter_kernels(int count) { tl_kernels = count; }

void watch(c10::StorageImpl& storage) { torch_versions::call_back(storage, &pointer_leaves); }

void unwatch(c10::StorageImpl& storage) { torch_versions::do_not_call_back(storage); }

void set_budget_device(c10::Device where) { g_device.store(where); }
c10::Device budget_device() { return g_device.load(std::memory_order_relaxed); }

c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::Device where = budget_device();
  const bool there = where.is_cpu() ? impl->is_cpu() : impl->device() == where;
  if (!there || !impl->has_storage() || impl->layout() != at::kStrided || impl->is_wrapped_number()) return nullptr;
  return impl->unsafe_storage().unsafeGetStorageImpl();
}

StoragePtr bare_storage(c10::DataPtr block, std::int64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
                                               std::move(block), &device_at(budget_device()).allocator(),
                                               /*resizable=*/false);
}

StoragePtr new_storage(std::int64_t bytes) {
  return bare_storage(device_at(budget_device()).allocator().allocate(static_cast<std::size_t>(bytes)), bytes);
}

void** mark_in(c10::StorageImpl& storage) {
  const c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return block_mark(data.get_context(), data.get_deleter());
}

Value* value_in(c10::StorageImpl* storage) {
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (data.get_deleter() == &evicted_storage_is_freed) return static_cast<Value*>(data.get_context());
  void** mark = mark_in(*storage);
  return mark == nullptr ? nullptr : static_cast<Value*>(*mark);
}

c10::DataPtr take_block(Value& value) {
  c10::StorageImpl* storage = value.holder();
  c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  *mark_in(*storage) = nullptr;
  c10::DataPtr block = std::move(data);
  data = c10::DataPtr();
  if (value.storage == nullptr) {
    value.own.reset();
    return block;
  }
  content_leaves(block.get(), storage);
  stand_for(*storage, Ref<Value>::adopt(&value));  // the mark's reference becomes the context's
  unwatch(*storage);
  storage->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "stowage: " + value.name() +
      " is not in memory now (stowage.budget has let it go), and is read past PyTorch's dispatcher or by a "
      "thread that the budget does not see; call budget.restore(tensor) before, or run the thread's work in `with "
      "budget.attach():`");
  return block;
}

void stand_for(c10::StorageImpl& storage, Ref<Value> value) {
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, value.release(), &evicted_storage_is_freed, budget_device()));
}

bool put(Value& value, c10::DataPtr& block) {
  StoragePtr held;
  if (value.storage != nullptr) {
    held = torch_versions::hold(value.storage);
    if (!held) return false;
    value.state.lock.let_go_after(held);
  }
  *block_mark(block.get_context(), block.get_deleter()) = &value;
  give_block_to(block.get_context(), block.get_deleter(), value.owner);
  if (c10::StorageImpl* storage = held.get()) {
    torch_versions::allow_reads(*storage);
    storage->_mutable_data_ptr_no_checks().release_context();  // the context's reference becomes the mark's
    content_returns(storage, block.get());
    storage->set_data_ptr_noswap(std::move(block));
    watch(*storage);
  } else {
    value.own = bare_storage(std::move(block), value.bytes());
  }
  return true;
}

bool copy_bytes(Value& value, void* into) {
  Device& device = value.state.device;
  const std::int64_t bytes = value.bytes();
  if (value.small_copy) {
    device.copy(into, value.small_copy.get(), bytes);
  } else if (value.residence() == Residence::kSwapped) {
    device.put_back(into, value.host, bytes);
  } else {
    if (!value.resident() || value.holder() == nullptr) return false;
    const c10::DataPtr& data = value.holder()->_mutable_data_ptr_no_checks();
    void** mark = block_mark(data.get(), data.get_deleter());
    if (mark == nullptr || *mark != &value) return false;
    device.copy(into, data.get(), bytes);
  }
  return true;
}

}  // namespace stowage::runtime::evict
