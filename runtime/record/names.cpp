#include "runtime/record/names.h"

#include <c10/core/DispatchKeySet.h>

#include "runtime/memory/allocator.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

using c10::DispatchKey;

constexpr c10::DispatchKeySet kStrangeKeys({DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                            DispatchKey::Functionalize, DispatchKey::ZeroTensor});

// Of one whose elements do not lie one beside the other in a storage.
std::string without_storage(const at::Tensor& tensor) {
  if (tensor.is_nested()) return "a nested tensor; padded to one length, it is planned";
  if (tensor.layout() == c10::kMkldnn) return "an opaque tensor (layout mkldnn); dense ones are planned";
  if (tensor.layout() != c10::kStrided)
    return "a sparse tensor; dense ones are planned (nn.Embedding(sparse=False)), and products with a sparse one that "
           "the "
           "step only reads";
  return "a tensor without a storage";
}

// Over the same memory, and the same count of writes; `p.data = …` leaves it where it is.
at::Tensor stays_there(const at::Tensor& tensor) {
  c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true));
}

}  // namespace

std::string Names::unsupported(const at::Tensor& tensor) const {
  if (tensor.is_nested() || tensor.layout() != c10::kStrided || !tensor.has_storage()) return without_storage(tensor);
  if (tensor.is_quantized()) return "a quantized tensor";
  if (tensor._is_zerotensor())
    return "a zero of forward-mode differentiation (jvp); reverse mode (grad, vjp) is planned";
  if (tensor.key_set().has_any(kStrangeKeys)) return "a functorch, functional or zero tensor";
  if (fake_) return {};
  if (tensor.key_set().has(DispatchKey::Python)) return "a tensor subclass";
  if (tensor.device().is_cpu() || tensor.device() == tape_.device) return {};
  const std::string where = "a tensor on device " + tensor.device().str();
  return tape_.device.is_cpu() ? where + ", where none of the step's parameters and arguments lies"
                               : where + ", beside others on " + tape_.device.str();
}

// A tensor that no op made and nobody declared. Numbers become constants; so do tensors older than the step. What is
// left came from outside the dispatcher while the step ran, and a replay would not see the next one.
std::string Names::unexplained(const at::Tensor& tensor) const {
  if (fake_ || tensor.dim() == 0) return {};
  const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  switch (block_origin(data.get(), data.get_deleter())) {
    case BlockOrigin::kEarlier: return {};
    case BlockOrigin::kForeign:
      return "a tensor over memory of another library (NumPy, DLPack) that is neither an argument nor reachable from "
             "the function";
    case BlockOrigin::kOurs: break;
  }
  if (memory_of(tensor).number == LiveBlocks::kOlder) return {};
  return "a tensor made outside PyTorch's dispatcher (a compiled function or an extension)";
}

// An eager budget may have evicted it just now: then its storage has no memory, and nothing here reads any.
LiveBlocks::Known Names::memory_of(const at::Tensor& tensor) const {
  if (fake_) return {};
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  const void* data = storage->_mutable_data_ptr_no_checks().get();
  return data != nullptr ? live_.at(data) : live_.away(storage);
}

SlotId Names::known_slot(const at::Tensor& tensor) const {
  const auto it = tensors_.find(tensor.unsafeGetTensorImpl());
  if (it == tensors_.end()) return {};
  const Slot& slot = tape_.slots[it->second.index()];
  const KnownStorage* storage = known_storage(tensor);
  if (storage == nullptr || block_in(*storage, tensor) != slot.block) return {};
  return slot.meta.describes(tensor, tape_.blocks[slot.block.index()].start_bytes) ? it->second : SlotId{};
}

const Names::KnownStorage* Names::known_storage(const at::Tensor& tensor) const {
  const auto it = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (it == storages_.end()) return nullptr;
  const KnownStorage& known = it->second;
  if (known.keep.has_value() || memory_of(tensor).number == known.number) return &known;
  return nullptr;  // another storage, at the address of one that is gone
}

SlotId Names::add_slot(const at::Tensor& tensor, Slot::Origin origin, BlockId block) {
  const SlotId id(tape_.slots.size());
  tape_.slots.push_back({origin, block, TensorMeta::of(tensor, tape_.blocks[block.index()].start_bytes)});
  tensors_[tensor.unsafeGetTensorImpl()] = id;
  return id;
}

BlockId Names::add_block(const at::Tensor& tensor) {
  const BlockId id(tape_.blocks.size());
  Block block;
  block.bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  block.device = fake_ ? tape_.device : tensor.device();
  tape_.blocks.push_back(std::move(block));
  const LiveBlocks::Known memory = memory_of(tensor);
  data_.push_back(memory.first);
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  KnownStorage known{id, memory.number, std::nullopt, {}};
  if (data_.back() == nullptr) {
    known.keep = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  }
  storages_.insert_or_assign(storage, std::move(known));
  return id;
}

// Of a storage that is known already: another part of it.
BlockId Names::add_part(const at::Tensor& tensor, std::int64_t start_bytes, std::int64_t end_bytes) {
  BlockId id(tape_.blocks.size());
  if (known_storage(tensor) == nullptr) {
    id = add_block(tensor);
  } else {
    tape_.blocks.emplace_back();
    data_.push_back(memory_of(tensor).first);
  }
  Block& block = tape_.blocks[id.index()];
  block.start_bytes = start_bytes;
  block.bytes = end_bytes - start_bytes;
  block.device = fake_ ? tape_.device : tensor.device();
  storages_.at(tensor.storage().unsafeGetStorageImpl()).parts.push_back({id, start_bytes, end_bytes});
  return id;
}

BlockId Names::block_in(const KnownStorage& storage, const at::Tensor& tensor) {
  if (storage.parts.empty() || tensor.numel() == 0) return storage.block;
  const auto [start, end] = span_bytes(tensor);
  for (const Part& part : storage.parts) {
    if (part.start_bytes <= start && end <= part.end_bytes) return part.block;
  }
  return {};
}

SlotId Names::alias_in(const KnownStorage& storage, const at::Tensor& tensor, std::string& refusal) {
  const BlockId block = block_in(storage, tensor);
  if (!block.valid()) {
    refusal = "a tensor over memory that an argument shares, beyond that argument";
  } else if (tape_.blocks[block.index()].start_bytes % static_cast<std::int64_t>(tensor.dtype().itemsize()) != 0) {
    refusal = "arguments of several dtypes that overlap in one storage";
  }
  return refusal.empty() ? add_slot(tensor, Slot::Origin::kAlias, block) : SlotId{};
}

SlotId Names::add_external(const at::Tensor& tensor, BlockId id, BufferKind kind, std::string name) {
  const SlotId slot = add_slot(tensor, Slot::Origin::kExternal, id);
  Block& block = tape_.blocks[id.index()];
  block.kind = kind;
  block.external = true;
  block.name = std::move(name);
  block.owner = slot;
  return slot;
}

SlotId Names::add_owner(const at::Tensor& tensor, BufferKind kind, std::string name) {
  const BlockId block = add_block(tensor);
  tape_.blocks[block.index()].tensor = tensor;
  return add_external(tensor, block, kind, std::move(name));
}

SlotId Names::add_lasting(const at::Tensor& tensor, BufferKind kind, std::string name) {
  const SlotId slot = add_owner(tensor, kind, std::move(name));
  if (fake_ || !tape_.below_autograd) return slot;
  tape_.blocks[tape_.slots[slot.index()].block.index()].tensor = stays_there(tensor);
  return tenant(tensor, slot, /*owner=*/true);
}

SlotId Names::tenant(const at::Tensor& tensor, SlotId slot, bool owner) {
  if (!slot.valid()) return slot;
  const BlockId block = tape_.slots[slot.index()].block;
  TensorMeta place = TensorMeta::of(tensor, tape_.blocks[block.index()].start_bytes);
  tape_.tenants.push_back({Tenant::Weak(tensor.getIntrusivePtr()), block, owner, std::move(place), std::nullopt});
  return slot;
}

SlotId Names::declare(const at::Tensor& tensor, BufferKind kind, std::string name) {
  if (!unsupported(tensor).empty()) return {};  // refused if an op uses it
  if (const SlotId known = known_slot(tensor); known.valid()) {
    const bool input = tape_.blocks[tape_.slots[known.index()].block.index()].input >= 0;
    return input ? tenant(tensor, known) : known;
  }
  std::string refused_if_used;
  if (const KnownStorage* storage = known_storage(tensor))
    return tenant(tensor, alias_in(*storage, tensor, refused_if_used));
  return add_lasting(tensor, kind, std::move(name));
}

SlotId Names::declare_input(const at::Tensor& tensor, BufferKind kind, std::string name, int input,
                            std::int64_t start_bytes, std::int64_t end_bytes) {
  if (!unsupported(tensor).empty()) return {};
  if (const SlotId known = known_slot(tensor); known.valid()) return known;
  std::string refused_if_used;
  if (const KnownStorage* storage = known_storage(tensor)) {
    const bool whole = storage->parts.empty();  // of a module, which is refused; or a gradient in a flat buffer
    if (whole) return tenant(tensor, alias_in(*storage, tensor, refused_if_used));
    if (block_in(*storage, tensor).valid()) return alias_in(*storage, tensor, refused_if_used);
  }
  const BlockId block = add_part(tensor, start_bytes, end_bytes);
  const SlotId slot = add_external(tensor, block, kind, std::move(name));
  tape_.blocks[block.index()].input = input;
  return slot;
}

SlotId Names::use(const at::Tensor& tensor, std::string& refusal) {
  if (const SlotId known = known_slot(tensor); known.valid()) return known;
  if (refusal = unsupported(tensor); !refusal.empty()) return {};
  if (const KnownStorage* storage = known_storage(tensor)) {
    if (data(storage->block) != memory_of(tensor).first) {
      refusal = "a storage that was resized or replaced in place";
      return {};
    }
    return alias_in(*storage, tensor, refusal);
  }
  if (refusal = unexplained(tensor); !refusal.empty()) return {};
  return add_lasting(tensor, BufferKind::kConstant, "constant_" + std::to_string(tape_.blocks.size()));
}

SlotId Names::result(const at::Tensor& tensor, bool anew, std::vector<BlockId>& created, std::string& refusal) {
  if (const SlotId known = anew ? SlotId() : known_slot(tensor); known.valid()) return known;
  if (refusal = unsupported(tensor); !refusal.empty()) return {};
  if (const KnownStorage* storage = known_storage(tensor)) return alias_in(*storage, tensor, refusal);
  const BlockId block = add_block(tensor);
  const SlotId slot = add_slot(tensor, Slot::Origin::kResult, block);
  tape_.blocks[block.index()].owner = slot;
  created.push_back(block);
  return slot;
}

BlockId Names::block_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const KnownStorage* storage = known_storage(tensor);
  return storage == nullptr ? BlockId{} : block_in(*storage, tensor);
}

bool Names::is_alive(const KnownStorage& storage) const {
  if (storage.keep.has_value()) return fake_ && storage.keep->use_count() > 0;
  return live_.alive(storage.number);
}

bool Names::made_in_step(const at::Tensor& tensor) const {
  const BlockId block = block_of(tensor);
  return block.valid() && !tape_.blocks[block.index()].external;
}

std::vector<BlockId> Names::alive() const {
  std::vector<BlockId> blocks;
  for (const auto& [impl, known] : storages_) {
    if (!tape_.blocks[known.block.index()].external && is_alive(known)) blocks.push_back(known.block);
  }
  return blocks;
}

}  // namespace stowage::runtime
