#include "runtime/names.h"

#include <c10/core/DispatchKeySet.h>

#include "runtime/allocator.h"

namespace stowage::runtime {
namespace {

using c10::DispatchKey;

constexpr c10::DispatchKeySet kStrangeKeys({DispatchKey::FuncTorchBatched, DispatchKey::FuncTorchGradWrapper,
                                            DispatchKey::Functionalize, DispatchKey::Conjugate, DispatchKey::Negative,
                                            DispatchKey::ZeroTensor});

}  // namespace

std::string Names::unsupported(const at::Tensor& tensor) const {
  if (tensor.layout() != c10::kStrided || !tensor.has_storage()) return "a sparse, nested or opaque tensor";
  if (tensor.is_quantized()) return "a quantized tensor";
  if (tensor.key_set().has_any(kStrangeKeys)) return "a functorch, conjugate, negated or zero tensor";
  if (fake_) return {};
  if (tensor.key_set().has(DispatchKey::Python)) return "a tensor subclass";
  if (!tensor.device().is_cpu()) return "a tensor on device " + tensor.device().str();
  return {};
}

// A tensor that no op made and nobody declared. Numbers become constants; so do tensors older than the step. What is left came
// from outside the dispatcher while the step ran, and a replay would not see the next one.
std::string Names::unexplained(const at::Tensor& tensor) const {
  if (fake_ || tensor.dim() == 0) return {};
  const c10::DataPtr& data = tensor.storage().data_ptr();
  switch (block_origin(data.get(), data.get_deleter())) {
    case BlockOrigin::kEarlier: return {};
    case BlockOrigin::kForeign: return "a tensor over memory of another library (NumPy, DLPack) that is neither an argument nor reachable from the function";
    case BlockOrigin::kOurs: break;
  }
  if (live_.number(data.get()) == LiveBlocks::kOlder) return {};
  return "a tensor made outside PyTorch's dispatcher (a compiled function or an extension)";
}

const void* Names::data_of(const at::Tensor& tensor) const { return fake_ ? nullptr : tensor.storage().data(); }

SlotId Names::known_slot(const at::Tensor& tensor) const {
  const auto it = tensors_.find(tensor.unsafeGetTensorImpl());
  if (it == tensors_.end()) return {};
  const Slot& slot = tape_.slots[it->second.index()];
  const KnownStorage* storage = known_storage(tensor);
  const bool same = storage != nullptr && storage->block == slot.block && slot.meta.describes(tensor);
  return same ? it->second : SlotId{};
}

const Names::KnownStorage* Names::known_storage(const at::Tensor& tensor) const {
  const auto it = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (it == storages_.end()) return nullptr;
  const KnownStorage& known = it->second;
  if (known.keep.has_value() || live_.number(data_of(tensor)) == known.number) return &known;
  return nullptr;  // another storage, at the address of one that is gone
}

SlotId Names::add_slot(const at::Tensor& tensor, Slot::Origin origin, BlockId block) {
  const SlotId id(tape_.slots.size());
  tape_.slots.push_back({origin, block, TensorMeta::of(tensor)});
  tensors_[tensor.unsafeGetTensorImpl()] = id;
  return id;
}

BlockId Names::add_block(const at::Tensor& tensor) {
  const BlockId id(tape_.blocks.size());
  Block block;
  block.bytes = static_cast<std::int64_t>(tensor.storage().nbytes());
  tape_.blocks.push_back(std::move(block));
  data_.push_back(data_of(tensor));
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  KnownStorage known{id, live_.number(data_.back()), std::nullopt};
  if (data_.back() == nullptr) {
    known.keep = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  }
  storages_.insert_or_assign(storage, std::move(known));
  return id;
}

SlotId Names::declare(const at::Tensor& tensor, BufferKind kind, std::string name, int input) {
  if (!unsupported(tensor).empty()) return {};  // refused if an op uses it
  if (const SlotId known = known_slot(tensor); known.valid()) return known;
  if (const KnownStorage* storage = known_storage(tensor)) return add_slot(tensor, Slot::Origin::kAlias, storage->block);
  const BlockId block_id = add_block(tensor);
  const SlotId slot = add_slot(tensor, Slot::Origin::kExternal, block_id);
  Block& block = tape_.blocks[block_id.index()];
  block.kind = kind;
  block.external = true;
  block.input = input;
  block.name = std::move(name);
  block.owner = slot;
  if (input < 0) block.tensor = tensor;
  return slot;
}

SlotId Names::use(const at::Tensor& tensor, std::string& refusal) {
  if (const SlotId known = known_slot(tensor); known.valid()) return known;
  if (refusal = unsupported(tensor); !refusal.empty()) return {};
  if (const KnownStorage* storage = known_storage(tensor)) {
    if (data(storage->block) != data_of(tensor)) {
      refusal = "a storage that was resized or replaced in place";
      return {};
    }
    return add_slot(tensor, Slot::Origin::kAlias, storage->block);
  }
  if (refusal = unexplained(tensor); !refusal.empty()) return {};
  return declare(tensor, BufferKind::kConstant, "constant_" + std::to_string(tape_.blocks.size()), -1);
}

SlotId Names::result(const at::Tensor& tensor, std::vector<BlockId>& created, std::string& refusal) {
  if (const SlotId known = known_slot(tensor); known.valid()) return known;
  if (refusal = unsupported(tensor); !refusal.empty()) return {};
  if (const KnownStorage* storage = known_storage(tensor)) return add_slot(tensor, Slot::Origin::kAlias, storage->block);
  const BlockId block = add_block(tensor);
  const SlotId slot = add_slot(tensor, Slot::Origin::kResult, block);
  tape_.blocks[block.index()].owner = slot;
  created.push_back(block);
  return slot;
}

BlockId Names::block_of(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return {};
  const KnownStorage* storage = known_storage(tensor);
  return storage == nullptr ? BlockId{} : storage->block;
}

bool Names::is_alive(const KnownStorage& storage) const {
  if (storage.keep.has_value()) return fake_ && storage.keep->use_count() > 0;
  return storage.number != LiveBlocks::kOlder && live_.number(data(storage.block)) == storage.number;
}

std::vector<BlockId> Names::alive() const {
  std::vector<BlockId> blocks;
  for (const auto& [impl, known] : storages_) {
    if (!tape_.blocks[known.block.index()].external && is_alive(known)) blocks.push_back(known.block);
  }
  return blocks;
}

}  // namespace stowage::runtime
