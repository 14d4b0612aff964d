#include "runtime/memory/staged_copy.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <optional>

#include "runtime/memory/allocator.h"
#include "runtime/memory/plainly.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kPieceBytes = std::int64_t{8} << 20;

// PyTorch's allocator of pinned memory waits for copies from and to a block that is freed meanwhile.
class Blocks {
 public:
  explicit Blocks(c10::Device where) : guard_(where.type()), where_(where) {
    for (Block& block : blocks_) {
      block.data = at::getHostAllocator(where.type())->allocate(static_cast<std::size_t>(kPieceBytes));
    }
  }

  [[nodiscard]] void* operator[](std::int64_t piece) const { return of(piece).data.get(); }
  // The device has done what was asked for so far on this thread's stream.
  void used(std::int64_t piece) {
    std::optional<c10::Event>& done = of(piece).done;
    if (!done) done.emplace(where_.type());
    done->record(guard_.getStream(where_));
  }
  void wait(std::int64_t piece) {
    if (std::optional<c10::Event>& done = of(piece).done) done->synchronize();
  }

 private:
  struct Block {
    c10::DataPtr data;
    std::optional<c10::Event> done;
  };
  [[nodiscard]] Block& of(std::int64_t piece) { return blocks_[static_cast<std::size_t>(piece % 2)]; }
  [[nodiscard]] const Block& of(std::int64_t piece) const { return blocks_[static_cast<std::size_t>(piece % 2)]; }

  c10::impl::VirtualGuardImpl guard_;
  c10::Device where_;
  std::array<Block, 2> blocks_;
};

// A piece of memory, as a tensor of bytes: PyTorch's copies of these run on all threads.
at::Tensor piece_of(const void* data, std::int64_t piece, std::int64_t bytes, c10::Device where) {
  const std::int64_t from = piece * kPieceBytes;
  return byte_tensor(static_cast<const char*>(data) + from, std::min(kPieceBytes, bytes - from), where);
}

std::int64_t pieces_of(std::int64_t bytes) { return (bytes + kPieceBytes - 1) / kPieceBytes; }

}  // namespace

void staged_to_host(void* to, const void* from, std::int64_t bytes, c10::Device where) {
  const Plainly plainly;
  Blocks blocks(where);
  const std::int64_t count = pieces_of(bytes);
  const auto ask = [&](std::int64_t piece) {
    const at::Tensor there = piece_of(from, piece, bytes, where);
    byte_tensor(blocks[piece], there.numel(), kHost).copy_(there, /*non_blocking=*/true);
    blocks.used(piece);
  };
  ask(0);
  for (std::int64_t piece = 0; piece < count; ++piece) {
    if (piece + 1 < count) ask(piece + 1);
    blocks.wait(piece);
    const at::Tensor here = piece_of(to, piece, bytes, kHost);
    here.copy_(byte_tensor(blocks[piece], here.numel(), kHost));
  }
}

void staged_from_host(void* to, const void* from, std::int64_t bytes, c10::Device where) {
  const Plainly plainly;
  Blocks blocks(where);
  for (std::int64_t piece = 0; piece < pieces_of(bytes); ++piece) {
    blocks.wait(piece);
    const at::Tensor here = piece_of(from, piece, bytes, kHost);
    const at::Tensor block = byte_tensor(blocks[piece], here.numel(), kHost);
    block.copy_(here);
    piece_of(to, piece, bytes, where).copy_(block, /*non_blocking=*/true);
    blocks.used(piece);
  }
  blocks.wait(0);
  blocks.wait(1);
}

}  // namespace stowage::runtime
