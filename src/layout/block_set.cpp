#include "layout/block_set.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace stowage {
namespace {

using Block = BlockSet::Block;
constexpr std::size_t kFlat = 96, kMost = 128, kEach = 64;

// Adds a block to those of one array, and swallows what it touches.
void merge(std::vector<Block>& blocks, std::int64_t begin, std::int64_t end) {
  const auto first = std::lower_bound(blocks.begin(), blocks.end(), begin,
                                      [](const Block& b, std::int64_t address) { return b.end < address; });
  auto last = first;
  while (last != blocks.end() && last->begin <= end) ++last;
  if (first == last) {
    blocks.insert(first, {begin, end});
    return;
  }
  first->begin = std::min(first->begin, begin);
  first->end = std::max(end, (last - 1)->end);
  blocks.erase(first + 1, last);
}

}  // namespace

void BlockSet::Chunk::summarize() {
  begin = blocks.front().begin;
  end = blocks.back().end;
  widest = 0;
  for (std::size_t k = 1; k < blocks.size(); ++k) widest = std::max(widest, blocks[k].begin - blocks[k - 1].end);
}

void BlockSet::add(std::int64_t begin, std::int64_t end) {
  if (chunks_) return add_to_chunks(begin, end);
  merge(blocks_, begin, end);
  if (blocks_.size() <= kFlat) return;
  chunks_ = std::make_unique<std::vector<Chunk>>(1);
  chunks_->front().blocks.swap(blocks_);
  blocks_.shrink_to_fit();
  chunks_->front().summarize();
}

void BlockSet::add_to_chunks(std::int64_t begin, std::int64_t end) {
  std::vector<Chunk>& chunks = *chunks_;
  auto at = std::lower_bound(chunks.begin(), chunks.end(), begin,
                             [](const Chunk& c, std::int64_t address) { return c.end < address; });
  if (at == chunks.end()) --at;
  // What it touches of later chunks becomes a part of it first.
  auto next = at + 1;
  for (; next != chunks.end() && next->begin <= end; ++next) {
    if (next->end > end) {
      const auto kept =
          std::find_if(next->blocks.begin(), next->blocks.end(), [&](const Block& b) { return b.begin > end; });
      end = std::max(end, std::prev(kept)->end);
      next->blocks.erase(next->blocks.begin(), kept);
      if (!next->blocks.empty()) {
        next->summarize();
        break;
      }
    }
  }
  merge(at->blocks, begin, end);
  at->summarize();
  at = std::prev(chunks.erase(at + 1, next));
  if (at->blocks.size() > kMost) split(static_cast<std::size_t>(at - chunks.begin()));
}

void BlockSet::split(std::size_t chunk) {
  Chunk rest;
  std::vector<Block>& blocks = (*chunks_)[chunk].blocks;
  rest.blocks.assign(blocks.begin() + kEach, blocks.end());
  blocks.resize(kEach);
  rest.summarize();
  (*chunks_)[chunk].summarize();
  chunks_->insert(chunks_->begin() + static_cast<std::ptrdiff_t>(chunk) + 1, std::move(rest));
}

BlockSet::Cursor::Cursor(const BlockSet& set) {
  if (set.chunks_) {
    chunk_ = set.chunks_->data();
    last_ = chunk_ + set.chunks_->size();
  } else {
    at_ = set.blocks_.data();
    end_ = at_ + set.blocks_.size();
  }
}

std::int64_t BlockSet::Cursor::lift(std::int64_t from, std::int64_t bytes, std::int64_t& looked) {
  const Block* start = at_;
  const Chunk* const first = chunk_;
  while (true) {
    while (at_ != end_ && at_->end <= from) ++at_;
    for (; at_ != end_ && at_->begin - from < bytes; ++at_) from = at_->end;
    looked += at_ - start;
    if (at_ != end_) break;
    while (chunk_ != last_ && chunk_->begin - from < bytes && (chunk_->widest < bytes || chunk_->end <= from)) {
      from = std::max(from, chunk_->end);
      ++chunk_;
    }
    if (chunk_ == last_) break;
    start = at_ = chunk_->blocks.data();
    end_ = at_ + chunk_->blocks.size();
    ++chunk_;
  }
  looked += chunk_ - first + 1;
  return from;
}

std::int64_t BlockSet::Cursor::gap_end() const {
  return at_ != end_ ? at_->begin : std::numeric_limits<std::int64_t>::max();
}

}  // namespace stowage
