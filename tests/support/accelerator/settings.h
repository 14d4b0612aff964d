// What tests may set, and what they may count.
//
//   test ──► standin.py ──► extern "C" standin_…() ──► Settings   read by memory, links, generator, kernels
//   test ◄── standin.py ◄── extern "C" standin_count() ◄── Counters
//
// The face is plain C, called through ctypes: the dispatcher does not see it, so neither does what a test examines.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#define STANDIN_FACE extern "C" __attribute__((visibility("default")))

namespace standin {

inline constexpr int kPoison = 0xDD;

struct Settings {
  std::atomic<std::int64_t> limit_bytes{std::int64_t{2} << 30};
  std::atomic<double> to_device_gbps{0};  // 0: as fast as memcpy
  std::atomic<double> to_host_gbps{0};
  std::atomic<bool> poison{
      false};                      // device blocks are filled with kPoison when they are taken, and when they are freed
  std::atomic<bool> strict{true};  // a host tensor that is no scalar is refused beside device tensors
  std::atomic<bool> cpu_numbers{false};          // generators draw as the CPU's do (mt19937), else from seed and offset
  std::atomic<bool> check_order{false};          // order.h
  std::atomic<bool> wrong_graphs{false};         // graphs leave out their last kernel
  std::atomic<bool> captures_take{false};        // each kernel that is noted takes some memory, and keeps it
  std::atomic<std::int64_t> workspace_bytes{0};  // taken by the first matrix product on each stream, and kept
};

struct Counters {
  std::atomic<std::int64_t> kernels{0};  // but for those of graphs
  std::atomic<std::int64_t> graph_launches{0}, graph_kernels{0};
  std::atomic<std::int64_t> copies_to_device{0}, bytes_to_device{0};
  std::atomic<std::int64_t> copies_to_host{0}, bytes_to_host{0};
  std::atomic<std::int64_t> async_copies{0};  // those that ran beside the caller
  std::atomic<std::int64_t> draws{0};         // kernels that took random numbers
  std::atomic<std::int64_t> refusals{0};      // kernels refused by Settings::strict
  std::atomic<std::int64_t> host_touches{0};  // of device memory, prevented; those of forked children, too
  std::atomic<std::int64_t> races{0};         // accesses that nothing orders (order.h)
  std::atomic<std::int64_t> pinned_bytes{0};  // of host memory, each block rounded up to a power of two
};

Settings& settings();
// Captures do not take this operator's kernels.
bool is_not_noted(const std::string& op);
Counters& counters();  // in a page that forked children share

// True in a child that was forked after the stand-in was loaded: it has the memory, but no streams.
bool forked();

}  // namespace standin
