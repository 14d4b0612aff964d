// Indices among a call's arguments that a kernel refuses: a target that is no class, a token that no table has.
//
//   argument y ──view, cast, cut──► index of nll_loss     0 <= y < classes, or the index that is ignored?
//                                                          no: the call runs as eager would, and raises where eager raises
//
// In a planned call a kernel raises when all of the step's Python may have run over tensors without memory (what it has
// counted cannot be taken back), and when gradients of the call before are gone. These errors alone can be foreseen at
// little cost: a look at the indices of each call, O(their elements). What is foreseen and does not come true costs one call
// its plan. On the CPU, where such a kernel raises at all. Where nothing is foreseen, and nothing else may raise, no Python has to
// be copied for a second run (foreseen()).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/record/tape.h"

namespace stowage::runtime {

struct IndexRange {
  SlotId index;  // of an argument, as it is before the step
  TapeOpId op;   // that raises
  std::int64_t least = 0;
  std::int64_t end = 0;                 // one behind the largest
  std::optional<std::int64_t> besides;  // may be there, too
};

class IndexRanges {
 public:
  explicit IndexRanges(std::shared_ptr<const Tape> tape);
  // The op that would raise, with its line; "" for none. `inputs` by argument number.
  [[nodiscard]] std::string refused(const std::vector<at::Tensor>& inputs) const;
  // As refused(), but of all that an argument holds, where the step looks at a part of it: Python may choose another part
  [[nodiscard]] bool may_refuse(const std::vector<at::Tensor>& inputs) const;
  // TapeOp::around of those ops that raise for nothing but what may_refuse() sees
  [[nodiscard]] const std::vector<std::int32_t>& foreseen() const { return foreseen_; }

 private:
  std::shared_ptr<const Tape> tape_;
  std::vector<IndexRange> ranges_;
  std::vector<std::int32_t> foreseen_;
};

}  // namespace stowage::runtime
