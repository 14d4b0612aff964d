// The best-fit family: one list fit for each of several orders, the sweep fit, up to the first that meets the target.
//
//   order                  serves first                                   good for
//   size                   the largest                                    few giants (arXiv 2001.03288)
//   area                   bytes x lifetime
//   lifetime               the longest-lived                              activations below, temporaries above (LLFB)
//   free time              the latest freed                               a stack: backward retreats like one (ROAM, arXiv 2310.19295)
//   total                  live at the fullest time, then size            a full moment leaves no room for holes
// Free time, size and area also after what lives at the fullest times (preferences.h).
#pragma once

#include <vector>

#include "layout/instance.h"

namespace stowage {

constexpr std::size_t kBestPackings = 3;

struct Packing {
  Offsets offsets;
  std::vector<std::int32_t> order;  // of the list fit that made it; by offset for a sweep
};

// The three best of the family, best first, up to the first that meets `target`. `work` is reduced by the rects looked
// at; no list fit starts when it has run out, and none goes on above the third best.
// The height that a packing must stay below to be among the best. `packings` is sorted.
std::int64_t ceiling_of(const std::vector<Packing>& packings);

std::vector<Packing> portfolio(const LayoutInstance& instance, std::int64_t target, std::int64_t& work);

}  // namespace stowage
