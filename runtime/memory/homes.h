// Where residents are that wait on the host: in a file, of which each has a region that is mapped as its tensor's memory.
//
//   user's tensor ──▶ mapping ──▶ region of the file        whoever looks at the tensor finds it whole: the system brings in
//   arena  ██ p ██ ◀── read / write ──┘                     the pages that are looked at; forget_pages() lets them go again
//
// So nothing has to notice that somebody looks: printing, state_dict(), NumPy, a kernel that runs eagerly, any version of
// PyTorch. Steps copy between the region and the arena without touching the mapping, by reads and writes of the file;
// those are direct where the file system can do that, so that the page cache does not grow. The file has no name and its
// blocks are allocated when a region is made: a full disk is an error before anything has changed. Without a directory it is
// a file in memory (memfd): the same bytes, counted apart.
//
// A child made by fork() sees what the file held then, and what it changes stays its own. As long as it is there, what its
// parent writes goes to another place in the file:
//
//   fork ──▶ child: private mapping ──▶ region       parent writes ──▶ a new region, mapped at the same address
//
// Only writes through a mapping go past that: part_from_children() comes before them. Addresses are those of the
// mappings: a copy's "offset" is the address of its resident, which may as well be ordinary memory.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/memory/host_store.h"

namespace stowage::runtime {

class HomeFile;  // held by all its regions

// What is smaller has no region: it would take whole pages.
constexpr std::int64_t kSmallestHomeBytes = 64 << 10;

// Forks find every file as it is between two calls. Idempotent. Whoever calls files under a lock of its own, which a fork
// waits for, too, calls this before it has forks wait: they wait in the other order.
void homes_survive_forks();

// Its memory is a region.
bool at_home(const c10::StorageImpl& storage);

class Homes final : public HostStore {
 public:
  // `limit_bytes`: of all regions; 0: none.
  Homes(std::string directory, std::int64_t limit_bytes);
  ~Homes() override;

  // The storage's memory becomes a region with the same content, if it is none. Throws Error, with nothing changed, where
  // there is no room.
  void take(c10::StorageImpl& storage);
  // A region of its own, of zeros.
  [[nodiscard]] c10::DataPtr region(std::int64_t bytes);
  // What has been looked at leaves memory; content stays. So does what the process has freed and its allocator has kept:
  // an eager call leaves as much behind as it took.
  void forget_pages();

  // What is written through the mappings from now on is not seen by children that are there.
  void part_from_children();
  // They were made by the process that has forked this one: here they can be read and written, but not given back or made.
  [[nodiscard]] bool are_a_parent_s() const;

  void reserve(std::int64_t) override {}
  void release() override {}
  [[nodiscard]] std::int64_t bytes() const override;
  // `address`: of a resident, or of a part of it.
  void write(std::int64_t address, const void* from, std::int64_t bytes) override;
  void read(std::int64_t address, void* into, std::int64_t bytes) override;

 private:
  std::shared_ptr<HomeFile> file_;
};

}  // namespace stowage::runtime
