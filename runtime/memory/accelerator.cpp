#include "runtime/memory/accelerator.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sum.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "runtime/memory/accelerator_graphs.h"
#include "runtime/memory/accelerator_link.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/front.h"
#include "runtime/memory/plainly.h"
#include "runtime/memory/staged_copy.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

std::string why_no_front(c10::DeviceType type) {
  return "PyTorch does not ask stowage for memory on " + c10::DeviceTypeName(type, /*lower_case=*/true) +
         ", so nothing can be planned there: ";
}

// ---- Streams

// Steps that use one arena, each on the stream that is current then.
class StreamOrder final : public Device::Order {
 public:
  explicit StreamOrder(c10::Device where) : guard_(where.type()), where_(where), ended_(where.type()) {}

  void begin() override {
    const c10::Stream now = guard_.getStream(where_);
    if (last_ && *last_ != now) ended_.block(now);
  }
  void end() override {
    last_ = guard_.getStream(where_);
    ended_.record(*last_);
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Device where_;
  c10::Event ended_;
  std::optional<c10::Stream> last_;
};

class CurrentStream final : public Device::Stream {
 public:
  explicit CurrentStream(c10::Device where) : guard_(where.type()), where_(where), stream_(guard_.getStream(where)) {}

  [[nodiscard]] bool is_current() const override { return guard_.getStream(where_) == stream_; }
  void run(const std::function<void()>& work) override {
    const c10::Stream others = guard_.getStream(where_);
    {
      const c10::StreamGuard on(stream_);
      work();
    }
    c10::Event done(where_.type());
    done.record(stream_);
    done.block(others);
  }

 private:
  c10::impl::VirtualGuardImpl guard_;
  c10::Device where_;
  c10::Stream stream_;
};

class EventStopwatch final : public Device::Stopwatch {
 public:
  explicit EventStopwatch(c10::Device where) : guard_(where.type()), where_(where) {}

  void begin() override { mark(); }
  void end() override { mark(); }
  std::vector<std::int64_t> times_ns() override {
    std::vector<std::int64_t> times;
    if (marks_.empty()) return times;
    marks_.back().synchronize();
    try {
      for (std::size_t i = 0; i + 1 < marks_.size(); i += 2)
        times.push_back(static_cast<std::int64_t>(marks_[i].elapsedTime(marks_[i + 1]) * 1e6));
    } catch (const c10::Error&) {  // its events keep no time
      times.clear();
    }
    return times;
  }

 private:
  void mark() {
    marks_.emplace_back(where_.type(), c10::EventFlag::BACKEND_DEFAULT);  // PyTorch's own default keeps no time
    marks_.back().record(guard_.getStream(where_));
  }

  c10::impl::VirtualGuardImpl guard_;
  c10::Device where_;
  std::deque<c10::Event> marks_;
};

class Accelerator final : public Device {
 public:
  explicit Accelerator(c10::Device where) : where_(where), guard_(where.type()) {}

  void install() override {
    const c10::DeviceType type = where_.type();
    const bool first = below_ == nullptr;
    try {
      below_ = &put_front(type);
    } catch (const Error& error) {
      throw Error(why_no_front(type) + error.what());
    }
    if (first) count_others();
    const at::Tensor block = at::empty({1}, at::TensorOptions(where_).dtype(at::kByte));
    if (block.storage().data_ptr().get_deleter() != &FrontBlocks::release)
      throw Error(
          why_no_front(type) +
          "it takes its blocks from an allocator of its own, or another library has put one in the place since");
  }

  c10::Allocator& allocator() override { return *c10::GetAllocator(where_.type()); }
  void count_others() override {
    const auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    FrontBlocks::count_earlier(where_, below_->getDeviceStats(where_.index()).requested_bytes[kAll].current);
  }
  bool adopt(c10::StorageImpl& storage) override {
    c10::DataPtr& block = storage._mutable_data_ptr_no_checks();
    if (block.device() != where_ || block.get() == nullptr || block.get_deleter() != below_->raw_deleter() ||
        storage.nbytes() == 0)
      return false;
    c10::DataPtr known = FrontBlocks::take_earlier(std::move(block), static_cast<std::int64_t>(storage.nbytes()));
    block = std::move(known);
    return true;
  }
  void used_here(c10::StorageImpl& storage) override {
    const c10::DataPtr& block = storage._mutable_data_ptr_no_checks();
    const c10::Stream now = guard_.getStream(where_);
    if (FrontBlocks::stream(block.get()) == now.id()) return;
    FrontBlocks::with(block.get(), [&](const c10::DataPtr& inner) { below_->recordStream(inner, now); });
  }
  c10::DataPtr allocate(std::int64_t bytes) override { return below_->allocate(static_cast<std::size_t>(bytes)); }

  void fill(void* at, int value, std::int64_t bytes) override {
    if (bytes == 0) return;
    const Plainly plainly;
    on_device(at, bytes).fill_(value & 0xFF);
  }
  void copy(void* to, const void* from, std::int64_t bytes) override {
    if (bytes == 0) return;
    const Plainly plainly;
    on_device(to, bytes).copy_(on_device(from, bytes));
  }
  void to_host(void* to, const void* from, std::int64_t bytes) override {
    bytes < kStagedBytes ? to_host(to, from, bytes, false) : staged_to_host(to, from, bytes, where_);
  }
  void from_host(void* to, const void* from, std::int64_t bytes) override {
    bytes < kStagedBytes ? from_host(to, from, bytes, false) : staged_from_host(to, from, bytes, where_);
  }

  Sums sums(const void* from, std::int64_t bytes) override {
    Sums sums;
    sums.of_lines.resize(static_cast<std::size_t>(bytes / align_bytes()));
    sums.of_places.resize(static_cast<std::size_t>((bytes + kSummedBytes - 1) / kSummedBytes * words_a_line()));
    std::int64_t* lines = sums.of_lines.data();
    std::int64_t* places = sums.of_places.data();
    const Plainly plainly;
    const Unarmed unarmed;
    const auto options = at::TensorOptions(where_).dtype(at::kLong);
    for (std::int64_t at = 0; at < bytes; at += kSummedBytes) {
      const std::int64_t count = std::min(kSummedBytes, bytes - at) / align_bytes();
      const at::Tensor words = on_device(static_cast<const char*>(from) + at, count * align_bytes())
                                   .view(at::kInt)
                                   .view({count, words_a_line()});
      const at::Tensor both = at::empty({count + words_a_line()}, options);
      at::Tensor of_lines = both.narrow(0, 0, count);
      at::Tensor of_places = both.narrow(0, count, words_a_line());
      at::sum_out(of_lines, words, at::IntArrayRef{1}, /*keepdim=*/false, at::kLong);
      at::sum_out(of_places, words, at::IntArrayRef{0}, /*keepdim=*/false, at::kLong);
      const at::Tensor here = both.cpu();
      std::copy_n(here.const_data_ptr<std::int64_t>(), count, lines);
      std::copy_n(here.const_data_ptr<std::int64_t>() + count, words_a_line(), places);
      lines += count;
      places += words_a_line();
    }
    return sums;
  }
  bool same(const void* a, const void* b, std::int64_t bytes) override {
    const Plainly plainly;
    const Unarmed unarmed;
    for (std::int64_t at = 0; at < bytes; at += kSummedBytes) {
      const std::int64_t count = std::min(kSummedBytes, bytes - at);
      if (!at::equal(on_device(static_cast<const char*>(a) + at, count),
                     on_device(static_cast<const char*>(b) + at, count)))
        return false;
    }
    return true;
  }

  c10::DataPtr host_block(std::int64_t bytes) override {
    return at::getHostAllocator(where_.type())->allocate(static_cast<std::size_t>(bytes));
  }
  void keep(void* block, const void* from, std::int64_t bytes) override { to_host(block, from, bytes, true); }
  void put_back(void* to, const void* block, std::int64_t bytes) override { from_host(to, block, bytes, true); }

  void wait() override { guard_.synchronizeDevice(where_.index()); }
  std::unique_ptr<Order> order() override { return std::make_unique<StreamOrder>(where_); }
  std::unique_ptr<Stream> current_stream() override { return std::make_unique<CurrentStream>(where_); }
  std::unique_ptr<Graphs> graphs() override { return stream_graphs(where_); }
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<EventStopwatch>(where_); }

  std::shared_ptr<HostStore> host_store(std::int64_t limit_bytes) override { return pinned_store(where_, limit_bytes); }
  std::unique_ptr<Link> link(std::shared_ptr<HostStore> store) override {
    return stream_link(where_, std::move(store));
  }

  [[nodiscard]] std::int64_t stream() const override { return guard_.getStream(where_).id(); }

  // What CUDA's allocator aligns to, and others do no better; so kernels that look at addresses see the same.
  [[nodiscard]] std::int64_t align_bytes() const override { return 512; }

 private:
  [[nodiscard]] std::int64_t words_a_line() const { return align_bytes() / 4; }
  [[nodiscard]] at::Tensor on_device(const void* at, std::int64_t bytes) const {
    return byte_tensor(at, bytes, where_);
  }
  static at::Tensor on_host(const void* at, std::int64_t bytes) {
    return byte_tensor(at, bytes, c10::Device(c10::DeviceType::CPU));
  }
  void to_host(void* to, const void* from, std::int64_t bytes, bool host_goes_on) {
    if (bytes == 0) return;
    const Plainly plainly;
    on_host(to, bytes).copy_(on_device(from, bytes), host_goes_on);
  }
  void from_host(void* to, const void* from, std::int64_t bytes, bool host_goes_on) {
    if (bytes == 0) return;
    const Plainly plainly;
    on_device(to, bytes).copy_(on_host(from, bytes), host_goes_on);
  }

  c10::Device where_;
  c10::impl::VirtualGuardImpl guard_;
  c10::DeviceAllocator* below_ = nullptr;  // from install() on
};

}  // namespace

Device& accelerator(c10::Device where) {
  static std::mutex mutex;
  static auto& known = *new std::map<c10::DeviceIndex, std::unique_ptr<Accelerator>>();
  const std::lock_guard lock(mutex);
  if (!at::accelerator::isAccelerator(where.type())) throw Error("no steps are planned on device " + where.str());
  std::unique_ptr<Accelerator>& device = known[where.index()];
  if (!device) device = std::make_unique<Accelerator>(where);
  return *device;
}

}  // namespace stowage::runtime
