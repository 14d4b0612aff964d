// Matching a whole step: between tapes, and out of them.
#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "runtime/replay/executor.h"
#include "runtime/replay/matcher.h"
#include "runtime/replay/plain_run.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

void Matcher::begin_step(std::vector<std::vector<at::Tensor>> inputs, std::vector<std::shared_ptr<Tape>> others,
                         std::function<void()> before_leaving, bool copies,
                         std::vector<std::unique_ptr<NumberSource>> numbers, std::vector<bool> decided,
                         OnAllRanks on_all_ranks) {
  mode_ = Mode::kStep;
  mismatch_.clear();
  tape_ = own_;
  inputs_of_all_ = std::move(inputs);
  inputs_ = inputs_of_all_.at(0);
  others_ = std::move(others);
  before_leaving_ = std::move(before_leaving);
  on_all_ranks_ = std::move(on_all_ranks);
  copies_ = copies;
  numbers_ = std::move(numbers);
  decided_ = std::move(decided);
  refreshed_ = false;
  left_in_section_ = other_in_step_ = false;
  left_by_ = {-1, ""};
  read_shell_ = told_in_vain_ = grad_mode_differed_ = budget_watches_ = false;
  watched_.clear();
  arrays_.clear();
  chosen_ = -1;
  cursor_ = 0;
  end_ = tape_->ops.size();
  forget_passing();
  add_externals(*tape_, passing_);
  add_inputs(*tape_, passing_);
  know_generators();
  python_generator_.assign(1, generators_now());
  generator_at_end_.reset();
  true_generator_.clear();
  marked_ = {};
  draws_.clear();
  told_states_.clear();
  set_aside_.clear();
  ahead_.clear();
  decides_otherwise_ = decides_anew_ = false;
  told_otherwise_.clear();
  altered_.clear();
  arrays_taken_back_ = false;
}

void Matcher::start() {
  intercept_ = std::make_unique<Intercept>(*this);
  listener_before_ = listen_to_generator_states(this);
}

void Matcher::end_step() {
  if (mode_ == Mode::kStep && told_in_vain_) throw std::runtime_error(kCaughtText);
  if (mode_ == Mode::kStep && arrays_.written()) return leave("the step writes into its NumPy array");
  if (mode_ == Mode::kStep && cursor_ != end_) {
    const auto ends_here = [&](std::size_t i) { return others_[i]->ops.size() == cursor_ && change_to(i); };
    bool found = false;
    for (std::size_t i = 0; i < others_.size() && !found; ++i) found = ends_here(i);
    other_in_step_ |= found;
    if (!found) leave("the step ends where " + name_with_line(*tape_, tape_->ops[cursor_]) + " was recorded");
  }
  if (mode_ == Mode::kStep && !jumps_alike(tape_->final_jump))
    leave("the step leaves the random generator otherwise than was recorded");
  if (mode_ != Mode::kStep) return;
  refreshed_ |= take_seed(tape_->final_jump) && tape_ == own_;
  generator_at_end_ = generators_now();
  numbers().end();
  generator_back();
}

bool Matcher::returns(const std::vector<at::Tensor>& tensors) {
  if (tensors.size() + tape_->kept != tape_->returned.size()) return false;
  std::vector<bool> expected(tape_->blocks.size(), false);
  for (std::size_t i = 0; i < tape_->kept; ++i) expected[kept_block(i).index()] = true;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!same_tensor(tape_->returned[i], tensors[i], false)) return false;
    if (tape_->returned[i].valid() && !take_place(tape_->returned[i], tensors[i])) return false;
    if (tape_->returned[i].valid()) expected[tape_->slots[tape_->returned[i].index()].block.index()] = true;
  }
  for (std::size_t b = 0; b < shells_.size(); ++b) {
    if (!expected[b] && is_held(shells_[b])) return false;
  }
  return true;
}

bool Matcher::repeatable_since(std::int64_t matched) const {
  const auto repeatable = [](const TapeOp& op) { return !op.draws() && !op.handle.schema().is_mutable(); };
  const auto at = [&](std::size_t op) { return tape_->ops.begin() + static_cast<std::ptrdiff_t>(op); };
  return std::all_of(at(static_cast<std::size_t>(matched)), at(cursor_), repeatable);
}

void Matcher::stop() {
  intercept_.reset();
  if (listener_before_) listen_to_generator_states(*listener_before_);
  listener_before_.reset();
  if (mode_ == Mode::kStep) generator_back();
  if (mode_ == Mode::kLeft) unmark_generator();
}

void Matcher::abandon_step(const std::string& error) {
  read_shell_ = mode_ == Mode::kStep && error.find(kShellText) != std::string::npos;
  if (!read_shell_ && !told_in_vain_) leave("the step has raised an exception");
}

void Matcher::leave(const std::string& why) {
  if (mode_ != Mode::kStep) return;
  mismatch_ = why;
  left_in_section_ = cursor_ < end_ && tape_->ops[cursor_].section >= 0;
  if (arrays_taken_back_) {
    take_back_numbers();
    arrays_.taken_back();
  }
  const ArraysMade::Written written = arrays_.take_out();
  mode_ = Mode::kLeft;
  take_back_numbers();
  const GeneratorState python = generator_at_end_ ? *generator_at_end_ : generators_now();
  generator_back();  // whoever takes the call back from here on finds no mark
  if (before_leaving_) before_leaving_();
  budget_watches_ = thread_attached();
  {
    const PastModes past_modes(*tape_);
    run_plainly_and_follow(python);
  }
  written.put_in();
  join_arrays();
}

// To where it was when the step began, where its ops are still to run.
void Matcher::generator_back() const {
  python_generator_[0].put_back(marked_);
  made_as_found_.restore();
}

// Of a call, before Python has made any.
void Matcher::know_generators() {
  generators_ = {};
  made_as_found_ = {};
  made_ = 0;
  const auto know = [&](const Tape& tape) {
    for (const auto& [part, generator] : tape.generators)
      if (!is_made(part)) generators_[part] = generator;
  };
  know(*own_);
  for (const auto& other : others_) know(*other);
}

void Matcher::take_generators(const torch::jit::Stack& stack, std::size_t count) {
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isGenerator()) continue;
    const at::Generator generator = stack[i].toGenerator();
    if (part_of_generator(generator) != GeneratorPart{} || !why_not_repeatable(generator).empty()) continue;
    const GeneratorPart part = made_generator(made_++);
    generators_[part] = generator;
    made_as_found_.add(part, generator);
  }
}

// None for one that is not known.
GeneratorPart Matcher::part_of_generator(const at::Generator& generator) const {
  const GeneratorPart part = part_of(generator.unsafeGetGeneratorImpl());
  if (part == kHostGenerator || part == kDeviceGenerator) return part;
  const auto is_it = [&](const auto& known) { return known.second == generator; };
  const auto known = std::find_if(generators_.begin(), generators_.end(), is_it);
  return known != generators_.end() ? known->first : GeneratorPart{};
}

Generators Matcher::made_generators() const {
  Generators made;
  for (const auto& [part, generator] : generators_)
    if (is_made(part)) made[part] = generator;
  return made;
}

// What has been matched draws first; then the generator is where Python has set it since the last draw.
void Matcher::run_plainly_and_follow(const GeneratorState& python) {
  PlainRun run(*tape_, inputs_);
  run_up_to(run, cursor_);
  true_generator_.assign(1, python_generator_[0]);
  const auto jumps = [&](GeneratorPart part) {
    const auto at_op = [&](const TapeOp& op) { return op.jump.to[part].moves(); };
    const bool at_end = cursor_ == tape_->ops.size() && std::as_const(tape_->final_jump.to)[part].moves();
    return at_end || std::any_of(tape_->ops.begin(), tape_->ops.begin() + static_cast<std::ptrdiff_t>(cursor_), at_op);
  };
  for (std::size_t draws = 1; draws < python_generator_.size(); ++draws)
    true_generator_.push_back(run.after_draws(draws));
  for (const GeneratorPart part : python.parts())
    if (marked_[part] || jumps(part) || !python.same_or_follows(part, python_generator_[0])) python.restore(part);
  unmark_generator();
  unmark_what_python_has([&](std::size_t draws) -> const GeneratorState& { return true_generator_[draws]; });
  told_states_.clear();
  set_aside_.clear();
}

// ---- Marks that Python has

void Matcher::on_state_told(const at::Generator& generator, const at::Tensor& state) {
  if (mode_ != Mode::kStep || telling_ || !state.is_cpu()) return;
  const auto [draws, of] = mark_in(generator);
  if (draws == 0) return;
  const std::size_t bytes = state.storage().nbytes();
  auto mark = std::make_shared<at::DataPtr>(become_shell(state.storage()));
  told_states_.push_back({watched(state.storage()), of, draws, std::move(mark), bytes});
}

// Only while a generator reads it, the mark is there.
void Matcher::on_state_read(const at::Tensor& state, bool begins) {
  const ToldState* const told = told_state(state);
  if (told == nullptr) return;
  if (begins) {
    fill_shell(state.storage(), std::move(*told->mark), told->bytes);
  } else {
    *told->mark = become_shell(state.storage());
  }
}

void Matcher::on_pickled(const at::Generator& generator) {
  if (mode_ == Mode::kStep && !telling_ && mark_in(generator).first > 0) leave("the step pickles a random generator");
}

void Matcher::on_set(const at::Generator& generator) {
  if (mode_ != Mode::kStep || telling_ || part_of_generator(generator) != GeneratorPart{}) return;
  const bool known = std::find(set_aside_.begin(), set_aside_.end(), generator) != set_aside_.end();
  if (!known && why_not_repeatable(generator).empty()) set_aside_.push_back(generator);
}

std::pair<std::size_t, GeneratorPart> Matcher::mark_in(const at::Generator& generator) const {
  const GeneratorPart known = part_of_generator(generator);
  if (known != GeneratorPart{}) return mark_of(generators_now(), known);
  if (!why_not_repeatable(generator).empty()) return {};
  const GeneratorPart part = part_of(generator.unsafeGetGeneratorImpl());
  GeneratorState now;
  now.add(part, generator);
  return mark_of(now, part);
}

std::vector<MarkedGenerator> Matcher::marked_generators() const {
  std::vector<MarkedGenerator> marked;
  for (const at::Generator& generator : set_aside_) {
    if (part_of_generator(generator) != GeneratorPart{}) continue;  // drawn from since
    if (const auto [draws, of] = mark_in(generator); draws > 0) marked.push_back({generator, of, draws});
  }
  return marked;
}

// Of a tensor over the memory of one that Python has, which is still a shell.
const ToldState* Matcher::told_state(const at::Tensor& tensor) const {
  if (told_states_.empty() || !tensor.defined() || !tensor.has_storage()) return nullptr;
  const auto is_it = [&](const ToldState& told) {
    return is_held(told.shell) && told.shell._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl();
  };
  const auto it = std::find_if(told_states_.begin(), told_states_.end(), is_it);
  return it != told_states_.end() ? &*it : nullptr;
}

bool Matcher::looks_at_told_state(const torch::jit::Stack& stack, std::size_t count) const {
  if (told_states_.empty()) return false;
  return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end(), [&](const c10::IValue& value) {
    if (value.isTensor()) return told_state(value.toTensor()) != nullptr;
    if (!value.isTensorList()) return false;
    const std::vector<at::Tensor> all = value.toTensorVector();
    return std::any_of(all.begin(), all.end(), [&](const at::Tensor& tensor) { return told_state(tensor) != nullptr; });
  });
}

void Matcher::unmark_what_python_has(const std::function<const GeneratorState&(std::size_t)>& after_draws) const {
  for (const MarkedGenerator& marked : marked_generators()) marked.take(after_draws(marked.draws));
  for (const ToldState& told : told_states_) told.take(after_draws(told.draws));
}

void ToldState::take(const GeneratorState& true_state) const {
  if (mark->get() == nullptr) return;
  true_state.write_to(part, mark->get(), bytes);
  if (const auto held = shell.lock()) fill_shell(c10::Storage(held), std::move(*mark), bytes);
}

void MarkedGenerator::take(const GeneratorState& true_state) const {
  Generators into;
  into[part] = generator;
  true_state.restore_into(part, into);
}

bool Matcher::keeps_lost_states() const {
  if (!under_way()) return false;
  const auto kept = [](const ToldState& told) { return is_held(told.shell); };
  return std::any_of(told_states_.begin(), told_states_.end(), kept) || !marked_generators().empty();
}

void Handover::begin(Executor& executor) const {
  for (const ToldState& each : told) executor.keep_state(each.draws);
  for (const MarkedGenerator& each : marked) executor.keep_state(each.draws);
}

// After leaving: Python may set the generator to a mark that it has read before.
void Matcher::unmark_generator() {
  if (true_generator_.empty()) return;
  const GeneratorState now = generators_now();
  for (const GeneratorPart part : now.parts())
    if (const auto [draws, of] = mark_of(now, part); draws > 0) true_generator_[draws].restore_as(of, now, part);
}

std::pair<std::size_t, GeneratorPart> Matcher::mark_of(const GeneratorState& now, GeneratorPart part) const {
  for (std::size_t draws = 1; draws < python_generator_.size(); ++draws) {
    for (const auto& [marked, is] : marked_) {
      const GeneratorState& then = python_generator_[draws];
      const bool mark = is && !then.same_as(marked, python_generator_[draws - 1], marked);
      if (mark && now.same_as(part, then, marked)) return {draws, marked};
    }
  }
  return {0, part};
}

bool Matcher::jumps_alike(const GeneratorJump& recorded) const {
  const GeneratorState now = generators_now();
  const GeneratorState& last = python_generator_.back();
  const auto has = [&](const auto& jump) { return jump.first == kDeviceGenerator || now.has(jump.first); };
  if (!std::all_of(recorded.to.begin(), recorded.to.end(), has)) return false;
  const std::vector<GeneratorPart> parts = now.parts();
  return std::all_of(parts.begin(), parts.end(), [&](GeneratorPart part) {
    const GeneratorJump::OfPart& jump = recorded.to[part];
    if (jump.state && is_made(part)) return mark_of(now, part).first == 0;
    if (jump.state)
      return now.same(part, *jump.state) || (now.is_seed(part) && jump.state->is_seed(part) && !now.same(part, last));
    const GeneratorState& expected = jump.draws >= 0 ? python_generator_[static_cast<std::size_t>(jump.draws)] : last;
    return now.same_or_follows(part, expected);  // another thread has drawn
  });
}

bool Matcher::take_seed(GeneratorJump& recorded) {
  if (!recorded.moves()) return false;
  const GeneratorState now = generators_now();
  std::vector<GeneratorPart> other;
  for (const auto& [part, jump] : recorded.to)
    if (jump.state && !now.same(part, *jump.state)) other.push_back(part);
  for (const GeneratorPart part : other) recorded.to[part].state = std::make_shared<const GeneratorState>(now);
  return !other.empty();
}

void Matcher::mark_draw(TapeOp& op, bool with_other_numbers) {
  const bool again =
      op.repeats >= 0 && draws_alike(*tape_, tape_->op(draws_[static_cast<std::size_t>(op.repeats)]), op);
  draws_.emplace_back(cursor_ - 1);
  if (op.draws_none && !with_other_numbers) return python_generator_.push_back(generators_now());
  if (op.draws_none) {  // it may draw now
    op.draws_none = false;
    ++tape_->drawing_ops;
    if (op.generator < 0 && !tape_->device.is_cpu()) op.drawn_from = kDeviceGenerator;
    tape_->moved[op.drawn_from] = true;
  }
  marked_[op.drawn_from] = true;
  python_generator_.push_back(
      generators_now().marked(again ? static_cast<std::size_t>(op.repeats) : draws_.size() - 1, op.drawn_from));
  python_generator_.back().restore(op.drawn_from);
}

void Matcher::run_plainly() {
  PlainRun run(*tape_, inputs_);
  tile_error_ = {};
  if (tiles_ != nullptr && !tiles_->empty()) run.replace(*std::exchange(tiles_, nullptr), tile_error_);
  run_up_to(run, tape_->ops.size());
  const GeneratorState left = GeneratorState::current(tape_->generators);
  for (const auto& [part, generator] : made_generators()) left.restore_into(part, generators_);
  unmark_what_python_has([&](std::size_t draws) -> const GeneratorState& { return run.after_draws(draws); });
  join_arrays();
}

// An eager budget knows its tensors by their memory.
void Matcher::join_arrays() {
  if (!copies_) arrays_.join();
  arrays_.clear();
}

void Matcher::run_up_to(PlainRun& run, std::size_t to) {
  const bool traces = looks_ || !watched_.empty();
  traced_.assign(traces ? tape_->ops.size() : 0, {});
  if (traces) run.trace(traced_, looks_ ? std::vector<bool>() : watched_);
  run.run(static_cast<std::int32_t>(to), shells_, copies_);
  ++plain_runs_;
}

void Matcher::watch(const std::vector<TapeOpId>& ops, const std::vector<Tiles>& tiles) {
  tiles_ = &tiles;
  watched_.assign(ops.empty() ? 0 : tape_->ops.size(), false);
  for (const TapeOpId op : ops) watched_[op.index()] = true;
}

// What is within a chain of rows, the plan does not make.
std::string Matcher::first_difference(const std::vector<std::vector<Digest>>& planned, bool watched) const {
  for (std::size_t i = 0; i < std::min(planned.size(), traced_.size()); ++i) {
    if (watched ? i >= watched_.size() || !watched_[i] : planned[i].empty()) continue;
    if (planned[i] != traced_[i]) return name_with_line(*tape_, tape_->ops[i]);
  }
  return {};
}

SlotId Matcher::kept_slot(std::size_t i) const { return tape_->returned[tape_->returned.size() - tape_->kept + i]; }

BlockId Matcher::kept_block(std::size_t i) const { return tape_->slots[kept_slot(i).index()].block; }

void Handover::take_results(Executor& executor) const {
  for (const Executor::Result& result : executor.results()) {
    const std::optional<Shell>& shell = shells[result.block.index()];
    if (!is_held(shell)) continue;
    const c10::Storage storage(shell->lock());
    // Python has made it, with its content
    if (storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr) continue;
    c10::StorageImpl* content = result.storage.unsafeGetStorageImpl();
    fill_shell(storage, std::move(content->_mutable_data_ptr_no_checks()), content->nbytes());
  }
  executor.drop_results();
  const GeneratorState left = executor.generators_now();
  for (const auto& [part, generator] : generators) left.restore_into(part, generators);
  const auto hand_out = [&](const auto& each) {
    if (const std::optional<GeneratorState>& state = executor.kept_state(each.draws)) each.take(*state);
  };
  std::for_each(marked.begin(), marked.end(), hand_out);
  std::for_each(told.begin(), told.end(), hand_out);
}

bool Matcher::kept_agree(const Executor& executor) const {
  for (const Executor::Result& result : executor.results()) {
    const std::optional<Shell>& shell = shells_[result.block.index()];
    if (!result.kept || !is_held(shell)) continue;
    const c10::Storage now(shell->lock());
    if (now.nbytes() < result.storage.nbytes()) return false;
    const auto agrees = [&](SlotId slot) {
      const TensorMeta& meta = tape_->slots[slot.index()].meta;
      return digest(make_tensor(now, meta)) == digest(make_tensor(result.storage, meta));
    };
    for (std::size_t i = 0; i < tape_->kept; ++i)
      if (kept_block(i) == result.block && !agrees(kept_slot(i))) return false;
    if (!agrees(tape_->blocks[result.block.index()].owner)) return false;
  }
  return true;
}

// The generator stays as Python has it.
void Matcher::take_back_numbers() {
  const GeneratorState python = generators_now();
  for (const auto& source : numbers_) source->take_back();
  OfGeneratorParts<bool> moved = own_->moved;
  for (const auto& other : others_)
    for (const auto& [part, moves] : other->moved) moved[part] |= moves;
  python.restore(moved);
  arrays_taken_back_ |= !arrays_.empty() && arrays_.taken_back();
}

void Matcher::forget_step() {
  intercept_.reset();
  take_back_numbers();
  numbers_.clear();
  mode_ = Mode::kSection;
  tape_ = own_;
  inputs_.clear();
  inputs_of_all_.clear();
  others_.clear();
  before_leaving_ = nullptr;
  on_all_ranks_ = nullptr;
  generators_ = {};
  made_as_found_ = {};
  forget_passing();
}

bool Matcher::try_others(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack) {
  return change_where([&] { return why_not(op, keys, stack).empty() && in_its_grad_mode(); });
}

bool Matcher::change_where(const std::function<bool()>& fits) {
  if (mode_ != Mode::kStep) return false;
  const auto before = std::make_tuple(tape_, inputs_, passing_, shells_, taken_, other_content_, other_numbers_,
                                      places_, moves_, changes_, end_, chosen_);
  const bool in_section = cursor_ < end_ && tape_->ops[cursor_].section >= 0;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    if (!change_to(i)) continue;
    if (fits()) {
      other_in_step_ |= !in_section;
      return true;
    }
    std::tie(tape_, inputs_, passing_, shells_, taken_, other_content_, other_numbers_, places_, moves_, changes_, end_,
             chosen_) = before;
  }
  return false;
}

// Gradients come after the arguments, of each recording those that it found: one place may be two tensors'.
bool Matcher::same_inputs(const Tape& next, const std::vector<at::Tensor>& inputs,
                          const std::vector<BlockId>& now_called) const {
  const auto storage = [](const Block& block, const std::vector<at::Tensor>& of) -> const c10::StorageImpl* {
    const auto i = static_cast<std::size_t>(block.input);
    return i < of.size() && of[i].defined() ? of[i].storage().unsafeGetStorageImpl() : nullptr;
  };
  for (std::size_t b = 0; b < now_called.size(); ++b) {
    if (!now_called[b].valid() || tape_->blocks[b].input < 0) continue;
    if (storage(tape_->blocks[b], inputs_) != storage(next.blocks[now_called[b].index()], inputs)) return false;
  }
  return true;
}

namespace {

bool same_numbers(const TapeOp& a, const TapeOp& b) {
  for (std::size_t k = 0; k < a.arguments.size(); ++k) {
    if (a.tensors[k].kind != TensorRef::Kind::kNone || static_cast<int>(k) == a.generator) continue;
    if (!same_value(a.arguments[k], b.arguments[k])) return false;
  }
  return true;
}

// What has been told of a number that follows from Python's own.
void hand_over_latest(const Tape& from, Tape& to, std::size_t ops) {
  for (DataGuard& guard : to.data_guards) {
    if (guard.op < 0 || static_cast<std::size_t>(guard.op) >= ops) continue;
    const auto of = std::ranges::find_if(from.data_guards, [&](const DataGuard& g) { return g.op == guard.op; });
    if (of == from.data_guards.end()) continue;
    guard.latest = of->latest;
    guard.stale = of->stale;
  }
}

}  // namespace

// Goes on with another tape, when it begins with what has been matched so far.
bool Matcher::change_to(std::size_t other) {
  const std::shared_ptr<Tape>& next = others_[other];
  std::vector<BlockId> now_called(tape_->blocks.size());
  if (next == tape_ || !same_beginning(*tape_, *next, cursor_, now_called)) return false;
  if (!same_inputs(*next, inputs_of_all_.at(other + 1), now_called)) return false;
  std::vector<PlaceNow> places(next->slots.size(), PlaceNow::kUnseen);
  std::vector<bool> moves(next->blocks.size(), false);
  if (!hand_over_places(cursor_, *next, places, moves)) return false;
  take_back_numbers();
  // It has what another call gave; what follows from that is not known of this one
  other_numbers_.resize(next->ops.size());
  bool altered = false;
  for (std::size_t i = 0; i < cursor_; ++i) {
    const int generator = next->ops[i].generator;  // each tape has its own
    const c10::IValue own =
        generator >= 0 ? next->ops[i].arguments[static_cast<std::size_t>(generator)] : c10::IValue();
    if (!same_numbers(tape_->ops[i], next->ops[i])) other_numbers_[i] = altered = true;
    next->ops[i].arguments = tape_->ops[i].arguments;
    if (generator >= 0) next->ops[i].arguments[static_cast<std::size_t>(generator)] = own;
    next->ops[i].jump = tape_->ops[i].jump;
  }
  hand_over_latest(*tape_, *next, cursor_);
  std::vector<bool> other_content(next->blocks.size(), false);
  for (std::size_t b = 0; b < now_called.size(); ++b) {
    if (!now_called[b].valid() || !tape_->blocks[b].of_python) continue;
    const Block& constant = next->blocks[now_called[b].index()];
    if (!constant.of_python) continue;
    if (same_bytes(tape_->blocks[b].tensor.storage(), constant.tensor.storage())) continue;
    other_content[now_called[b].index()] = altered = true;
    copy_bytes(tape_->blocks[b].tensor.storage(), constant.tensor.storage());
  }
  inputs_ = inputs_of_all_.at(other + 1);
  Storages passing;
  add_externals(*next, passing);
  add_inputs(*next, passing);
  for (const auto& [storage, parts] : passing_) {
    const BlockId block = now_called[parts[0].block.index()];
    if (block.valid() && parts.size() == 1 && passing.find(storage) == passing.end())
      passing[storage] = {{block, parts[0].start_bytes, parts[0].end_bytes}};
  }
  changes_ |= altered;
  if (altered) altered_.insert(static_cast<int>(other));
  if (altered) note_stale(*next, cursor_);
  std::vector<bool> taken(next->blocks.size(), false);
  for (std::size_t b = 0; b < taken_.size(); ++b) {
    if (taken_[b] && now_called[b].valid()) taken[now_called[b].index()] = true;
    if (other_content_[b] && now_called[b].valid()) other_content[now_called[b].index()] = true;
  }
  Shells shells(next->blocks.size());
  for (std::size_t b = 0; b < shells_.size(); ++b) {
    if (shells_[b] && now_called[b].valid()) shells[now_called[b].index()] = shells_[b];
  }
  tape_ = next;
  end_ = next->ops.size();
  passing_ = std::move(passing);
  shells_ = std::move(shells);
  taken_ = std::move(taken);
  other_content_ = std::move(other_content);
  places_ = std::move(places);
  moves_ = std::move(moves);
  chosen_ = static_cast<int>(other);
  return true;
}

}  // namespace stowage::runtime
