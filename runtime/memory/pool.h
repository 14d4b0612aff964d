// Allocations within one planned block, first fit: what a kernel takes for parts of its rows, whose number and sizes no plan lists.
//
//   block   [ a ████ | b ██ | free | c ███ | free .......... ]        take(n) finds the first gap; lie_over(a) puts the next one of a's
//                                                                     size over a, which is about to be given back
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace stowage::runtime {

class Pool {
 public:
  Pool(void* base, std::int64_t bytes) : base_(static_cast<char*>(base)), bytes_(bytes) {}

  // nullptr where there is no room; wanted() says how much there should have been.
  void* take(std::size_t n);
  bool give_back(const void* address);  // false when it is not here
  void lie_over(const void* address) { over_ = address; }

  [[nodiscard]] std::int64_t wanted() const { return wanted_; }
  [[nodiscard]] bool empty() const { return blocks_.empty(); }

 private:
  struct Block {
    std::int64_t asked = 0;
    std::int64_t padded = 0;
    int holders = 1;
  };
  static constexpr std::int64_t kAlign = 64;

  char* base_;
  std::int64_t bytes_;
  std::map<std::int64_t, Block> blocks_;  // by offset
  std::int64_t wanted_ = 0;
  const void* over_ = nullptr;
};

}  // namespace stowage::runtime
