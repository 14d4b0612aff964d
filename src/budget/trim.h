// Undoing what is no longer needed: runs whose results could have been kept after all, swaps of what could have stayed.
//
//   a  ████·······██A'██     is there room for a in between?  then A' goes, and with it the uses that kept its inputs alive;
//      ██████████████        a run whose result nobody uses any more goes in any case
//
// Greedy covering takes moves that later ones make superfluous; this is its reverse deletion, dearest first. Every test
// accounts for the change in the ledger, looks at the largest sum, and takes it back if it is over. O(uses · log n) a
// test.
#pragma once

#include <cstdint>

#include "budget/ledger.h"

namespace stowage::budget {

// `sequence` fits `capacity` before and after. True when something went away.
bool trim(const Recipes& recipes, Sequence& sequence, std::int64_t capacity, std::int64_t& work);

// Takes out what can be taken out of positions [from, to), whatever it does to the bytes: runs again, and swaps that
// end there.
void undo(const Recipes& recipes, Sequence& sequence, std::int32_t from, std::int32_t to);

}  // namespace stowage::budget
