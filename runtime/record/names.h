// Who is who: maps live tensors and storages to slots and blocks while a step is recorded.
//
// A storage is known by the address of its StorageImpl and the number of the memory block in it (LiveBlocks; both hold
// while an eager budget moves its content about), a tensor by its storage and metadata; neither is kept alive, so
// recording holds no more memory than eager does. (Weak references would also do, but what they keep of each tensor
// splits the heap: the recorded step then took three times as long.) Storages without memory of their own (fakes, zero
// bytes) have no number; those are held by weak reference.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <optional>
#include <string>
#include <vector>

#include "runtime/memory/allocator.h"
#include "runtime/record/tape.h"

namespace stowage::runtime {

class Names {
 public:
  // `fake`: tensors are FakeTensors; they have no data, and their storages say how many bytes real ones would have.
  Names(Tape& tape, bool fake) : tape_(tape), fake_(fake) {}

  // An external tensor, before or while the step runs.
  SlotId declare(const at::Tensor& tensor, BufferKind kind, std::string name);

  // An argument of the step. It lies in bytes [start, end) of its storage, which other arguments may share; the first
  // that is declared begins there, and its `input` is the part's. What lies outside all parts is not known.
  SlotId declare_input(const at::Tensor& tensor, BufferKind kind, std::string name, int input, std::int64_t start_bytes,
                       std::int64_t end_bytes);

  // A tensor that an op reads or writes, or that the user returns. Unknown ones are aliases of a known block, or
  // constants. Sets `refusal` and returns an invalid id when the tensor is of a kind that cannot be replayed.
  SlotId use(const at::Tensor& tensor, std::string& refusal);

  // A tensor that an op has returned: a new block, or an alias of a known one. `created` is appended to when the block
  // is new.
  // `anew`: it was none of the op's arguments, so it is none of the tensors that are known, though one may have lain at
  // its address.
  SlotId result(const at::Tensor& tensor, bool anew, std::vector<BlockId>& created, std::string& refusal);

  // The block that lies in this tensor's storage, or an invalid id. Several arguments of one storage: the one that it
  // looks into.
  [[nodiscard]] BlockId block_of(const at::Tensor& tensor) const;

  // Of a tensor whose memory the step has made.
  [[nodiscard]] bool made_in_step(const at::Tensor& tensor) const;

  // Where a block's data lay when it became known; nullptr for fakes.
  [[nodiscard]] const void* data(BlockId block) const { return data_[block.index()]; }

  // When all is asked, on the thread that made this.
  void stop() { live_.stop(); }

  // Blocks made by the step whose storage something still holds.
  [[nodiscard]] std::vector<BlockId> alive() const;

 private:
  struct Part {
    BlockId block;
    std::int64_t start_bytes;
    std::int64_t end_bytes;
  };
  struct KnownStorage {
    BlockId block;  // the first of the parts, where there are some
    std::int64_t number;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> keep;  // only without a number
    std::vector<Part> parts;                                        // only of arguments; apart from each other
  };

  [[nodiscard]] std::string unsupported(const at::Tensor& tensor) const;
  [[nodiscard]] std::string unexplained(const at::Tensor& tensor) const;
  SlotId known_slot(const at::Tensor& tensor) const;
  const KnownStorage* known_storage(const at::Tensor& tensor) const;
  static BlockId block_in(const KnownStorage& storage, const at::Tensor& tensor);
  SlotId alias_in(const KnownStorage& storage, const at::Tensor& tensor, std::string& refusal);
  // One that lasts, and that a call may find elsewhere.
  SlotId tenant(const at::Tensor& tensor, SlotId slot, bool owner = false);
  SlotId add_owner(const at::Tensor& tensor, BufferKind kind, std::string name);
  SlotId add_lasting(const at::Tensor& tensor, BufferKind kind, std::string name);
  SlotId add_external(const at::Tensor& tensor, BlockId block, BufferKind kind, std::string name);
  SlotId add_slot(const at::Tensor& tensor, Slot::Origin origin, BlockId block);
  BlockId add_block(const at::Tensor& tensor);
  BlockId add_part(const at::Tensor& tensor, std::int64_t start_bytes, std::int64_t end_bytes);
  [[nodiscard]] LiveBlocks::Known memory_of(const at::Tensor& tensor) const;
  [[nodiscard]] bool is_alive(const KnownStorage& storage) const;

  Tape& tape_;
  bool fake_;
  std::vector<const void*> data_;  // by block
  ska::flat_hash_map<c10::TensorImpl*, SlotId> tensors_;
  LiveBlocks live_;
  ska::flat_hash_map<c10::StorageImpl*, KnownStorage> storages_;
};

}  // namespace stowage::runtime
