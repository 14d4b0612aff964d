// A set of addresses as sorted blocks without a gap between them, that skips gaps which are too narrow.
//
//   blocks   ██░███░░██ │ █░██░█░███ │ ██░░░░██     Up to 96 blocks lie in one array. More are cut into chunks of 64 to 128, each with
//   chunk      widest 2  │  widest 1  │  widest 4    its first and last address and its widest gap: who looks for a gap of 3 passes
//                                                   over whole chunks.
//
// add O(log chunks + 128), amortized with what it swallows. A cursor goes upwards only; all its steps together cost
// O(chunks + blocks of chunks with a gap wide enough).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace stowage {

class BlockSet {
 public:
  struct Block {
    std::int64_t begin, end;
  };

  void add(std::int64_t begin, std::int64_t end);
  [[nodiscard]] bool empty() const { return blocks_.empty() && !chunks_; }

 private:
  struct Chunk {
    std::int64_t begin, end, widest;  // widest gap between two blocks of it
    std::vector<Block> blocks;
    void summarize();
  };

 public:
  class Cursor {
   public:
    explicit Cursor(const BlockSet& set);
    // The lowest address at or above `from` where so many bytes are free.
    std::int64_t lift(std::int64_t from, std::int64_t bytes, std::int64_t& looked);
    // Where the gap ends that `lift` found; the largest number if it does not.
    [[nodiscard]] std::int64_t gap_end() const;

   private:
    const Block *at_ = nullptr, *end_ = nullptr;
    const Chunk *chunk_ = nullptr, *last_ = nullptr;  // the next one
  };

 private:
  void add_to_chunks(std::int64_t begin, std::int64_t end);
  void split(std::size_t chunk);

  std::vector<Block> blocks_;                   // while they are few
  std::unique_ptr<std::vector<Chunk>> chunks_;  // then
};

}  // namespace stowage
