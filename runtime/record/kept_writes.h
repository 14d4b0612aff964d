// What a step that is being recorded has found and writes to, as it was before: so that the call can be taken back.
//
//   op writes weight  ──▶  made by the step, or kept already?  ──▶  else its bytes are copied before the op runs
//
// Where memory is short nothing is kept any more, and the call cannot be taken back. O(bytes of what the step writes to and
// has not made).
#pragma once

#include <utility>
#include <vector>

#include "runtime/memory/bytes.h"
#include "runtime/record/names.h"
#include "runtime/record/tape.h"

namespace stowage::runtime {

class KeptWrites {
 public:
  explicit KeptWrites(const Names& names) : names_(names) {}

  // Before the op runs on these arguments.
  void save(const TapeOp& op, const torch::jit::Stack& stack);
  // All that was written has been kept. give_up(): from now on it has not.
  [[nodiscard]] bool complete() const { return complete_; }
  void give_up() { complete_ = false; }
  void put_back();
  [[nodiscard]] bool holds(const c10::Storage& storage) const;
  void forget() { saved_.clear(); }

 private:
  void save(const at::Tensor& tensor);

  const Names& names_;
  std::vector<std::pair<c10::Storage, KeptBytes>> saved_;
  bool complete_ = true;
};

}  // namespace stowage::runtime
