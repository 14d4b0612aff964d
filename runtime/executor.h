// The executor: replays a tape in plan order with every allocation at its planned address.
//
//   for each step of the plan:   build aliases ─► arm the op's allocation list ─► call the kernel (boxed, below autograd)
//                                ─► keep its results ─► drop the tensors and storages whose last use this was
//
// Parameters, optimizer state and module buffers stay in the user's own tensors. Inputs are bound per call. What the step returns
// is copied out of the arena; an arena tensor never escapes. Everything that does not change from step to step (stacks, views of
// residents, shells, allocation lists) is built once.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "runtime/allocator.h"
#include "runtime/generator.h"
#include "runtime/lower.h"
#include "runtime/tape.h"
#include "stowage/plan.h"

namespace stowage::runtime {

struct RunStats {
  std::int64_t misses = 0;       // allocations that the plan did not foresee; the system served them
  std::int64_t skipped = 0;      // foreseen ones that did not come
  std::int64_t peak_bytes = 0;   // largest sum of padded bytes live in the arena at one moment, as counted by the allocator
  std::int64_t escaped_blocks = 0;  // arena blocks that something still held when the step ended
  std::int64_t wall_ns = 0;
};

class Executor {
 public:
  // Throws InvalidPlan for a plan that is not for lowered.graph, Error for one with recomputation or swapping.
  Executor(std::shared_ptr<Tape> tape, Lowered lowered, Plan plan, std::shared_ptr<Arena> arena);

  // True while the residents are the tensors that were recorded: same storage, address, shape.
  [[nodiscard]] bool residents_unchanged() const;

  // Runs the step. `inputs` by argument number; outputs[i] receives tape.returned[i] when that lies in the arena (undefined
  // entries are skipped). `learn`: afterwards the tape holds the allocations that the ops were seen to make.
  // An exception of a kernel passes through, with all arena tensors dropped.
  RunStats run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& outputs, bool learn);

  // True when the last learning run saw other allocations than the plan was made for.
  [[nodiscard]] bool learned_something() const { return learned_something_; }

  // The tensor that output i is when it does not lie in the arena: a resident or an input, or an alias of one.
  [[nodiscard]] at::Tensor external_output(std::size_t i, const std::vector<at::Tensor>& inputs) const;

  // Storages of residents that the step writes.
  [[nodiscard]] std::vector<c10::Storage> mutated_residents() const;

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
    TapeOpId op;
    std::vector<Argument> arguments;
    std::vector<SlotId> aliases;  // to build before
    std::vector<SlotId> drop_slots;
    std::vector<BlockId> drop_blocks;
    std::size_t script_from = 0;
    std::size_t script_to = 0;
  };

  void write_instructions();
  void write_lifetimes();
  void write_script();
  void bind_residents();
  void bind_inputs(const std::vector<at::Tensor>& inputs);
  void call(const Instruction& instruction, torch::jit::Stack& stack);
  void push_arguments(const Instruction& instruction, torch::jit::Stack& stack);
  void keep_results(const TapeOp& op, torch::jit::Stack& stack);
  void learn(const Instruction& instruction, const std::vector<AllocationEvent>& events);
  void copy_outputs(const std::vector<at::Tensor>& outputs);
  void drop_everything();
  [[nodiscard]] const at::Tensor& tensor(const Operand& operand);
  [[nodiscard]] at::Tensor tensor_of(SlotId slot) const;

  std::shared_ptr<Tape> tape_;
  Lowered lowered_;
  Plan plan_;
  std::shared_ptr<Arena> arena_;
  AllocationScript script_;
  std::vector<Instruction> instructions_;
  std::vector<PlannedAllocation> allocations_;
  std::vector<at::Tensor> tensors_;     // by slot; what is live now
  std::vector<at::Tensor> shells_;      // by slot; only where needed
  std::vector<c10::Storage> storages_;  // by block; what is live now
  std::vector<bool> permanent_;         // by slot: stays from step to step
  std::vector<SlotId> end_aliases_;     // aliases that the returned tensors need
  std::vector<bool> keep_state_;        // by draws: the generator state after that many is restored later
  std::vector<std::optional<GeneratorState>> states_;
  std::vector<BlockId> mutated_;        // externals that the step writes
  bool learned_something_ = false;
};

}  // namespace stowage::runtime
