// The pages of an arena on the CPU. Results of a step may stay in them when the arena is given back, or is needed anew.
//
//   arena   ░░░░ grad a ░░░░░░░ grad b ░░░     results that stay: DataPtrs into the pages
//   part()       grad a         grad b         the arena is gone; whole pages between them go back to the system
//   they die                                   so does each one's part, and with the last one all
//
// Bytes are counted as live once: those of the arena while there is one, then those of the results. Results are given
// out by the thread that runs the step, and die on any.
#pragma once

#include <c10/core/Allocator.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace stowage::runtime {

class ArenaPages : public std::enable_shared_from_this<ArenaPages> {
 public:
  // At least `bytes`, which count as live; on huge pages where the system has them. Throws Error when there is not enough.
  explicit ArenaPages(std::int64_t bytes);
  ~ArenaPages();
  ArenaPages(const ArenaPages&) = delete;
  ArenaPages& operator=(const ArenaPages&) = delete;

  // [address, address + bytes) is a result's from now on, until the pointer dies. O(log results).
  c10::DataPtr stay(void* address, std::int64_t bytes);
  // Do results lie there? What others have done with those that have died is seen then.
  [[nodiscard]] bool have_results() const { return results_alive_.load(std::memory_order_acquire) > 0; }
  // The arena needs them no more. O(results).
  void part();
  void fill(int value);  // all but results

  [[nodiscard]] char* base() const { return base_; }
  [[nodiscard]] std::int64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  struct Result;
  friend bool is_result_in_pages(void (*deleter)(void*));

  void dies(const char* address);
  template <class With>
  void beside_results(const char* end, const With& with);
  static void give_back(const char* from, const char* to);  // the whole pages in between

  std::int64_t bytes_;
  char* base_ = nullptr;
  std::int64_t mapped_bytes_ = 0;
  std::atomic<std::int64_t> results_alive_{0};
  std::mutex mutex_;                             // of what follows
  std::map<const char*, std::int64_t> results_;  // bytes, by address
  bool parted_ = false;
};

// Is it that of a result which stays in an arena's pages?
bool is_result_in_pages(void (*deleter)(void*));

}  // namespace stowage::runtime
