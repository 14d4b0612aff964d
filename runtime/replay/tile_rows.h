// Tensors as rows, and which ops work on rows one by one (tiles.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/record/tape.h"

namespace stowage::runtime {

std::int64_t numbers_of(const TensorMeta& meta);
inline std::int64_t bytes_each(const TensorMeta& meta) { return static_cast<std::int64_t>(meta.dtype.itemsize()); }

// The first `lead` dimensions as one, where that can be; the others stay.
std::optional<TensorMeta> folded(const TensorMeta& meta, std::size_t lead);
// With the rows as first dimension and at most one behind it.
std::optional<TensorMeta> rows_first(const TensorMeta& meta, std::int64_t rows);
// Row after row, all of its block; of a result of the step.
bool fills_by_row(const TensorMeta& rows, const Block& block);

// By full names. "aten::add_.Tensor" as "aten::add.Tensor"; "" of others.
std::string functional_name(const std::string& name);
bool is_elementwise(const std::string& name);
// Of two matrices: the argument that has the rows of the result, before the one with its columns; or -1.
int product_argument(const std::string& name);
// Over the last dimension: the argument that says so, or -1.
int row_softmax_argument(const std::string& name);
bool reduces(const std::string& name);

}  // namespace stowage::runtime
