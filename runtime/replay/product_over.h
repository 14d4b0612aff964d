// Exact replacement: a product that takes the memory of its left operand.
//
//   g [T, V] row after row ── gᵀ h ──► d [V, C], C <= T        as recorded, g and d are there together
//
//   g's memory   d, rows 0 .. c ███│ room │▒▒▒▒▒ g, columns c .. V of all rows, packed to the end
//                               ──►│      │──►   the next columns: their rows of d are made beside (scratch), what is left
//                                                of g moves up, the rows of d are written behind those before
//
// The weight gradient of a linear layer: a loss head's logits have done their work when it is made, and it is the second
// largest buffer of the step. A column of g is needed for one row of d alone, so PyTorch's own kernel makes d some
// columns of g at a time. d's rows 0 .. c take c C numbers, what is left of g T (V - c) of T V: as C <= T, they never
// meet. Each slice moves what is left once: with 8 of them, three and a half times g.
//
// Bits: each number of d is a sum over T, in the order that the matrix library chooses by the form of the product, not by
// its place in it. Seen equal for slices of 2048 columns and more with C >= 512 (MKL, fp32 and fp64, 1 and 2 threads);
// narrower ones may be split otherwise among threads. So only such products are taken, and each rehearsal compares d with
// the recorded kernel's; where a bit differs, the plan is made anew without products. CPU alone, and only where the kernel
// takes no memory but its result's (oneDNN's of bf16 does, and for a part another amount).
//
// A plan uses it where it gives d the address of g (in-place reuse); elsewhere the recorded kernel runs. Only
// products that hold, with their operand, half of what the largest op of the step does: the others have no part in the
// peak, and moving costs time.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/record/tape.h"
#include "runtime/replay/row_slices.h"

namespace stowage::runtime {

struct ProductOver {
  TapeOpId op;
  SlotId transposed;  // g, as the kernel reads it: [V, T]
  BlockId operand, result;
  std::int64_t rows = 0, columns = 0, width = 0;  // T, V, C
  std::int64_t item_bytes = 0;
  std::int64_t slices = 1;
  bool wrong = false;  // for tests, as of a chain

  // Columns of slice i are from(i) .. from(i + 1).
  [[nodiscard]] std::int64_t from(std::int64_t i) const { return columns * i / slices; }
  // Of the rows of d that one slice makes.
  [[nodiscard]] std::int64_t slice_bytes(std::int64_t i) const { return (from(i + 1) - from(i)) * width * item_bytes; }
  [[nodiscard]] std::int64_t largest_slice_bytes() const {
    return (columns + slices - 1) / slices * width * item_bytes;
  }
};

// Those that no chain has taken in, nor, as `taken` says, something else.
std::vector<ProductOver> find_products_over(const Tape& tape, const RowSlicing& options,
                                            const std::vector<RowChain>& chains, std::vector<bool> taken);

// Columns c .. of all rows are left; makes them columns c + gone .., still packed to the end.
void pack_columns(char* memory, const ProductOver& product, std::int64_t c, std::int64_t gone);

}  // namespace stowage::runtime
