// A small planner that can be broken: thirty and more ways in which a planner goes wrong, one line each, to be chosen
// one at a time. Unbroken, its plans are valid. It takes the steps of a valid plan (ops that run again and copies over
// the link included), asks anew how long each buffer must be there, and gives addresses by first fit.
#pragma once

#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "stowage/graph.h"
#include "stowage/plan.h"

namespace stowage::testing {

enum class Fault : std::uint8_t {
  kNone,
  // Steps.
  kDropsAnOp,
  kReadsBeforeTheMaker,
  kWritesBeforeAReader,
  kExchangesRngOps,
  kExchangesEffects,
  kIgnoresAfter,
  kRepeatsAnEffect,
  kRepeatsWhatRunsOnce,
  kRepeatsAWriter,
  kRepeatsAfterAWrite,
  kForgetsToRunAgain,
  kForgetsToCopyBack,
  kForgetsToCopyOut,
  kCopiesBackLate,
  kCopiesBackTooSoon,
  kUsesWhatArrives,
  kChangesWhatLeaves,
  kCopiesAResident,
  kCopiesOutWhatIsNotThere,
  kRunsWhatIsNoOp,
  // How long buffers are there.
  kEndsOneEarly,
  kStartsOneLate,
  kStartsOneEarly,
  kReturnedEndsAtItsLastUse,
  kReadsAreNoUses,
  kWritesAreNoUses,
  kLeavesDuringTheCopy,
  kStaysWhereItWas,
  kForgetsAPlacement,
  kPlacesItTwice,
  kPlacesAResident,
  // Addresses.
  kPacksWithoutPadding,
  kCountsHalfTheBytes,
  kLaysOverTheLastStep,
  kLaysOverScratch,
  kIgnoresTicksOfBirth,
  kCutsScratchShort,
  kArenaOfLiveBytes,
  kArenaOneShort,
  kBeginsBelowZero,
  kExchangesAddresses,
  kExchangesBuffers,
  kScratchOfFirstRunsOnly,
  kScratchTwice,
  // In-place reuse.
  kTakesWhatIsReadLater,
  kTakesWithoutAPair,
  kTakesOneTwice,
  kTakesBesideIt,
  kTakesWhatLeaves,
  kTakesWhatIsReturned,
  // The head of the file.
  kNamesAnotherGraph,
  kAlignsOtherwise,
  kCount,
};

std::string_view name_of(Fault fault);

// `steps`: those of a plan that is valid for the graph.
Plan broken_plan(const Graph& graph, std::vector<Step> steps, Fault fault, std::mt19937_64& random);

}  // namespace stowage::testing
