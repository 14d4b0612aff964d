// Who asked for a block: the line of the user's code that ran, and the phase of the step. For whoever asks what held the
// peak.
//
//   allocate(n) ──► line, phase ──► owner: a small number, kept with the block ──► held[owner] += n
//   free        ──► held[its owner] -= n
//
//   live  ╱╲_╱▔╲___     the first block that dies at a new highest makes held[] a copy: what held the peak so far
//
// Phases are found, not told: set-up until autograd notes its first operator; backward where autograd is at work on the
// thread; update inside an optimizer's step, where no gradients are recorded; else forward. What backward makes belongs to the line of the forward
// operator whose gradient it works out (autograd numbers both alike), where that is known.
//
// Of one memory at a time: the host's, or a device's. Blocks below kLeastBytes have no owner. O(1) a block; a copy is one number for each owner, made at new peaks alone.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace stowage::runtime::owners {

using OwnerId = std::int32_t;
constexpr OwnerId kNobody = 0;
constexpr std::int64_t kLeastBytes = 4096;

enum class Phase : std::uint8_t { kSetUp, kForward, kBackward, kUpdate };
constexpr std::size_t kPhases = 4;

// The line that runs on this thread as a number above 0, or 0; may take the GIL. And what a number stands for, which
// waits for nobody: "train.py:12".
struct Lines {
  std::int32_t (*now)() = nullptr;
  std::string (*text)(std::int32_t line) = nullptr;
};

// A child made by fork() finds the notes complete. Called before whoever may hold a lock of its own around these asks for
// the same, as what is asked for last is done first at a fork; begin() calls it, too.
void survive_forks();

// From now on new blocks of this memory have owners. Counts: each begin() needs its end(), and the first one says which
// memory it is.
void begin(const Lines& lines, c10::Device where);
void end();

struct Held {
  std::int32_t line = 0;  // 0: not known
  Phase phase = Phase::kSetUp;
  std::int64_t bytes = 0;
  std::int64_t between_bytes = 0;  // when the latest optimizer step ended
  std::int32_t grown = 0;          // ends of optimizer steps with more than at the one before, since one with less
};

struct Peak {
  std::int64_t bytes = 0;  // live then: of blocks without an owner, too
  Phase phase = Phase::kSetUp;
  std::int32_t line = 0;                         // that asked last
  std::int64_t update = 0;                       // optimizer steps that were over
  std::array<std::int64_t, kPhases> of_phase{};  // the most in each
  std::vector<Held> held;                        // largest first
};

struct Sample {
  std::int64_t at_ns = 0;  // of a steady clock
  std::int64_t live_bytes = 0;
};

// Since the first begin(), or the latest forget().
Peak peak();
std::vector<Sample> curve();
std::int64_t updates();
void forget();
// "train.py:12", or "" where nothing is known.
std::string line_of(OwnerId owner);
// Of the forward operator whose gradient this thread works out.
std::string line_of_gradient();

// The calling thread's, of an optimizer. One that raised has no end, and a subclass may call its parent's step: one
// optimizer is in one step at a time.
void update_begins(std::uint64_t optimizer);
void update_ends(std::uint64_t optimizer);

// For the allocator: a new block, which counts as live by now; one that dies; one whose owner moves into another block.
OwnerId asks(std::int64_t bytes, c10::Device where);
void dies(OwnerId owner, std::int64_t bytes);
void moves(OwnerId owner, std::int64_t bytes);

// While one is alive on a thread, its blocks have no owner: a budget at work, which may hold locks.
struct Unasked {
  Unasked();
  ~Unasked();
  Unasked(const Unasked&) = delete;
  Unasked& operator=(const Unasked&) = delete;
  bool before;
};
// Within one, they have again: the user's own operator.
struct Asked {
  Asked();
  ~Asked();
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  bool before;
};

}  // namespace stowage::runtime::owners
