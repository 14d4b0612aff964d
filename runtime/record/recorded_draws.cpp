#include "runtime/record/recorded_draws.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

// Dropout of nothing, inside a larger op. (The CPU generator's state before and after tells less, where another thread
// draws meanwhile. That of a device tells all: it may count draws of nothing, too.)
bool drops_nothing(const TapeOp& op) {
  for (std::size_t i = 0; i < op.arguments.size(); ++i) {
    const std::string& name = op.handle.schema().arguments()[i].name();
    if ((name == "dropout_p" || name == "dropout") && op.arguments[i].isDouble())
      return op.arguments[i].toDouble() == 0;
  }
  return false;
}

}  // namespace

void RecordedDraws::stop() {
  tape_.final_jump = jump_here(GeneratorState::current(tape_.generators));
  for (const GeneratorState& before : come_by_) tape_.sets_come_by |= before.moved_by_python();
}

void RecordedDraws::know(const at::Generator& generator, const std::vector<std::shared_ptr<Tape>>& earlier) {
  const GeneratorPart part = part_of(generator.unsafeGetGeneratorImpl());
  if (part == kHostGenerator || part == kDeviceGenerator || std::as_const(tape_.generators)[part].defined()) return;
  if (fake_ || !why_not_repeatable(generator).empty()) return;
  const auto knows = [&](const auto& tape) { return std::as_const(tape->generators)[part].defined(); };
  if (!earlier.empty() && std::none_of(earlier.begin(), earlier.end(), knows)) {
    come_by_.emplace_back().add(part, generator);
    return;
  }
  tape_.generators[part] = generator;
  // As it is now, it has been since the beginning
  for (GeneratorState& state : states_) state.add(part, generator);
}

std::string RecordedDraws::take_generator(TapeOp& op, std::size_t argument, const at::Generator& generator) {
  op.generator = static_cast<int>(argument);
  op.drawn_from = part_of(generator.unsafeGetGeneratorImpl());
  const auto is_it = [&](const auto& known) { return known.second == generator; };
  const auto known = std::find_if(tape_.generators.begin(), tape_.generators.end(), is_it);
  if (known != tape_.generators.end()) op.drawn_from = known->first;
  const bool other = op.drawn_from != kHostGenerator && op.drawn_from != kDeviceGenerator;
  if (!other || known != tape_.generators.end() || fake_) return {};
  if (const std::string why = why_not_repeatable(generator); !why.empty()) return full_name(op.handle) + ": " + why;
  if (op.section >= 0) return full_name(op.handle) + ": a random generator that an optimizer's step() makes";
  // Of no state before this draw anything is known: that it has now comes from outside
  op.drawn_from = made_generator(made_generators_++);
  if (made_generators_ >= kMostMadeGenerators) return "the step makes very many random generators";
  tape_.generators[op.drawn_from] = generator;
  return {};
}

std::optional<GeneratorState> RecordedDraws::begin(TapeOp& op) {
  const bool draws = draws_random_numbers(op.handle);
  std::optional<GeneratorState> before;
  if (draws) before = GeneratorState::current(tape_.generators);
  if (draws) op.jump = jump_here(*before);
  note_begun(op, draws || !tags_tell_draws(op.handle));
  return before;
}

void RecordedDraws::end(TapeOp& op, const GeneratorState& before) {
  op.random_order = tape_.random_ops++;
  states_.push_back(GeneratorState::current(tape_.generators));
  states_.back().share(before);
  const GeneratorState& after = states_.back();
  if (op.generator < 0 && !after.same(kDeviceGenerator, before)) op.drawn_from = kDeviceGenerator;
  op.draws_none = (drops_nothing(op) && op.drawn_from == kHostGenerator) || after.same(op.drawn_from, before);
  tape_.drawing_ops += op.draws_none ? 0 : 1;
  op.repeats = repeated_draw(op);
  draws_.push_back(TapeOpId(tape_.ops.size()));
}

void RecordedDraws::note_begun(const TapeOp& op, bool may_draw) {
  if (op.generator >= 0) {
    begun_[op.drawn_from] |= may_draw;
    return;
  }
  begun_[kHostGenerator] |= may_draw && !drops_nothing(op);
  begun_[kDeviceGenerator] |= may_draw;
  if (tags_tell_draws(op.handle)) return;
  for (const auto& [part, generator] : tape_.generators) begun_[part] = true;
}

GeneratorJump RecordedDraws::jump_here(const GeneratorState& now) const {
  GeneratorJump jump;
  for (const GeneratorPart part : now.parts()) {
    if (now.same(part, states_.back())) continue;
    const auto it = std::find_if(states_.rbegin(), states_.rend(), [&](const auto& s) { return now.same(part, s); });
    if (it != states_.rend()) {
      jump.to[part].draws = static_cast<int>(states_.rend() - it) - 1;
    } else if (!now.same_or_follows(part, states_.back())) {  // else another thread has drawn
      jump.to[part].state = std::make_shared<const GeneratorState>(now);
    }
  }
  return jump;
}

int RecordedDraws::repeated_draw(const TapeOp& op) const {
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    if (states_[i + 1].same(op.drawn_from, states_.back()) && draws_alike(tape_, tape_.op(draws_[i]), op))
      return static_cast<int>(i);
  }
  return -1;
}

// Those that the step has made are Python's own; the tape's kernels draw from others.
void RecordedDraws::part_from_made() {
  Generators own;
  for (const auto& [part, generator] : tape_.generators)
    own[part] = is_made(part) ? at::Generator(generator.unsafeGetGeneratorImpl()->clone()) : generator;
  tape_.generators = std::move(own);
  for (TapeOp& op : tape_.ops)
    if (op.generator >= 0 && is_made(op.drawn_from))
      op.arguments[static_cast<std::size_t>(op.generator)] = std::as_const(tape_.generators)[op.drawn_from];
}

}  // namespace stowage::runtime
