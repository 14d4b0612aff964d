// The CPU as a device: its memory is the host's, and nothing runs behind the host.
#include <c10/core/CPUAllocator.h>

#include <chrono>
#include <cstring>
#include <utility>

#include "runtime/memory/accelerator.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/device.h"

namespace stowage::runtime {
namespace {

void move_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

class NoOrder final : public Device::Order {
 public:
  void begin() override {}
  void end() override {}
};

class NoStream final : public Device::Stream {
 public:
  [[nodiscard]] bool is_current() const override { return true; }
  void run(const std::function<void()>& work) override { work(); }
};

class HostStopwatch final : public Device::Stopwatch {
 public:
  void begin() override { start_ = std::chrono::steady_clock::now(); }
  void end() override { times_.push_back(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count()); }
  std::vector<std::int64_t> times_ns() override { return std::move(times_); }

 private:
  std::chrono::steady_clock::time_point start_;
  std::vector<std::int64_t> times_;
};

class CpuDevice final : public Device {
 public:
  void install() override { install_allocator(), require_allocator(); }
  c10::Allocator& allocator() override { return *c10::GetCPUAllocator(); }
  void count_others() override {}
  bool adopt(c10::StorageImpl&) override { return false; }  // no header lies before its block
  void used_here(c10::StorageImpl&) override {}
  c10::DataPtr allocate(std::int64_t bytes) override {
    const auto free = [](void* block) { delete[] static_cast<char*>(block); };
    auto* const block = new char[static_cast<std::size_t>(bytes)];
    return {block, block, free, c10::Device(c10::DeviceType::CPU)};
  }
  void fill(void* at, int value, std::int64_t bytes) override {
    std::memset(at, value, static_cast<std::size_t>(bytes));
  }
  void copy(void* to, const void* from, std::int64_t bytes) override { move_bytes(to, from, bytes); }
  void to_host(void* to, const void* from, std::int64_t bytes) override { move_bytes(to, from, bytes); }
  void from_host(void* to, const void* from, std::int64_t bytes) override { move_bytes(to, from, bytes); }
  Sums sums(const void* from, std::int64_t bytes) override {
    const std::int64_t words = align_bytes() / 4;
    Sums sums;
    std::vector<std::int32_t> line(static_cast<std::size_t>(words));
    for (std::int64_t at = 0; at < bytes; at += align_bytes()) {
      if (at % kSummedBytes == 0) sums.of_places.resize(sums.of_places.size() + line.size());
      std::memcpy(line.data(), static_cast<const char*>(from) + at, static_cast<std::size_t>(align_bytes()));
      std::int64_t* const places = sums.of_places.data() + sums.of_places.size() - line.size();
      std::int64_t sum = 0;
      for (std::size_t i = 0; i < line.size(); ++i) {
        sum += line[i];
        places[i] += line[i];
      }
      sums.of_lines.push_back(sum);
    }
    return sums;
  }
  bool same(const void* a, const void* b, std::int64_t bytes) override {
    return std::memcmp(a, b, static_cast<std::size_t>(bytes)) == 0;
  }
  c10::DataPtr host_block(std::int64_t bytes) override { return allocate(bytes); }
  void keep(void* block, const void* from, std::int64_t bytes) override { move_bytes(block, from, bytes); }
  void put_back(void* to, const void* block, std::int64_t bytes) override { move_bytes(to, block, bytes); }
  void wait() override {}
  std::unique_ptr<Order> order() override { return std::make_unique<NoOrder>(); }
  std::unique_ptr<Stream> current_stream() override { return std::make_unique<NoStream>(); }
  std::unique_ptr<Graphs> graphs() override { return nullptr; }
  std::unique_ptr<Stopwatch> stopwatch() override { return std::make_unique<HostStopwatch>(); }
  std::shared_ptr<HostStore> host_store(std::int64_t limit_bytes) override { return memory_store(limit_bytes); }
  std::unique_ptr<Link> link(std::shared_ptr<HostStore> store) override { return threaded_link(std::move(store), 0); }
  [[nodiscard]] std::int64_t stream() const override { return 0; }
  [[nodiscard]] std::int64_t align_bytes() const override { return 64; }
};

}  // namespace

Device& device_at(c10::Device where) {
  static auto* const cpu = new CpuDevice();
  return where.is_cpu() ? *cpu : accelerator(where);
}

}  // namespace stowage::runtime
