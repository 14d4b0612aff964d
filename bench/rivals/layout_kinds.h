// Layout problems of the kinds that training steps and allocators make, of any size, from a seed.
//
//   kind         lives                                            sizes                                   like
//   somas        forward until its backward, weights' gradients   shapes of a network, multiples of 512   ResNet, SOMAS
//   lifetimes    heavy-tailed, up to half of all time             heavy-tailed, a few hundred different   IOPDDL contest
//   nested       last in, first out, with temporaries between     the shapes of a transformer's block     GPT
//   short_long   nine in ten live for moments, one for long       long ones small and large
//   periodic     the same pattern again and again                 slightly other sizes each time          micro-batches
//   slivers      freed in an order that tightest fit regrets      each a little larger than the hole left
//   random       any                                              any up to a limit
//   power        a third of all time                              Pareto: few giants, dense small ones
//   cut          a full rectangle cut by guillotine: a layout without a hole exists
//   tiled        like minimalloc-F: about 16 live at once, without a hole known to exist
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "stowage/layout.h"

namespace stowage::rivals {

enum class LayoutKind : std::uint8_t {
  kSomas,
  kLifetimes,
  kNested,
  kShortLong,
  kPeriodic,
  kSlivers,
  kRandom,
  kPower,
  kCut,
  kTiled
};

inline constexpr std::string_view kLayoutKindNames[] = {"somas",   "lifetimes", "nested", "short_long", "periodic",
                                                        "slivers", "random",    "power",  "cut",        "tiled"};

// About `count` items, in a shuffled order; the same for the same arguments.
std::vector<LayoutItem> layout_of_kind(LayoutKind kind, std::size_t count, std::uint64_t seed);

}  // namespace stowage::rivals
