// Where swapped buffers wait, and the link that leads there: one store and one link for each device that plans swap from.
#pragma once

#include <memory>
#include <utility>

#include "runtime/memory/device.h"
#include "runtime/memory/homes.h"
#include "runtime/memory/host_store.h"
#include "runtime/memory/link.h"
#include "stowage/error.h"

namespace stowage::runtime {

// Shared by all plans of a step.
struct Host {
  std::shared_ptr<HostStore> store;
  std::shared_ptr<Link> link;
  // Of residents that are away; the CPU's alone
  std::shared_ptr<Homes> homes;
  std::shared_ptr<Link> home_link;
};

// The host as the CPU's plans have it, and an accelerator's, which is made when the first such plan comes.
class Hosts {
 public:
  // `file`: the CPU's store is one; an accelerator cannot copy to it. `limit_bytes`: as for memory_store().
  Hosts(Host of_cpu, bool file, std::int64_t limit_bytes)
      : cpu_(std::move(of_cpu)), file_(file), limit_bytes_(limit_bytes) {}

  Host at(c10::Device where) {
    if (where.is_cpu()) return cpu_;
    if (accelerator_.store && where_ == where) return accelerator_;
    Device& device = device_at(where);
    where_ = where;
    accelerator_.store = device.host_store(limit_bytes_);
    accelerator_.link = device.link(accelerator_.store);
    return accelerator_;
  }
  // Throws Error where swapped buffers of that device cannot wait in this store.
  void require(c10::Device where) const {
    if (file_ && !where.is_cpu())
      throw Error("host_store names a directory, but buffers on " + where.str() +
                  " can wait in pinned memory alone: leave it out");
  }

  [[nodiscard]] std::shared_ptr<Homes> homes() const { return cpu_.homes; }
  void release() {
    cpu_.store->release();
    if (accelerator_.store) accelerator_.store->release();
  }
  [[nodiscard]] std::int64_t home_bytes() const { return cpu_.homes ? cpu_.homes->bytes() : 0; }
  [[nodiscard]] std::int64_t bytes() const {
    return cpu_.store->bytes() + (accelerator_.store ? accelerator_.store->bytes() : 0);
  }

 private:
  Host cpu_;
  Host accelerator_;
  c10::Device where_{c10::DeviceType::CPU};
  bool file_;
  std::int64_t limit_bytes_;
};

}  // namespace stowage::runtime
