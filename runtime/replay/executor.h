// The executor: replays a tape in plan order with every allocation at its planned address.
//
//   for each step of the plan:   build aliases ─► arm the op's allocation list ─► call the kernel (boxed, below autograd)
//                                ─► keep its results ─► finish the copies due now ─► drop what has its placement's end here
//
// Tensors and storages belong to a placement: when an op runs again, or a buffer comes back from the host, its tensors
// are new ones over the new storage, with the same metadata. An op that draws random numbers and runs again finds the
// generator as it was, and leaves it as it finds it. Swaps are copies on a link (link.h), started at their step and
// finished at their `until`.
//
// Parameters, optimizer state and module buffers stay in the user's own tensors. Inputs are bound per call. What the
// step returns is made in memory of its own, or copied there out of the arena; what the next call lets go of unread stays
// in the arena until then. No other arena tensor escapes. Everything that does not change from step to step (stacks,
// views of residents, shells, allocation lists) is built once.
#pragma once

#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/memory/allocation_script.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/arena_watch.h"
#include "runtime/memory/bytes.h"
#include "runtime/memory/host.h"
#include "runtime/record/tape.h"
#include "runtime/replay/digest.h"
#include "runtime/replay/lower.h"
#include "runtime/replay/noted_graphs.h"
#include "runtime/replay/python_generators.h"
#include "runtime/replay/saved_blocks.h"
#include "runtime/replay/swaps.h"
#include "runtime/torch/generator.h"
#include "stowage/plan.h"

namespace stowage::runtime {

struct RunStats {
  std::int64_t misses = 0;   // allocations that the plan did not foresee; the system served them
  std::int64_t skipped = 0;  // foreseen ones that did not come
  // Largest sum of padded bytes live in the arena at one moment, as counted by the allocator
  std::int64_t peak_bytes = 0;
  std::int64_t escaped_blocks = 0;  // arena blocks that something still held when the step ended
  std::int64_t stall_ns = 0;        // waited for copies that were not complete in time
  std::int64_t rescued_bytes = 0;   // could not be written to the host store, and waited in memory taken for them
  std::int64_t wall_ns = 0;
};

struct RunOptions {
  bool learn = false;     // afterwards the tape holds the allocations that the ops were seen to make
  bool time_ops = false;  // afterwards op_times() is what each op took
  // The step's Python has run over shells, so the tensors that it writes have counted that (Tensor._version)
  bool writes_counted = false;
};

class Executor {
 public:
  // `plan` must be valid (check()) for lowered.graph; throws InvalidPlan for one of another graph.
  Executor(std::shared_ptr<Tape> tape, Lowered lowered, Plan plan, std::shared_ptr<Arena> arena,
           const std::shared_ptr<Hosts>& host);

  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Takes all memory that run() will need: arena and host store. Throws Error when there is not enough, with nothing
  // changed.
  void reserve();
  void reserve_host();  // the host store's part alone

  // True while the residents are the tensors that were recorded: same storage, address, shape.
  [[nodiscard]] bool residents_unchanged() const;

  // True when a parameter, state or buffer that the step uses has died: no call finds it again, and only the recording
  // holds its memory.
  [[nodiscard]] bool residents_died() const;

  // Parameters, states and buffers that the step uses: of each, the tensors that are still there and lie in its memory.
  [[nodiscard]] std::vector<std::vector<const c10::TensorImpl*>> lasting() const;

  // True while the tensors that lie in blocks of others (Tape::tenants) lie in them as they did in the latest call whose
  // Python did what is on the tape. `inputs` are those of the call that begins.
  [[nodiscard]] bool tenants_unchanged(const std::vector<at::Tensor>& inputs);
  // In the call that began with the latest question, it did.
  void tenants_fit();

  // True when these may be bound: they share no memory with residents, nor what is written with each other, and begin
  // in their storages where the step's views of them can. (executor_accepts.cpp)
  [[nodiscard]] bool accepts(const std::vector<at::Tensor>& inputs) const;

  // Runs the step. `inputs` by argument number, accepted. What it returns is in output() then.
  // An exception of a kernel passes through, with all arena tensors dropped; so does the Error of a buffer that cannot
  // be read back from the host store. Residents and generator are then as before the run; or runs() counts one more,
  // and they are as after it; or, where an op has failed twice and there was no way back, an Error says that the step
  // is half done (executor_undo.cpp). Goes on where tell() has stopped.
  RunStats run(const std::vector<at::Tensor>& inputs, RunOptions options);

  // Runs the step up to `read`, one of Tape::reads, and returns what that hands to Python. The generator is as before.
  torch::jit::Stack tell(TapeOpId read, const std::vector<at::Tensor>& inputs);
  // Runs the step up to the last of `reads`, in their order. False where one of them tells another number than when it was recorded:
  // then nothing has happened.
  bool tells_as_recorded(const std::vector<TapeOpId>& reads, const std::vector<at::Tensor>& inputs);
  // Since tell() and before run(): has this op run?
  [[nodiscard]] bool has_run(TapeOpId op) const { return parts_ && ran_at_[op.index()] < parts_->next; }
  // The same: is this external block where it was before the step, with what it held then?
  [[nodiscard]] bool as_before(BlockId external) const;
  // Since tell() and before run().
  [[nodiscard]] bool tells() const { return parts_.has_value(); }
  // After tell(), instead of run(): residents and generator are as before the step. Nothing otherwise.
  void take_back();

  // A block that the step returns, or that its Python keeps: whole, so that tensors of one block share it, as in eager.
  struct Result {
    BlockId block;
    bool kept;
    c10::Storage storage;
  };
  // Of the last run, until dropped.
  [[nodiscard]] const std::vector<Result>& results() const { return results_; }
  // tape.returned[i] of the last run, over its block's result, or over the resident or input that it is.
  [[nodiscard]] at::Tensor output(std::size_t i, const std::vector<at::Tensor>& inputs) const;
  [[nodiscard]] bool is_result(std::size_t i) const;
  // What the last run has made for Python at `read`, one of Tape::reads.
  [[nodiscard]] const c10::IValue& number(TapeOpId read) const { return numbers_.at(read); }
  [[nodiscard]] bool has_staying_results() const;
  void drop_results();
  // The generators' state after so many draws is wanted after the next run, and here it is then.
  void keep_state(std::size_t draws) { keep_state_[draws] = true; }
  [[nodiscard]] const std::optional<GeneratorState>& kept_state(std::size_t draws) const { return states_[draws]; }
  [[nodiscard]] GeneratorState generators_now() const { return GeneratorState::current(tape_->generators); }
  void drop_returned();  // all but what Python keeps

  // The last run ended half-way, and could not be taken back.
  [[nodiscard]] bool half_done() const { return half_done_; }

  // From now on each op's results are digested, and, if `paranoid`, it is seen to that it writes nothing else in the
  // arena, and that the way back is open to the end.
  void look_closely(bool on, bool paranoid) { looks_ = on, paranoid_ = paranoid; }
  // Of the last run that was looked at, by op of the tape: its results in the op's first run.
  [[nodiscard]] const std::vector<std::vector<Digest>>& traced() const { return traced_; }
  // In that run, the first op that was made again and gave other results than before; "" where none did.
  [[nodiscard]] const std::string& again_otherwise() const { return again_otherwise_; }
  // The kinds (kind_of()) of all that did, on inputs as they were before: their kernels do not repeat their bits.
  [[nodiscard]] const std::set<std::string>& do_not_repeat() const { return do_not_repeat_; }
  // The kinds of what the plan makes again.
  [[nodiscard]] std::set<std::string> made_again() const;

  // For tests: the kernel after so many others raises, and so do the next ones; `times` in all.
  void inject(std::int64_t ops, std::int64_t times);
  [[nodiscard]] std::int64_t injected_in() const { return fails_in_; }  // kernels

  // How many runs have come to their end, and stay.
  [[nodiscard]] std::int64_t runs() const { return runs_; }

  // Runs the step, with both options, and puts everything back: residents, written inputs and the generator are as
  // before, also after an exception. The digest is of what the step would have left: those tensors, `host_written` as
  // they are, the generator. `learn`: false where kernels are not those of other runs.
  std::pair<RunStats, StateDigest> rehearse(const std::vector<at::Tensor>& inputs,
                                            const std::vector<c10::Storage>& host_written, bool learn);
  // The digest of what is there now, in the same order.
  [[nodiscard]] StateDigest state(const std::vector<at::Tensor>& inputs,
                                  const std::vector<c10::Storage>& host_written) const;

  // Graphs of the device (executor_graphs.cpp). Would note_graphs() have a reason to come?
  [[nodiscard]] bool wants_graphs() const;
  // Instead of run(), which may follow: nothing is changed. Where there can be none, graphs() says why.
  // `gradients`: positions in Tape::returned of what becomes a parameter's gradient.
  void note_graphs(const std::vector<at::Tensor>& inputs, const std::vector<std::size_t>& gradients);
  // After note_graphs(), and run() from the same state, whose results are still there: graphs are used from now on where both have
  // done the same.
  void try_graphs(const std::vector<at::Tensor>& inputs);
  [[nodiscard]] const NotedGraphs* graphs() const { return graphs_.get(); }

  // Ops of the tape whose results a rehearsal digests, as chains of rows have made them.
  [[nodiscard]] std::vector<TapeOpId> replaced() const;
  [[nodiscard]] const std::vector<Tiles>& tiles() const { return lowered_.tiles; }
  // The last learning run saw a chain of rows allocate otherwise than was planned.
  [[nodiscard]] bool chain_surprised() const { return chain_surprised_; }

  // True when the last learning run saw other allocations than the plan was made for.
  [[nodiscard]] bool learned_something() const { return learned_something_; }

  [[nodiscard]] const SwapSchedule& swaps() const { return swaps_; }

  // Of the last timed run: what each op took each time it ran.
  [[nodiscard]] const std::vector<std::pair<TapeOpId, std::int64_t>>& op_times() const { return op_times_; }

 private:
  struct Operand {
    SlotId slot;
    bool shell = false;  // only its shape is looked at
  };
  struct Argument {
    std::size_t position = 0;
    TensorRef::Kind kind = TensorRef::Kind::kNone;
    std::vector<Operand> operands;
  };
  struct Instruction {
    TapeOpId op;         // invalid: a swap starts here
    bool again = false;  // the op has run before in this step
    bool tells = false;  // something that is no tensor
    std::vector<Argument> arguments;
    std::vector<BlockId> first_writes;                     // residents and inputs that no earlier step has written
    std::vector<BlockId> renew;                            // it creates these anew in the middle of their placement
    std::vector<std::pair<BlockId, std::int64_t>> placed;  // what it creates in the arena, with the offset
    std::vector<std::size_t> finish;                       // swaps that are due when this step ends
    std::vector<BlockId> drop_blocks;                      // whose placement ends with this step
    int chain = -1;                                        // the op stands for this chain of rows
    int product = -1;                                      // its result takes the memory of its operand
    int tile = -1;                                         // the op stands for these tiles
    std::size_t swap = 0;
    std::size_t script_from = 0;
    std::size_t script_to = 0;

    [[nodiscard]] bool is_replaced() const { return chain >= 0 || product >= 0 || tile >= 0; }
  };

  // A run that has stopped to tell a number (numbers.h).
  struct Parts {
    std::size_t next = 0;  // instruction
    RunStats stats;
    GeneratorState before, after;
  };

  // A run that is put back: which residents are saved before, and restored after, each step.
  struct Rehearsal {
    struct Saved {
      BlockId block;
      std::optional<KeptBytes> content;  // while the resident must get it back
      c10::DataPtr shadow;               // of one that is away: what it would be is written here, and its home stays
    };
    std::vector<Saved> saved;
    std::vector<Digest> digests;                          // by saved
    std::vector<std::vector<std::size_t>> save_before;    // by step
    std::vector<std::vector<std::size_t>> restore_after;  // by step
  };

  void write_instructions();
  void write_op(OpId id, Instruction& instruction);
  void keep_states(const GeneratorJump& jump);
  void write_lifetimes();
  void write_script();
  void bind_residents();
  void bind_inputs(const std::vector<at::Tensor>& inputs);
  [[nodiscard]] c10::Storage storage_of(const Block& block, const std::vector<at::Tensor>& inputs) const;
  void call(const Instruction& instruction, torch::jit::Stack& stack);
  void call_kernel(const Instruction& instruction, torch::jit::Stack& stack);
  void call_chain(const Instruction& instruction, torch::jit::Stack& stack);
  void run_worker(const RowChain& chain, std::int64_t worker, const std::vector<std::vector<at::Tensor>>& whole,
                  char* to) const;
  void call_product(const Instruction& instruction, torch::jit::Stack& stack);
  bool write_product_script(std::int32_t step, std::size_t from,
                            const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch);
  void call_member(const RowChain& chain, std::size_t index, std::int64_t row, std::int64_t count,
                   const std::vector<at::Tensor>& whole, std::vector<at::Tensor>& made, torch::jit::Stack& stack) const;
  [[nodiscard]] static std::vector<std::size_t> chain_scripts(const RowChain& chain);
  void write_tiles_script(const Tiles& tiles, std::int32_t step,
                          const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch);
  void call_tiles(const Instruction& instruction);
  void note_times();
  void note_time(const Instruction& instruction, std::int64_t ns);
  void write_chain_script(const RowChain& chain, std::int32_t step,
                          const std::map<std::pair<std::int32_t, std::int32_t>, std::int64_t>& scratch);
  void push_arguments(const Instruction& instruction, torch::jit::Stack& stack);
  bool has_its_form(const TapeOp& op, const torch::jit::Stack& stack);
  void let_go_of_held(const TapeOp& op);
  void keep_results(const TapeOp& op, torch::jit::Stack& stack);
  void learn(const Instruction& instruction);
  // Where the last run has left the generators that it moves.
  [[nodiscard]] GeneratorState generators_left() const;
  // Those that its runs move.
  void set_generators(const GeneratorState& state) const { runtime::set_generators(*tape_, state, foreign_draws_); }
  void leave_arena_to_results();
  void make_results();
  void find_results();
  [[nodiscard]] std::int32_t position_among_results(BlockId block) const;
  [[nodiscard]] std::int64_t result_bytes(BlockId block) const;
  void copy_results();
  void drop(BlockId block);
  void drop_everything();
  void leave_step();
  [[nodiscard]] const at::Tensor& tensor(const Operand& operand);
  [[nodiscard]] at::Tensor tensor_of(SlotId slot) const;

  void begin(const std::vector<at::Tensor>& inputs);
  void run_step(std::size_t index, RunOptions options, torch::jit::Stack& stack, RunStats& stats);
  void do_step(std::size_t index, RunOptions options, torch::jit::Stack& stack, RunStats& stats);
  void save_before(std::size_t index);
  void restore_after(std::size_t index);
  [[nodiscard]] bool may_be_noted(const Instruction& instruction) const;
  void find_pieces();
  void leave_out(const std::string& why);
  void refuse_graphs(const std::string& why);
  [[nodiscard]] std::vector<Digest> digests_of_output(const std::vector<at::Tensor>& inputs) const;
  // The piece that begins there and is to run as a whole; nullptr: none.
  NotedPiece* piece_at(std::size_t index, RunOptions options);
  void count_unserved();
  [[nodiscard]] bool still_serves(const NotedPiece& piece) const;
  void run_piece(NotedPiece& piece, RunOptions options, torch::jit::Stack& stack, RunStats& stats);
  void note_what_is_given(NotedPiece& piece) const;
  template <class Note>
  void note_what_it_leaves(NotedPiece& piece, const Note& note);
  void launch(const NotedPiece& piece);
  [[nodiscard]] Rehearsal plan_rehearsal() const;
  void save_resident(Rehearsal& rehearsal, std::size_t i);
  void restore_resident(Rehearsal& rehearsal, std::size_t i);
  void start_swap(const Instruction& instruction);
  void finish_swap(std::size_t index, RunStats& stats);
  void rescue(const Swap& swap, RunStats& stats);
  [[nodiscard]] Link& link_of(const Swap& swap) const { return swap.home ? *host_.home_link : *host_.link; }
  [[nodiscard]] std::int64_t host_place(const Swap& swap);
  void retry_home(const Swap& swap);
  void abandon_copies();
  [[nodiscard]] bool away(BlockId block) const { return away_[block.index()]; }
  // Where a resident is between calls: the user's tensor.
  [[nodiscard]] const c10::Storage& resident(BlockId block) const { return residents_[block.index()]; }
  void write_undo();
  void begin_undo();
  void before_writes(std::size_t index);
  void take_back_writes();
  // Runs the kernel; once more where it raises and there is no way back.
  void call_surely(const Instruction& instruction, torch::jit::Stack& stack);
  [[noreturn]] void give_up(const std::exception_ptr& error);
  void fail_as_injected();
  [[nodiscard]] std::vector<ArenaWatch::Range> own_ranges(std::size_t index) const;
  void look_around(std::size_t index);
  void poison_dead(const std::vector<ArenaWatch::Range>& ranges);
  void note_results(const Instruction& instruction);
  // The ops of the tape that it runs.
  [[nodiscard]] std::vector<TapeOpId> members_of(const Instruction& instruction) const;
  [[nodiscard]] bool overlap(const std::vector<at::Tensor>& inputs) const;
  [[noreturn]] void fail_swap(const Swap& swap, const std::string& why);

  std::shared_ptr<Tape> tape_;
  Lowered lowered_;
  Plan plan_;
  std::shared_ptr<Arena> arena_;
  AllocationScript script_;
  std::vector<Instruction> instructions_;
  std::vector<PlannedAllocation> allocations_;
  SwapSchedule swaps_;
  Host host_;
  std::vector<Link::Ticket> tickets_;              // by swap
  std::vector<std::optional<KeptBytes>> rescued_;  // by buffer; none where the store holds it
  bool looks_ = false;
  bool paranoid_ = false;
  std::optional<ArenaWatch> watch_;
  std::vector<std::vector<Digest>> traced_;
  std::string again_otherwise_;
  std::set<std::string> do_not_repeat_;
  // In a run that is looked at, by block and by op: it is not known to be as in the program
  std::vector<bool> doubtful_, ran_on_doubtful_;
  // The way back (executor_undo.cpp):
  std::size_t saves_until_ = 0;  // instructions before this one save what they write first
  SavedBlocks saved_{Kept::kInEachStep};
  std::optional<GeneratorState> generator_before_;
  bool can_take_back_ = true;
  bool half_done_ = false;
  std::int64_t unsaved_writes_ = 0;
  std::exception_ptr late_error_;  // of an op that went through when it ran once more
  std::int64_t fails_in_ = -1;     // inject()
  std::int64_t fails_ = 0;
  std::vector<at::Tensor> tensors_;                         // by slot; what is live now, built when first needed
  std::vector<at::Tensor> shells_;                          // by slot; only where needed
  std::vector<c10::Storage> storages_;                      // by block; what is live now
  std::vector<c10::Storage> residents_;                     // by block; of all residents, the user's
  std::vector<bool> away_;                                  // by block: a resident that waits on the host
  std::vector<bool> permanent_;                             // by slot: stays from step to step
  std::vector<std::vector<SlotId>> slots_of_;               // by block; those that go with its placement
  std::vector<bool> runs_again_;                            // by random order: the op draws the same numbers once more
  std::vector<std::optional<GeneratorState>> before_draw_;  // by random order; where it runs again
  std::vector<bool> keep_state_;  // by draws: the generator state after that many is restored later
  std::vector<std::optional<GeneratorState>> states_;
  std::vector<BlockId> mutated_;  // externals that the step writes
  std::vector<BlockId> counts_;   // and not only the optimizers, whose Python has run (RunOptions::writes_counted)
  // And what their first byte's place must be a multiple of
  std::vector<std::pair<BlockId, std::int64_t>> input_blocks_;
  std::unordered_set<const c10::StorageImpl*> resident_storages_;
  Rehearsal* rehearsal_ = nullptr;
  std::unique_ptr<NotedGraphs> graphs_;
  // In a run that may be taken back: a kernel has moved the generator that is not said to draw
  bool foreign_draws_ = false;
  std::optional<Parts> parts_;
  torch::jit::Stack told_;
  std::map<TapeOpId, c10::IValue> numbers_;
  std::vector<std::size_t> ran_at_;      // by op of the tape: its first instruction; none: beyond all
  std::vector<AllocationEvent> events_;  // of the op that runs, while learning
  std::vector<std::pair<TapeOpId, std::int64_t>> op_times_;
  std::unique_ptr<Device::Stopwatch> stopwatch_;  // of a run whose ops are timed
  std::vector<std::size_t> timed_;                // the instructions that it has timed
  bool learned_something_ = false;
  bool chain_surprised_ = false;
  bool rows_written_ = false;  // by the chain or product that runs: it cannot run once more
  std::int64_t runs_ = 0;
  std::vector<std::pair<BlockId, bool>> result_blocks_;  // each once, and whether Python keeps it
  std::vector<Result> results_;                          // one for each
  std::vector<bool> touched_;                            // by block: an op looks at it
  std::vector<bool> written_;                            // by block: a kernel writes it
  bool foreign_residents_ = false;                       // one that it touches lies in memory of another library
};

}  // namespace stowage::runtime
