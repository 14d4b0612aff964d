// Who is who: maps live tensors and storages to slots and blocks while a step is recorded.
//
// A TensorImpl or StorageImpl is known by its address. Holding a weak reference keeps the address from being used again without
// keeping the data alive, so recording holds no more memory than eager does.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <string>
#include <vector>

#include "runtime/tape.h"

namespace stowage::runtime {

class Names {
 public:
  // `fake`: tensors are FakeTensors; they have no data, and their storages say how many bytes real ones would have.
  Names(Tape& tape, bool fake) : tape_(tape), fake_(fake) {}

  // An external tensor, before or while the step runs.
  SlotId declare(const at::Tensor& tensor, BufferKind kind, std::string name, int input);

  // A tensor that an op reads or writes, or that the user returns. Unknown ones are aliases of a known block, or constants.
  // Sets `refusal` and returns an invalid id when the tensor is of a kind that cannot be replayed.
  SlotId use(const at::Tensor& tensor, std::string& refusal);

  // A tensor that an op has returned: a new block, or an alias of a known one. `created` is appended to when the block is new.
  SlotId result(const at::Tensor& tensor, std::vector<BlockId>& created, std::string& refusal);

  // The block that lies in this tensor's storage, or an invalid id.
  [[nodiscard]] BlockId block_of(const at::Tensor& tensor) const;

  // Where a block's data lay when it became known; nullptr for fakes.
  [[nodiscard]] const void* data(BlockId block) const { return data_[block.index()]; }

  // Blocks made by the step whose storage something still holds.
  [[nodiscard]] std::vector<BlockId> alive() const;

  // First generation of the allocator that belongs to the recorded step.
  void set_generation(std::int64_t generation) { generation_ = generation; }

 private:
  struct KnownTensor {
    SlotId slot;
    c10::weak_intrusive_ptr<c10::TensorImpl> keep;
  };
  struct KnownStorage {
    BlockId block;
    c10::weak_intrusive_ptr<c10::StorageImpl> keep;
  };

  [[nodiscard]] std::string unsupported(const at::Tensor& tensor) const;
  [[nodiscard]] std::string unexplained(const at::Tensor& tensor) const;
  SlotId known_slot(const at::Tensor& tensor) const;
  const KnownStorage* known_storage(const at::Tensor& tensor) const;
  SlotId add_slot(const at::Tensor& tensor, Slot::Origin origin, BlockId block);
  BlockId add_block(const at::Tensor& tensor);
  [[nodiscard]] const void* data_of(const at::Tensor& tensor) const;

  Tape& tape_;
  bool fake_;
  std::int64_t generation_ = 0;
  std::vector<const void*> data_;  // by block
  ska::flat_hash_map<c10::TensorImpl*, KnownTensor> tensors_;
  ska::flat_hash_map<c10::StorageImpl*, KnownStorage> storages_;
};

}  // namespace stowage::runtime
