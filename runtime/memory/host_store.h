// The host store: memory outside the plan, where swapped buffers wait.
//
//   arena   ██ a ██            swap_out a, until 4                    swap_in a, until 9   ██ a ██
//   store             [offset, offset + bytes) of the store holds a
//
// Reserved in full before a step starts, so that "full" is an error while nothing has been changed. On a machine
// without an accelerator it is other memory of the same machine, or a file; the pinned form of an accelerator fits
// behind the same face.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace stowage::runtime {

class HostStore {
 public:
  virtual ~HostStore() = default;

  // Makes at least `bytes` usable, for certain; what it held is lost. Throws Error, with nothing reserved, when that
  // cannot be had.
  virtual void reserve(std::int64_t bytes) = 0;
  virtual void release() = 0;
  [[nodiscard]] virtual std::int64_t bytes() const = 0;  // reserved now

  // Copy to and from [offset, offset + bytes). Throw Error when the medium fails. Calls for disjoint ranges may run at
  // once.
  virtual void write(std::int64_t offset, const void* from, std::int64_t bytes) = 0;
  virtual void read(std::int64_t offset, void* into, std::int64_t bytes) = 0;

  // visit(address, bytes) of each stretch of [offset, offset + bytes), of a store that a device can copy to and from.
  using Visit = std::function<void(char* at, std::int64_t bytes)>;
  virtual void for_each_part(std::int64_t offset, std::int64_t bytes, const Visit& visit) const;
};

// Throws Error where so much memory of the host is more than `limit_bytes` (0: no limit), or than the machine has.
void require_host_memory(std::int64_t bytes, std::int64_t limit_bytes);

// Anonymous memory, touched when reserved. `limit_bytes`: never reserve more; 0: as much as the machine has available.
std::unique_ptr<HostStore> memory_store(std::int64_t limit_bytes);

// A file without a name in `directory`, its blocks allocated when reserved.
std::unique_ptr<HostStore> file_store(std::string directory, std::int64_t limit_bytes);

// For tests of what follows a failure: the n-th write or read from now (0: the next one; negative: none) and all later
// ones throw.
std::unique_ptr<HostStore> failing_store(std::unique_ptr<HostStore> store, std::int64_t good_writes,
                                         std::int64_t good_reads);

}  // namespace stowage::runtime
