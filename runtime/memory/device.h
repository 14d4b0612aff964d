// A device: where tensors and arenas of a step lie. The one face that the rooms below know of memory that the host may
// not touch.
//
//   bytes    copy, to_host, from_host, fill, sums, same      in the order of the kernels that this thread has asked for so far
//   blocks   allocate                            beside all plans, by whoever lies below the front
//   front    install, allocator                  allocator.h hears of every block, and may answer from a plan
//   graphs   graphs                              kernels that are noted once, and run again in one piece
//   lanes    link                                copies to the host and back beside the kernels (link.h)
//
//   cpu_device.cpp     plain memory: memcpy; nothing runs behind the host
//   accelerator.cpp    any accelerator that PyTorch knows, by the generic classes of c10 and ATen alone: streams, events,
//                      pinned memory; its front (front.h), and how CUDA's differs (cuda_front.cpp)
//
// An accelerator's kernels run when they come to it, in the order of their stream. So does what is asked for here: the
// host waits in to_host(), from_host(), sums(), same() and wait() alone. The stream is the calling thread's current one.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/memory/host_store.h"
#include "runtime/memory/link.h"

namespace stowage::runtime {

class Device {
 public:
  virtual ~Device() = default;

  // Makes the front lie in front of the device's allocator. Idempotent. Throws Error, which says why, where it cannot,
  // or another library has taken the place since.
  virtual void install() = 0;

  // Of the front: what a budget on this device hands out and lets go.
  virtual c10::Allocator& allocator() = 0;
  // Live bytes that came to no front's notice (older ones, arenas, libraries' own) are counted as they are now.
  virtual void count_others() = 0;
  // Makes the front know the block of a storage that is older than the front. False: that cannot be.
  virtual bool adopt(c10::StorageImpl& storage) = 0;
  // The block may be freed while kernels on this thread's stream still use it, whatever stream it was made on.
  virtual void used_here(c10::StorageImpl& storage) = 0;

  // A block that no plan knows. Throws c10::OutOfMemoryError, or Error.
  virtual c10::DataPtr allocate(std::int64_t bytes) = 0;

  virtual void fill(void* at, int value, std::int64_t bytes) = 0;
  virtual void copy(void* to, const void* from, std::int64_t bytes) = 0;  // both on the device
  // The host's memory is of any kind.
  virtual void to_host(void* to, const void* from, std::int64_t bytes) = 0;
  virtual void from_host(void* to, const void* from, std::int64_t bytes) = 0;

  // By which contents are told apart where they lie, without bringing them to the host: sums of 32-bit words, as signed
  // numbers, over memory that is seen as lines of align_bytes() each.
  //
  //   of lines     Σ► Σ► Σ►        one for each line
  //   of places    Σ▼ Σ▼ Σ▼ Σ▼     one for each word of a line, over the lines of each kSummedBytes
  //
  // No sum overflows. A difference in one word shows in two sums, and one in several hides only where it adds up to
  // nothing in each line and in each place.
  struct Sums {
    std::vector<std::int64_t> of_lines, of_places;
  };
  static constexpr std::int64_t kSummedBytes = std::int64_t{64} << 20;
  // Of whole lines; `from` is a multiple of 4.
  virtual Sums sums(const void* from, std::int64_t bytes) = 0;
  // All bytes. Both lie on the device.
  virtual bool same(const void* a, const void* b, std::int64_t bytes) = 0;

  // Host memory that the device can copy to and from while the host goes on. Copies to and from it are made in the
  // order of the kernels; it may be freed while they are under way.
  virtual c10::DataPtr host_block(std::int64_t bytes) = 0;
  virtual void keep(void* host_block, const void* from, std::int64_t bytes) = 0;
  virtual void put_back(void* to, const void* host_block, std::int64_t bytes) = 0;

  // Until all kernels that were asked for are done, on any stream.
  virtual void wait() = 0;

  // Work of several steps that share memory, each on the stream that is current when it is asked for.
  class Order {
   public:
    virtual ~Order() = default;
    virtual void begin() = 0;  // what is asked for now comes after what was asked for before the last end()
    virtual void end() = 0;
  };
  virtual std::unique_ptr<Order> order() = 0;

  // How long each piece of work takes there, the host's way of asking included where the device has to wait for it. Not
  // what it waits for before the piece: copies, and kernels of earlier ones. The host waits in times_ns() alone, so the
  // pieces run as close together as they do unwatched.
  //
  //   host     ask 1 ask 2 ask 3
  //   device         |─ 1 ─||─── 2 ───||─ 3 ─|         an event before and after each
  class Stopwatch {
   public:
    virtual ~Stopwatch() = default;
    virtual void begin() = 0;
    virtual void end() = 0;
    // Of all pieces in order; none where the device cannot tell.
    virtual std::vector<std::int64_t> times_ns() = 0;
  };
  virtual std::unique_ptr<Stopwatch> stopwatch() = 0;

  // Kernels as they were asked for once: over the same addresses, with the same numbers.
  class Graph {
   public:
    virtual ~Graph() = default;
    // What libraries work in beside the plan is still there.
    [[nodiscard]] virtual bool holds() const = 0;
    virtual void replay() = 0;  // on this thread's stream
  };
  class Graphs {
   public:
    virtual ~Graphs() = default;
    // Does the work where note() has it noted, so that libraries have there what they need.
    virtual void warm_up(const std::function<void()>& work) = 0;
    // None of the work's kernels runs. Throws what it throws, and where the device cannot note a kernel.
    virtual std::unique_ptr<Graph> note(const std::function<void()>& work) = 0;
  };
  virtual std::unique_ptr<Graphs> graphs() = 0;  // nullptr: this device has none

  // The stream that is current on this thread.
  class Stream {
   public:
    virtual ~Stream() = default;
    [[nodiscard]] virtual bool is_current() const = 0;
    // It is current meanwhile; the stream that was current before goes on after what was asked for.
    virtual void run(const std::function<void()>& work) = 0;
  };
  virtual std::unique_ptr<Stream> current_stream() = 0;

  // Where swapped buffers wait, and the lanes that lead there. `limit_bytes`: as for memory_store().
  virtual std::shared_ptr<HostStore> host_store(std::int64_t limit_bytes) = 0;
  virtual std::unique_ptr<Link> link(std::shared_ptr<HostStore> store) = 0;

  // Which stream is current on this thread.
  [[nodiscard]] virtual std::int64_t stream() const = 0;

  // What a plan must align addresses to, so that kernels choose as they do for the allocator's own blocks.
  [[nodiscard]] virtual std::int64_t align_bytes() const = 0;
};

Device& device_at(c10::Device where);

}  // namespace stowage::runtime
