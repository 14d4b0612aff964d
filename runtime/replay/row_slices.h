// Exact replacement: a chain of kernels that works row by row, done some rows at a time, without its large intermediates.
//
//   as recorded   y ─────────────┐                           in slices     y ▒▒▒▒▒▒▒▒▒▒▒▒  rows 0 .. R
//                 nll_backward ──┴─► log_softmax_backward                  ████░░░░▒▒▒▒▒▒
//                 g ██████████       d ██████████                          d    ▲  nll_backward and log_softmax_backward of these
//   holds y, g and d                                                            rows; their result goes over those of y
//
// What a loss head takes is this: the gradient of its log-probabilities is as large as they are, and nearly all zeros.
// Each kernel of a chain computes a row from the same row of its operands, and from operands that all rows share, by
// the same instructions however many rows it is given. So the kernels of PyTorch itself run on slices of rows, and their
// bits are those of the whole. The list (row_slices.cpp) has an op only where that is so: log_softmax backward reduces
// each row alone, nll_loss_backward scatters, and the elementwise ops on it are correctly rounded whatever loop computes
// them (no exp, no tanh: a vector and the rest beside it may differ; no softmax backward: in fp32 a row's bits depend on
// the rows beside it, seen with two threads and rows of 127, 129 and 1000). CPU alone. tests/python/test_row_slices.py runs
// each op both ways; each rehearsal compares the chain's result with that of the plain kernels on the step's own data,
// and where one bit differs the plan is made anew without replacements.
//
// Which chains: an op on the list takes in the maker of an operand where nobody else uses that, and where what the
// maker reads is no larger than what it makes, or is read by the chain anyway. So at each moment between the two, the
// chain holds at most what the plain kernels hold; at its end it adds its slices (two of about a MiB a thread, an eighth
// of what it saves at most). The result may
// lie over any operand that the chain reads by rows of the same length (in-place reuse): whichever thread has a
// row reads it before it writes it, and nobody else looks there. (Not where rows become shorter, as in a cast to bf16:
// row 8 would lie where row 4 has been, which another thread may not have read yet.) O(ops + operands).
//
// Differs from chunked losses (Liger and others: matmul, loss and gradient by chunks, in another order of sums): here
// the tape stays what it is, the order of every sum as well.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

struct RowSlicing {
  bool on = true;
  std::int64_t slice_bytes = 1 << 20;   // of each intermediate, about
  std::int64_t least_bytes = 1 << 20;   // chains with a larger intermediate are replaced
  bool wrong = false;                   // for tests: one bit of the result is another one
  std::int64_t product_columns = 2048;  // of a slice of a product over its operand at least (product_over.h); 0: none
};

// A tensor argument of a member.
struct RowOperand {
  std::size_t position = 0;  // among the arguments
  SlotId slot;
  int made_by = -1;     // an earlier member's result, of these rows
  bool by_row = false;  // else whole
  TensorMeta rows;      // by_row: all of it, with the rows as first dimension
};

struct RowMember {
  TapeOpId op;
  std::vector<RowOperand> operands;
  int dim_argument = -1;                  // a dimension that is the last one
  int alpha_argument = -1;                // a factor that must be 1 (fix_numbers)
  bool of_indices = false;                // rows of a table, made for those of its indices that are among them
  std::int64_t row_bytes = 0;             // of its result
  std::vector<std::int64_t> allocations;  // of one call, in order; 0: the result
  int last_use = 0;                       // of its result: by which member, or, of the last one, itself
};

struct RowChain {
  std::vector<RowMember> members;  // in program order; the last one makes the result
  std::int64_t rows = 0;
  std::int64_t slice_rows = 0;
  std::int64_t workers = 1;  // slice s is that of worker s % workers; each runs on a thread, and has its own scratch
  bool wrong = false;

  [[nodiscard]] TapeOpId last() const { return members.back().op; }
  // Of one call of a member on so many rows.
  [[nodiscard]] std::int64_t allocation_bytes(const RowMember& member, std::size_t i, std::int64_t count) const {
    return member.allocations[i] > 0 ? member.allocations[i] : member.row_bytes * count;
  }
};

// `taken`: ops that something else stands for.
std::vector<RowChain> find_row_chains(const Tape& tape, const RowSlicing& options, const std::vector<bool>& taken);

// The tape learns which numbers the chains rely on (TapeOp::fixed_number), and forgets those that others relied on.
void fix_numbers(Tape& tape, const std::vector<RowChain>& chains);

// Pairs (operand, result) where the result may lie over the operand.
std::vector<std::pair<BlockId, BlockId>> in_place_reuse_blocks(const Tape& tape, const RowChain& chain);

}  // namespace stowage::runtime
