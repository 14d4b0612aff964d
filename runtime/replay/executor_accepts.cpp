// May a plan serve these arguments, as they lie in memory, and these residents?
#include <algorithm>

#include "runtime/memory/allocator.h"
#include "runtime/replay/executor.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

struct Stretch {
  const c10::StorageImpl* storage = nullptr;
  const char* begin = nullptr;
  const char* end = nullptr;
  bool written = false;
  bool foreign = false;  // of another library
};

Stretch whole(const c10::Storage& storage, bool written) {
  c10::StorageImpl* impl = storage.unsafeGetStorageImpl();
  const c10::DataPtr& data = impl->_mutable_data_ptr_no_checks();
  const auto* begin = static_cast<const char*>(data.get());
  const bool foreign = begin != nullptr && block_origin(data.get(), data.get_deleter()) == BlockOrigin::kForeign;
  return {impl, begin, begin == nullptr ? begin : begin + impl->nbytes(), written, foreign};
}

bool clash(const Stretch& a, const Stretch& b) {
  if (!a.written && !b.written) return false;
  if (a.storage != b.storage && !a.foreign && !b.foreign) return false;
  return a.begin < b.end && b.begin < a.end;
}

}  // namespace

bool Executor::accepts(const std::vector<at::Tensor>& inputs) const {
  for (const auto& [id, alignment] : input_blocks_) {
    const Block& block = tape_->blocks[id.index()];
    const at::Tensor& input = inputs.at(static_cast<std::size_t>(block.input));
    if (!input.defined()) continue;
    const std::int64_t start = span_bytes(input).first;
    if (start % alignment != 0 || (tape_->absolute_inputs && start != block.start_bytes)) return false;
  }
  const bool resident = std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& input) {
    return input.defined() && input.has_storage() &&
           resident_storages_.contains(input.storage().unsafeGetStorageImpl());
  });
  return !resident && !overlap(inputs);
}

// Do two inputs, or an input and a resident, share bytes of which the step writes some? The tape has them as different
// memory. Storages share none, but for those over memory of another library.
bool Executor::overlap(const std::vector<at::Tensor>& inputs) const {
  std::vector<Stretch> found;
  for (const auto& [id, alignment] : input_blocks_) {
    const Block& block = tape_->blocks[id.index()];
    const at::Tensor& input = inputs.at(static_cast<std::size_t>(block.input));
    if (!input.defined() || !touched_[id.index()]) continue;
    Stretch stretch = whole(input.storage(), written_[id.index()]);
    stretch.begin += span_bytes(input).first;
    stretch.end = std::min(stretch.end, stretch.begin + block.bytes);
    found.push_back(stretch);
  }
  std::sort(found.begin(), found.end(), [](const Stretch& a, const Stretch& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < found.size(); ++i) {
    for (std::size_t j = i + 1; j < found.size() && found[j].begin < found[i].end; ++j) {
      if (clash(found[i], found[j])) return true;
    }
  }
  return std::any_of(found.begin(), found.end(), [&](const Stretch& input) {
    // Of PyTorch's own memory, only another library's can lie over it
    if (!input.foreign && !foreign_residents_) return false;
    for (std::size_t i = 0; i < residents_.size(); ++i) {
      if (!residents_[i] || !touched_[i] || (!input.written && !written_[i])) continue;
      if (clash(input, whole(residents_[i], written_[i]))) return true;
    }
    return false;
  });
}

bool Executor::residents_unchanged() const {
  for (std::size_t i = 0; i < tape_->blocks.size(); ++i) {
    const Block& block = tape_->blocks[i];
    if (!block.external || block.input >= 0 || !block.tensor.defined() || !touched_[i]) continue;
    const bool same =
        block.tensor.storage().unsafeGetStorageImpl() == residents_[i].unsafeGetStorageImpl() &&
        (tape_->slots[block.owner.index()].moved || tape_->slots[block.owner.index()].meta.describes(block.tensor)) &&
        static_cast<std::int64_t>(block.tensor.storage().nbytes()) == block.bytes;
    if (!same) return false;
  }
  bool all_live = true;
  const bool in_place = std::all_of(tape_->tenants.begin(), tape_->tenants.end(), [&](const Tenant& tenant) {
    const Block& block = tape_->blocks[tenant.block.index()];
    if (!tenant.owner || block.of_python) return true;
    const auto held = tenant.tensor.lock();
    if (!touched_[tenant.block.index()]) {  // Python may look at its form all the same
      const bool of_module = block.kind == BufferKind::kParameter || block.kind == BufferKind::kModuleBuffer;
      return !held || !of_module || block.input >= 0 ||
             tape_->slots[block.owner.index()].meta.describes(at::Tensor(held));
    }
    if (!held) {  // nobody can find it elsewhere
      all_live = false;
      return true;
    }
    const at::Tensor tensor(held);
    const Slot& slot = tape_->slots[tape_->blocks[tenant.block.index()].owner.index()];
    return tensor.storage().unsafeGetStorageImpl() == residents_[tenant.block.index()].unsafeGetStorageImpl() &&
           (slot.moved || slot.meta.describes(tensor));
  });
  return in_place && (all_live || !residents_died());
}

std::vector<std::vector<const c10::TensorImpl*>> Executor::lasting() const {
  std::vector<bool> known(tape_->blocks.size(), false);
  std::vector<std::vector<const c10::TensorImpl*>> there(tape_->blocks.size());
  for (const Tenant& tenant : tape_->tenants) {
    known[tenant.block.index()] = true;
    if (const auto held = tenant.tensor.lock()) there[tenant.block.index()].push_back(held.get());
  }
  std::vector<std::vector<const c10::TensorImpl*>> found;
  for (std::size_t i = 0; i < there.size(); ++i) {
    const Block& block = tape_->blocks[i];
    const bool lasts = block.kind == BufferKind::kParameter || block.kind == BufferKind::kOptimizerState ||
                       block.kind == BufferKind::kModuleBuffer;
    if (known[i] && lasts && touched_[i] && block.external && block.input < 0 && !block.found)
      found.push_back(std::move(there[i]));
  }
  return found;
}

bool Executor::residents_died() const {
  return std::ranges::any_of(lasting(), [](const auto& tensors) { return tensors.empty(); });
}

namespace {

std::optional<TensorMeta> place_in(const at::Tensor& tensor, const c10::Storage& storage, std::int64_t start_bytes) {
  const bool there =
      tensor.has_storage() && storage && tensor.storage().unsafeGetStorageImpl() == storage.unsafeGetStorageImpl();
  return there ? std::optional(TensorMeta::of(tensor, start_bytes)) : std::nullopt;
}

}  // namespace

bool Executor::tenants_unchanged(const std::vector<at::Tensor>& inputs) {
  bool same = true;
  for (Tenant& tenant : tape_->tenants) {
    const Block& block = tape_->blocks[tenant.block.index()];
    if (tenant.owner || block.of_python) continue;  // residents_unchanged() asks; Python's own are found anew
    tenant.now = std::nullopt;
    if (const auto held = tenant.tensor.lock()) {
      const at::Tensor tensor(held);
      const bool input = block.input >= 0;
      const at::Tensor& owner = input ? inputs.at(static_cast<std::size_t>(block.input)) : block.tensor;
      const std::int64_t start = input && owner.defined() ? span_bytes(owner).first : 0;
      if (owner.defined()) tenant.now = place_in(tensor, owner.storage(), start);
    }
    same = same && (!touched_[tenant.block.index()] || tenant.now == tenant.place);
  }
  return same;
}

void Executor::tenants_fit() {
  for (Tenant& tenant : tape_->tenants) tenant.place = tenant.now;
}

}  // namespace stowage::runtime
