// The random generators of a step that is being recorded: which op draws from which, and how Python moves them between
// draws.
//
//   states_    0 ──draw──▶ 1 ──draw──▶ 2            the generators before the step and after each op that draws
//                               │ Python: set_state(state 0), manual_seed(7)
//                               └──jump──▶ draw      a jump leads to a state that was there before, or to one from outside
//
// Replays repeat draws and jumps. A generator that the step itself makes has no state that is known before its first draw.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/tape.h"
#include "runtime/torch/generator.h"

namespace stowage::runtime {

class RecordedDraws {
 public:
  RecordedDraws(Tape& tape, bool fake) : tape_(tape), fake_(fake) {}

  void start() { states_.push_back(GeneratorState::current(tape_.generators)); }
  [[nodiscard]] bool has_started() const { return !states_.empty(); }
  void stop();

  // A generator that the step can reach, before it may be drawn from or set. Where no earlier tape of the step knows it,
  // each call may come by another one.
  void know(const at::Generator& generator, const std::vector<std::shared_ptr<Tape>>& earlier);
  // Which one the op draws from, by its argument; a default one where it has none. Returns why the step cannot be
  // replayed, or "".
  std::string take_generator(TapeOp& op, std::size_t argument, const at::Generator& generator);

  // Before the op runs. Where it draws: the generators now, which end() wants.
  std::optional<GeneratorState> begin(TapeOp& op);
  // After it. An op may throw (a checkpoint stops its recomputation so): then it is not on the tape, and has not drawn.
  void end(TapeOp& op, const GeneratorState& before);

  // As before the step, as far as it may have drawn.
  void put_back() const { states_.front().put_back(begun_); }
  // At the end: generators that the step has made are Python's own; the tape's kernels draw from others.
  void part_from_made();

 private:
  void note_begun(const TapeOp& op, bool may_draw);
  // How Python has moved the generators since the latest draw.
  [[nodiscard]] GeneratorJump jump_here(const GeneratorState& now) const;
  [[nodiscard]] int repeated_draw(const TapeOp& op) const;

  Tape& tape_;
  bool fake_;
  std::vector<GeneratorState> states_;  // states_[i]: after i draws
  std::vector<TapeOpId> draws_;         // the ops that drew
  OfGeneratorParts<bool> begun_;        // an op that may draw has run, if not to its end
  std::size_t made_generators_ = 0;
  std::vector<GeneratorState> come_by_;  // as they were: those that no earlier tape knows
};

}  // namespace stowage::runtime
