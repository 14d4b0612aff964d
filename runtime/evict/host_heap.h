// Host memory for swapped values, in blocks of any size, behind the face that the link knows: an offset is an address.
//
//   an accelerator's values    pinned memory
//   the host's own             regions of a file, where there is one (homes.h) and they are large enough; else malloc's
//
// Blocks that are given back are kept by size: a training loop asks for the same sizes again and again, and fresh pages
// cost more than the copy into them.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "runtime/memory/device.h"
#include "runtime/memory/homes.h"
#include "runtime/memory/host_store.h"

namespace stowage::runtime::evict {

class HostHeap final : public HostStore {
 public:
  // `pinned`: of memory that the device copies to and from while the host goes on. `homes`: null where there is no file.
  HostHeap(std::int64_t limit_bytes, Device& device, bool pinned, std::shared_ptr<Homes> homes)
      : limit_bytes_(limit_bytes), device_(device), pins_(pinned), homes_(std::move(homes)) {}
  ~HostHeap() override;
  HostHeap(const HostHeap&) = delete;
  HostHeap& operator=(const HostHeap&) = delete;

  // nullptr when the limit is reached or the machine has no more.
  void* take(std::int64_t bytes);
  void give_back(void* block, std::int64_t bytes);
  void trim();  // blocks that nobody has
  // The block is the caller's from now on, as it is: null where it is no region of a file.
  c10::DataPtr hand_over(void* block, std::int64_t bytes);
  // Copies of the host's own values into a block and out of it. False where the file cannot take it; what it cannot
  // give is read through its mapping.
  [[nodiscard]] bool fill(void* block, const void* from, std::int64_t bytes);
  void copy_out_of(const void* block, void* into, std::int64_t bytes);

  [[nodiscard]] std::int64_t used_bytes() const { return used_bytes_; }
  [[nodiscard]] std::int64_t peak_bytes() const { return peak_bytes_; }
  static std::int64_t offset(const void* block) { return reinterpret_cast<std::int64_t>(block); }

  void reserve(std::int64_t) override {}  // grows by itself
  void release() override { trim(); }
  [[nodiscard]] std::int64_t bytes() const override { return used_bytes_ + idle_bytes_; }
  void write(std::int64_t offset, const void* from, std::int64_t bytes) override;
  void read(std::int64_t offset, void* into, std::int64_t bytes) override;
  void for_each_part(std::int64_t offset, std::int64_t bytes, const Visit& visit) const override;

 private:
  void* fresh(std::int64_t bytes);
  void free(void* block);

  std::int64_t limit_bytes_;  // 0: none
  Device& device_;
  bool pins_;
  std::shared_ptr<Homes> homes_;
  std::unordered_map<void*, c10::DataPtr> held_;  // all that is not malloc's
  std::int64_t used_bytes_ = 0;
  std::int64_t idle_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  std::map<std::int64_t, std::vector<void*>> idle_;  // by size
};

}  // namespace stowage::runtime::evict
