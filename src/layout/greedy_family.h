// The plain greedies, all of them: no result of `layout` is above the best.
//
//   order                      then          as in
//   size                       life; input   Pisarchyk and Lee (arXiv 2001.03288): TFLM, XNNPACK, ExecuTorch
//   area (bytes x lifetime)    bytes
//   lifetime                   bytes         long-lived first
//   start                      bytes; life   online allocators: ONNX Runtime, TFLite's arena, ggml
//   end                        start         a stack from behind
//   each into the lowest gap that holds it, and into the tightest; and orders of portfolio.h, for many rects
//
//   batch 1   size ↓lowest   total ↓lowest  life ↓lowest …    a batch is laid out on all threads; the next one starts when no
//   batch 2   size ↓tightest …                                height meets the target, and stops each fit at the best height so far
//
// A fit that would end above the best is cut off where it shows, so most cost a part of a whole one. By free_gaps.h a fit
// of a million rects takes seconds; so all of them can be tried there too. What runs is decided between batches, of fixed
// size: the same at any number of threads.
#pragma once

#include <cstdint>
#include <functional>

#include "layout/instance.h"

namespace stowage {

enum class Greedies : std::uint8_t { kFirst, kOthers, kAll };  // the first batch, those behind it

// `best` or what is lower. `work` is reduced by the blocks looked at; no batch starts when it has run out, and no fit
// looks at more than there was at its start.
Offsets greedy_family(const LayoutInstance& instance, Greedies which, Offsets best, std::int64_t target,
                      std::int64_t& work, int threads, const std::function<bool()>& should_stop);

}  // namespace stowage
