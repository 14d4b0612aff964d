// Match mode: the user's own Python runs again, but its kernels do not.
//
//   tape      … mm(x, w) -> y   mul(y, 0.5)   item(step)   lerp_(m, g, 0.1)   addcdiv_(p, m, d, -lr/c1) …
//   Python        compared        compared      executed       compared           compared: its new scalar goes onto the tape
//
// Each op must be the next one of the tape, on the same tensors; its Python numbers replace the recorded ones. What the
// op would return is a shell: a tensor with shape and autograd history, without memory. Only the ops that decide
// numbers (TapeOp::Role::kHost: an optimizer's step counters) really run, and views, which move no bytes. Tensors are
// told by their storages.
//
// A section: the Python of optimizer.step(). Numbers there change from step to step (learning rate, bias correction).
// Any difference in structure ends the match by an exception; the caller takes back what the host ops did, and runs the
// step anew.
//
// A step: all of the user's function, forward, backward and optimizer. Where its Python leaves the tape, another
// tape is tried that begins alike. Where none is left, the ops matched so far are run plainly (PlainRun), the shells
// get their content, and the rest of the function runs as eager would: the Python has run once, and nothing it did is
// lost.
//
//   Python    op 0   op 1   op 2   op 7?                      op 8  ...
//             match  match  match  differs: run 0 1 2, then 7  8    ...   eagerly
//
// Where Python asks for a number that the step itself makes, the ops before it run (numbers.h).
#pragma once

#include <c10/util/flat_hash_map.h>

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/bytes.h"
#include "runtime/record/tape.h"
#include "runtime/replay/arrays.h"
#include "runtime/replay/numbers.h"
#include "runtime/replay/tiles.h"
#include "runtime/torch/generator.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {

inline constexpr const char* kOtherForm = " gives a result of another shape than was recorded";
inline constexpr const char* kCaughtText = "stowage: Python has caught what a kernel of this step has raised";

// A state of a generator that Python has taken out of it after so many draws of the step, where that is a mark. Python
// has a shell of it: nothing but a generator may read a mark.
struct ToldState {
  Shell shell;
  GeneratorPart part;
  std::size_t draws = 0;
  std::shared_ptr<at::DataPtr> mark;  // the memory of the shell, which goes back with the true state in it
  std::size_t bytes = 0;

  void take(const GeneratorState& true_state) const;
};

// A generator that the step does not draw from, and that Python has set to a mark of `part`.
struct MarkedGenerator {
  at::Generator generator;
  GeneratorPart part;
  std::size_t draws = 0;

  void take(const GeneratorState& true_state) const;
};

// What Python holds of a step that it has run over shells.
struct Handover {
  Shells shells;  // by block

  // As Python has them: of the step's generators, those that it makes
  Generators generators;
  std::vector<ToldState> told;
  std::vector<MarkedGenerator> marked;

  // Before the step is executed.
  void begin(Executor& executor) const;
  // After the step was executed: what it returns and what Python keeps gets its content, and the generators that Python
  // has made are where the executed ones are.
  void take_results(Executor& executor) const;
};

// While alive, kernels that run in the middle of the step's Python are not seen by the dispatch mode by which a step is
// split. There is no other.
class PastModes {
 public:
  explicit PastModes(const Tape& tape) {
    if (tape.of_parts)
      guard_.emplace(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  }

 private:
  std::optional<c10::impl::ExcludeDispatchKeyGuard> guard_;
};

// Of a step that is split over ranks: asked before kernels run for a number, on each rank. `under_way`: some have run here.
// Answers whether that is so on all.
using OnAllRanks = std::function<bool(bool under_way)>;

class Matcher final : public Interceptor, private GeneratorStateListener {
 public:
  explicit Matcher(std::shared_ptr<Tape> tape);
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  [[nodiscard]] const Tape& own_tape() const { return *own_; }

  // ---- Sections

  // Registers a tensor that Python will show as .grad: it becomes a shell of the slot.
  void adopt_shell(const at::Tensor& tensor, SlotId slot);

  // The inputs of the call, which optimizers may see too (gradients that came from outside); {} lets go of them.
  void bind(std::vector<at::Tensor> inputs) { inputs_ = std::move(inputs); }

  // Matches the ops of one section while alive on this thread.
  void begin(int section);
  // Returns "" when all of the section's ops came, else what differed.
  std::string end();

  // ---- Steps

  // `others`: tapes of the same function that may serve where this one does not. `before_leaving` runs once if the
  // Python leaves the tape, before anything is computed. `copies`: as for PlainRun::run. `numbers`, `decided` (is
  // what its guards ask for as on the tape?), `inputs`: one for each tape, this one's first. `on_all_ranks`: none in a step
  // of one process.
  void begin_step(std::vector<std::vector<at::Tensor>> inputs, std::vector<std::shared_ptr<Tape>> others,
                  std::function<void()> before_leaving, bool copies, std::vector<std::unique_ptr<NumberSource>> numbers,
                  std::vector<bool> decided, OnAllRanks on_all_ranks);
  // Between them the function runs.
  void start();
  // The generator is as before it, unless the step has left the tapes.
  void stop();
  // After the function has returned, before stop(). Then difference() is "" when all ops of a tape came; else it says
  // what differed, and the step has happened eagerly.
  void end_step();
  [[nodiscard]] const std::string& difference() const { return mismatch_; }
  // After the function has raised: what it did before that happens now, unless it only failed because it read a shell,
  // or because of a kernel that a number needs.
  void abandon_step(const std::string& error);
  [[nodiscard]] bool read_shell() const { return read_shell_; }
  // How many steps, or beginnings of them, have been run plainly, and stay.
  [[nodiscard]] std::int64_t plain_runs() const { return plain_runs_; }
  // Of the step that matched: -1 this matcher's own tape, else the position among `others`.
  [[nodiscard]] int chosen() const { return chosen_; }
  // Has it left the tapes?
  [[nodiscard]] bool left() const { return mode_ == Mode::kLeft; }
  // How many ops of the step have been matched.
  [[nodiscard]] std::int64_t matched() const { return static_cast<std::int64_t>(cursor_); }
  // Could the ops since then be asked for once more, and give the same? None of them writes or draws.
  [[nodiscard]] bool repeatable_since(std::int64_t matched) const;
  // Of a step that has not left: would what has been matched so far write it? Its memory does not show that yet.
  [[nodiscard]] bool is_behind(const at::Tensor& tensor) const { return has_access(tensor, true); }
  // And that: would it read or write it?
  [[nodiscard]] bool touches(const at::Tensor& tensor) const { return has_access(tensor, false); }
  // Did the recorded step still hold, at its end, the array that the latest op is for?
  [[nodiscard]] bool array_stays() const { return cursor_ > 0 && tape_->ops[cursor_ - 1].array_until < 0; }
  // Python is given a NumPy array over `memory`, which is the tensor's own or a copy (arrays.h); the answer is the array's
  // number. Then it is gone. An op that would write there, and Python that has, end the matching:
  // what is matched by then happens, without what Python has written, which follows.
  std::int64_t array_made(const at::Tensor& memory, const at::Tensor& tensor, bool is_shell) {
    return arrays_.add(memory, tensor, is_shell);
  }
  void array_gone(std::int64_t number) { arrays_.gone(number); }
  // The kernels of the step have run.
  void join_arrays();
  // Of the other recordings, those that have taken numbers of this call, or constants, though it may not have gone on as
  // they do.
  [[nodiscard]] const std::set<int>& altered() const { return altered_; }
  // Numbers known before the step are others than was recorded, and those of the call before.
  [[nodiscard]] bool decides_as_before() const { return decides_otherwise_ && !decides_anew_; }
  // Ops that have told Python other numbers, which the step makes, than when it was recorded.
  [[nodiscard]] const std::vector<TapeOpId>& told_otherwise() const { return told_otherwise_; }
  // At which op it left the tape, and by which operator; where it was by none, -1.
  [[nodiscard]] const std::pair<std::int64_t, std::string>& left_by() const { return left_by_; }
  // Where it left the tape, an optimizer was at work.
  [[nodiscard]] bool left_in_section() const { return left_in_section_; }
  // Went on as another recording, elsewhere than in an optimizer's step.
  [[nodiscard]] bool other_in_step() const { return other_in_step_; }
  // It was given other numbers than the tape held, outside of the optimizers.
  [[nodiscard]] bool refreshed() const { return refreshed_; }
  // Of the step that matched: are these the tensors that the recorded one returned, and does nothing else hold a shell?
  [[nodiscard]] bool returns(const std::vector<at::Tensor>& tensors);
  // Kernels of it have run, for numbers.
  [[nodiscard]] bool under_way() const { return numbers_.at(static_cast<std::size_t>(chosen_ + 1))->under_way(); }
  // What has run goes back, as it has on another rank: it will run anew.
  void start_over() { take_back_numbers(); }
  // Runs all of the matched step plainly; the shells get their content.
  void run_plainly();
  // run_plainly() notes what each op makes, to be compared with what it made in the plan's last run: the first that
  // differs, in the order of the program, "" for none.
  void look_closely(bool on) { looks_ = on; }
  // In the next plain run, these ops' results are digested, whoever looks; and what these tiles make counts. They must
  // stay until then.
  void watch(const std::vector<TapeOpId>& ops, const std::vector<Tiles>& tiles);
  // Of the tiles in the latest plain run.
  [[nodiscard]] const TileError& tile_error() const { return tile_error_; }
  // `watched`: among these alone.
  [[nodiscard]] std::string first_difference(const std::vector<std::vector<Digest>>& planned, bool watched) const;
  // Where the results go; still known when the step is forgotten.
  [[nodiscard]] Handover handover() const {
    return Handover{shells_, made_generators(), told_states_, marked_generators()};
  }
  // After run_plainly(): is what Python keeps the same as in the rehearsal?
  [[nodiscard]] bool kept_agree(const Executor& executor) const;
  // Does Python keep a state of a generator that is not known, and that the rest of the planned run would not tell?
  [[nodiscard]] bool keeps_lost_states() const;
  // Forgets the shells.
  void forget_step();
  // From now on the step runs eagerly, with `why` as what differed; for what Python does beside the dispatcher.
  void leave(const std::string& why);

  // ---- Both

  // Residents that host ops write: not touched by the executor, but part of the step's state.
  [[nodiscard]] std::vector<c10::Storage> host_written(const std::vector<at::Tensor>& inputs) const;

  // Puts back what the host ops have written since remember().
  void remember(const std::vector<at::Tensor>& inputs);
  void roll_back();

  void on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;
  [[nodiscard]] Level level() const override { return tape_->below_autograd ? Level::kBelow : Level::kAbove; }
  // In a section there are none: an optimizer has plain parts.
  [[nodiscard]] bool looks_inside_subclasses() const override { return tape_->of_parts && mode_ != Mode::kSection; }
  void cannot_replay(const std::string& why) override { leave(why); }

 private:
  struct Part {
    BlockId block;
    std::int64_t start_bytes = 0;
    std::int64_t end_bytes = 0;
  };
  using Storages = ska::flat_hash_map<const c10::StorageImpl*, std::vector<Part>>;
  struct Place {
    BlockId block;
    std::int64_t start_bytes = 0;
  };
  enum class Mode : std::uint8_t { kSection, kStep, kLeft };
  enum class PlaceNow : std::uint8_t { kUnseen, kSame, kOther };  // than in the call before

  void add_externals(const Tape& tape, Storages& storages) const;
  void add_inputs(const Tape& tape, Storages& storages) const;
  void forget_passing();
  // Why the op is not the next one on the tape, or "".
  std::string why_not(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack) const;
  // Has Python written into memory of its own, since a tensor was lifted over it?
  [[nodiscard]] bool shared_as_lifted(const TapeOp& op, const torch::jit::Stack& stack) const;
  std::string why_not_argument(const TapeOp& op, std::size_t i, const c10::IValue& value) const;
  // Where gradients of gradients are asked for now and then, this is all that tells two backward passes apart.
  [[nodiscard]] bool in_its_grad_mode() const;
  bool try_others(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack);
  void run_where_left(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void run_left(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void note_replaced(const c10::OperatorHandle& handle, const torch::jit::Stack& stack);
  void note_scattered(const TapeOp& op);
  // Views (matcher_views.cpp)
  [[nodiscard]] bool views_may_move(const TapeOp& op) const;
  bool gives_such_views(const TapeOp& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack) const;
  bool is_such_view(SlotId slot, const at::Tensor& tensor) const;
  [[nodiscard]] bool lies_elsewhere(SlotId slot, const at::Tensor& tensor, const Place& place) const;
  bool take_place(SlotId slot, const at::Tensor& tensor);
  bool take_places(const TapeOp& op, const torch::jit::Stack& results);
  // Of the first `ops` operations, to another tape that begins with them. False where it would have one tensor at two
  // places.
  [[nodiscard]] bool hand_over_places(std::size_t ops, Tape& next, std::vector<PlaceNow>& places,
                                      std::vector<bool>& moves) const;
  void has_moved(SlotId slot);
  bool change_to(std::size_t other);
  [[nodiscard]] bool same_inputs(const Tape& next, const std::vector<at::Tensor>& inputs,
                                 const std::vector<BlockId>& now_called) const;
  // To one that goes on with `op`, or where `fits` is true.
  bool change_where(const std::function<bool()>& fits);
  // Onto the tape, with the places of views. `changed`: they are others than before. False where one tensor would be at
  // two places.
  void take_sparse(TapeOp& op, std::size_t i, const at::Tensor& given);
  bool take_numbers(TapeOp& op, const torch::jit::Stack& stack, bool& changed);
  bool take_content(const at::Tensor& from, const Block& constant, const TapeOp& op);
  bool take_part(const at::Tensor& from, BlockId block);
  [[nodiscard]] bool a_user_has_run(BlockId constant);
  torch::jit::Stack tell(TapeOpId op, torch::jit::Stack* stack);
  bool wait_for_form(TapeOpId id, torch::jit::Stack* stack);
  void note_changed(TapeOpId op);
  [[nodiscard]] bool differs_in(const DataGuard& guard) const;
  [[nodiscard]] bool is_known(const DataGuard& guard) const;
  static void note_stale(Tape& tape, std::size_t from);
  void decide_ahead();
  void take_back_for(const DataGuard& guard);
  void decide(TapeOpId id, torch::jit::Stack* stack);
  [[nodiscard]] bool still_holds(TapeOpId op);
  template <class WorkOut>
  auto aside(WorkOut work_out);
  void ask_for_shape(const c10::OperatorHandle& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack);
  [[nodiscard]] bool decided() const { return decided_.at(static_cast<std::size_t>(chosen_ + 1)); }
  [[nodiscard]] NumberSource& numbers() { return *numbers_.at(static_cast<std::size_t>(chosen_ + 1)); }
  void take_back_numbers();
  void match(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void match_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  [[nodiscard]] bool has_access(const at::Tensor& tensor, bool only_writes) const;
  [[nodiscard]] bool writes_under_array(const TapeOp& op) const;
  bool same_tensors(const TensorRef& ref, const c10::IValue& value, bool real) const;
  [[nodiscard]] bool fits_by_value(const Slot& slot, const at::Tensor& tensor, const Place& place) const;
  bool one_to_one(const TapeOp& op, const torch::jit::Stack& stack) const;
  bool same_tensor(SlotId slot, const at::Tensor& tensor, bool real) const;
  [[nodiscard]] bool lies_aside(const at::Tensor& sparse) const;
  [[nodiscard]] Place place_of(const at::Tensor& tensor) const;
  void run_for_real(const TapeOp& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void answer_with_shells(const TapeOp& op, torch::jit::Stack* stack);
  at::Tensor shell(SlotId slot, const torch::jit::Stack& arguments, const TapeOp& op);
  void differs(const std::string& how, const c10::OperatorHandle& op, c10::DispatchKeySet keys,
               torch::jit::Stack* stack);
  void run_up_to(PlainRun& run, std::size_t to);
  void run_plainly_and_follow(const GeneratorState& python);
  // Random generators that Python draws from. Those that the step makes are other objects than those of the tape, which
  // take their place in it.
  void know_generators();
  void take_generators(const torch::jit::Stack& stack, std::size_t count);
  [[nodiscard]] GeneratorPart part_of_generator(const at::Generator& generator) const;
  [[nodiscard]] Generators made_generators() const;
  [[nodiscard]] GeneratorState generators_now() const { return GeneratorState::current(generators_); }
  void unmark_generator();
  // A mark that Python has set a generator to, be it another one's: after how many draws, and of which. 0: it is none.
  [[nodiscard]] std::pair<std::size_t, GeneratorPart> mark_of(const GeneratorState& now, GeneratorPart part) const;
  void on_state_told(const at::Generator& generator, const at::Tensor& state) override;
  void on_state_read(const at::Tensor& state, bool begins) override;
  void on_pickled(const at::Generator& generator) override;
  void on_set(const at::Generator& generator) override;
  // Of those that Python has set and not drawn from.
  [[nodiscard]] std::vector<MarkedGenerator> marked_generators() const;
  [[nodiscard]] std::pair<std::size_t, GeneratorPart> mark_in(const at::Generator& generator) const;
  [[nodiscard]] const ToldState* told_state(const at::Tensor& tensor) const;
  [[nodiscard]] bool looks_at_told_state(const torch::jit::Stack& stack, std::size_t count) const;
  // What Python has of marks gets the state that it stands for: states[i] after i draws.
  void unmark_what_python_has(const std::function<const GeneratorState&(std::size_t)>& after_draws) const;
  void generator_back() const;
  // Has Python moved the generator as was recorded, but for seeds, which are numbers?
  [[nodiscard]] bool jumps_alike(const GeneratorJump& recorded) const;
  // Are they others than before?
  bool take_seed(GeneratorJump& recorded);
  void mark_draw(TapeOp& op, bool with_other_numbers);
  [[nodiscard]] SlotId kept_slot(std::size_t i) const;
  [[nodiscard]] BlockId kept_block(std::size_t i) const;

  std::shared_ptr<Tape> tape_;
  Mode mode_ = Mode::kSection;
  Storages residents_;       // and adopted shells
  Storages passing_;         // of the section or step that is being matched
  std::vector<Shell> kept_;  // so that no address in passing_ is used twice
  ArraysMade arrays_;
  bool arrays_taken_back_ = false;   // they show what kernels had not done yet
  std::vector<bool> taken_;          // by block: a constant that has the content of a tensor of this call
  std::vector<bool> other_content_;  // by block: another one than it had
  std::vector<bool> other_numbers_;  // by op: given by this call
  std::vector<PlaceNow> places_;     // by slot
  std::vector<bool> moves_;          // by block: one of its views lies elsewhere than in the call before
  bool changes_ = false;             // one of them is true
  Shells shells_;                    // by block
  std::string mismatch_;
  std::vector<BlockId> host_written_;
  std::vector<std::pair<c10::Storage, KeptBytes>> saved_;
  std::unique_ptr<Intercept> intercept_;
  std::size_t cursor_ = 0;
  std::size_t end_ = 0;
  // Of a step:
  std::shared_ptr<Tape> own_;
  std::vector<at::Tensor> inputs_;                      // of tape_
  std::vector<std::vector<at::Tensor>> inputs_of_all_;  // of own_, then of others_
  std::vector<std::shared_ptr<Tape>> others_;
  std::function<void()> before_leaving_;
  OnAllRanks on_all_ranks_;
  bool copies_ = false;
  bool refreshed_ = false;
  bool left_in_section_ = false;
  std::pair<std::int64_t, std::string> left_by_{-1, ""};
  bool other_in_step_ = false;
  std::int64_t plain_runs_ = 0;
  bool read_shell_ = false;
  // A kernel that a number needs has raised; nothing has run then. Where Python catches that, no shell shows what it
  // would find.
  bool told_in_vain_ = false;
  bool budget_watches_ = false;      // what follows where the step has left
  bool grad_mode_differed_ = false;  // no other tape was recorded so
  int chosen_ = -1;
  std::vector<std::unique_ptr<NumberSource>> numbers_;  // of own_, then of others_
  std::vector<bool> decided_;                           // the same
  bool telling_ = false;
  std::map<const DataGuard*, c10::IValue> ahead_;  // numbers that Python will ask for
  bool decides_otherwise_ = false;                 // it has been told another number than was recorded
  bool decides_anew_ = false;                      // and than in the call before
  std::vector<TapeOpId> told_otherwise_;
  std::set<int> altered_;  // of others_
  // Nothing draws while a step is matched. What Python finds as the generator after i draws is python_generator_[i]: 0
  // as it was before the step, then marks, which tell where Python sets it. Draws that are alike lead from one mark to
  // one mark.
  std::vector<GeneratorState> python_generator_;
  Generators generators_;         // that Python may draw from
  GeneratorState made_as_found_;  // of those that it has made, as they were when it first drew from them
  std::size_t made_ = 0;
  std::vector<ToldState> told_states_;
  std::vector<at::Generator> set_aside_;  // that Python has set, and the tapes do not know
  std::optional<GeneratorStateListener*> listener_before_;
  std::vector<TapeOpId> draws_;                     // matched so far
  OfGeneratorParts<bool> marked_;                   // one of python_generator_ has no true state
  std::vector<GeneratorState> true_generator_;      // the same after it has left the tapes
  std::optional<GeneratorState> generator_at_end_;  // as Python left it
  bool looks_ = false;
  std::vector<std::vector<Digest>> traced_;
  std::vector<bool> watched_;  // by op; or empty
  const std::vector<Tiles>* tiles_ = nullptr;
  TileError tile_error_;
};

}  // namespace stowage::runtime
