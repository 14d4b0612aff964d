// Layout problems for tests, and the naive answer for small ones.
#pragma once

#include <random>
#include <vector>

#include "layout/instance.h"
#include "stowage/layout.h"
#include "support/random_graph.h"

namespace stowage::testing {

bool overlap(const LayoutItem& a, const LayoutItem& b);

// The least height: in some order, each item at the lowest offset above all placed ones that it overlaps. O(n!).
std::int64_t least_height(const std::vector<LayoutItem>& items, std::int64_t align);

// Whether a layout of at most `capacity` exists: every address is tried for every item, with alignment 1.
bool fits_somehow(const std::vector<LayoutItem>& items, std::int64_t capacity);

std::vector<LayoutItem> random_items(std::mt19937_64& random, int count, int times, int most);

// Always `height` bytes live in [0, times): at each time some items end and others of the same sum begin. A layout
// without a hole need not exist.
std::vector<LayoutItem> full_items(std::mt19937_64& random, std::int64_t height, std::int64_t times);

// A full square of `height` by `times` cut into rectangles by random guillotine cuts: a layout without a hole exists.
void cut_up(std::mt19937_64& random, LayoutItem piece, int cuts, std::vector<LayoutItem>& into);

// All pairs, on purpose: none overlap, and the height is that of the highest.
void expect_valid(const LayoutInstance& instance, const Offsets& offsets);

}  // namespace stowage::testing
