#include "runtime/memory/accelerator_link.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/plainly.h"
#include "runtime/memory/what.h"
#include "stowage/bytes.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kSmallestChunk = std::int64_t{1} << 20;

class PinnedStore final : public HostStore {
 public:
  PinnedStore(c10::Device where, std::int64_t limit) : where_(where), limit_(limit) {}

  void reserve(std::int64_t bytes) override {
    if (bytes <= bytes_) return;
    release();
    require_host_memory(bytes, limit_);
    try {
      for (std::int64_t from = 0; from < bytes;) {
        const auto left = static_cast<std::uint64_t>(std::max(bytes - from, kSmallestChunk));
        const auto chunk = static_cast<std::int64_t>(
            left > static_cast<std::uint64_t>(kSmallestChunk) ? std::bit_floor(left) : std::bit_ceil(left));
        chunks_.push_back(
            {from, chunk, at::getHostAllocator(where_.type())->allocate(static_cast<std::size_t>(chunk))});
        from += chunk;
      }
    } catch (const std::exception& error) {
      release();
      throw Error("host store: " + in_words(bytes) + " of pinned memory cannot be had: " + what_of(error));
    }
    bytes_ = chunks_.back().from + chunks_.back().bytes;
  }
  void release() override {
    chunks_.clear();
    bytes_ = 0;
  }
  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

  void write(std::int64_t offset, const void* from, std::int64_t bytes) override {
    const char* at = static_cast<const char*>(from);
    for_each_part(offset, bytes, [&](char* part, std::int64_t n) {
      std::memcpy(part, at, static_cast<std::size_t>(n));
      at += n;
    });
  }
  void read(std::int64_t offset, void* into, std::int64_t bytes) override {
    char* at = static_cast<char*>(into);
    for_each_part(offset, bytes, [&](const char* part, std::int64_t n) {
      std::memcpy(at, part, static_cast<std::size_t>(n));
      at += n;
    });
  }

  void for_each_part(std::int64_t offset, std::int64_t bytes, const Visit& visit) const override {
    for (const Chunk& chunk : chunks_) {
      const std::int64_t from = std::max(offset, chunk.from);
      const std::int64_t to = std::min(offset + bytes, chunk.from + chunk.bytes);
      if (from < to) visit(static_cast<char*>(chunk.memory.get()) + (from - chunk.from), to - from);
    }
  }

 private:
  struct Chunk {
    std::int64_t from = 0, bytes = 0;
    c10::DataPtr memory;
  };

  c10::Device where_;
  std::int64_t limit_;
  std::vector<Chunk> chunks_;
  std::int64_t bytes_ = 0;
};

class StreamLink final : public Link {
 public:
  StreamLink(c10::Device where, std::shared_ptr<HostStore> store)
      : where_(where), guard_(where.type()), store_(std::move(store)) {
    for (Lane& lane : lanes_) lane.stream = guard_.getNewStream(where_);
  }
  ~StreamLink() override { wait_for_all(); }
  StreamLink(const StreamLink&) = delete;
  StreamLink& operator=(const StreamLink&) = delete;

  Ticket start(const Copy& copy) override {
    Lane& lane = lanes_[index(copy.direction)];
    const auto number = static_cast<std::size_t>(lane.started++);
    if (number == lane.events.size()) lane.events.emplace_back(where_.type());
    c10::Event may_begin(where_.type());
    may_begin.record(guard_.getStream(where_));
    may_begin.block(lane.stream);
    {
      const c10::StreamGuard on(lane.stream);
      const Plainly plainly;
      char* device = static_cast<char*>(copy.device);
      store_->for_each_part(copy.host_offset, copy.bytes, [&](char* host, std::int64_t n) {
        const at::Tensor here = byte_tensor(host, n, c10::Device(c10::DeviceType::CPU));
        const at::Tensor there = byte_tensor(device, n, where_);
        const bool out = copy.direction == Copy::Direction::kOut;
        (out ? here : there).copy_(out ? there : here, /*non_blocking=*/true);
        device += n;
      });
    }
    lane.events[number].record(lane.stream);
    return {copy.direction, static_cast<std::int64_t>(number)};
  }

  std::string finish(Ticket ticket) override {
    event_of(ticket).block(guard_.getStream(where_));
    return {};
  }
  bool complete(Ticket ticket) override { return event_of(ticket).query(); }

  // At the end of each step: all copies of one that came to its end were finished. Numbers begin anew.
  void abandon() override {
    for (Lane& lane : lanes_) {
      if (lane.started > 0) lane.events[static_cast<std::size_t>(lane.started) - 1].block(guard_.getStream(where_));
      lane.started = 0;
    }
  }

 private:
  struct Lane {
    c10::Stream stream{c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CPU), 0};
    std::deque<c10::Event> events;  // by number: the copy has ended
    std::int64_t started = 0;
  };

  static std::size_t index(Copy::Direction direction) { return direction == Copy::Direction::kOut ? 0 : 1; }
  c10::Event& event_of(Ticket ticket) {
    return lanes_[index(ticket.direction)].events.at(static_cast<std::size_t>(ticket.number));
  }
  void wait_for_all() {
    for (const Lane& lane : lanes_) guard_.synchronizeStream(lane.stream);
  }

  c10::Device where_;
  c10::impl::VirtualGuardImpl guard_;
  std::shared_ptr<HostStore> store_;
  std::array<Lane, 2> lanes_;
};

}  // namespace

std::shared_ptr<HostStore> pinned_store(c10::Device where, std::int64_t limit_bytes) {
  return std::make_shared<PinnedStore>(where, limit_bytes);
}

std::unique_ptr<Link> stream_link(c10::Device where, std::shared_ptr<HostStore> store) {
  return std::make_unique<StreamLink>(where, std::move(store));
}

}  // namespace stowage::runtime
