#include "runtime/replay/index_ranges.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "runtime/torch/hook.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/tensors.h"

namespace stowage::runtime {
namespace {

enum class Counted : std::uint8_t { kRows, kClasses, kDimension, kEach, kAll };

struct Indexed {
  std::string_view name;
  std::size_t index;  // the argument
  Counted of;         // what it counts
  bool from_end = false;
  bool alone = true;  // nothing else that tensors hold makes it raise
};

constexpr std::array<Indexed, 23> kIndexed = {{
    {"aten::embedding", 1, Counted::kRows},
    {"aten::_embedding_bag", 1, Counted::kRows, false, false},  // offsets
    {"aten::nll_loss_forward", 1, Counted::kClasses},
    {"aten::nll_loss2d_forward", 1, Counted::kClasses},
    {"aten::gather", 2, Counted::kDimension},
    {"aten::scatter.src", 2, Counted::kDimension},
    {"aten::scatter.value", 2, Counted::kDimension},
    {"aten::scatter_.src", 2, Counted::kDimension},
    {"aten::scatter_.value", 2, Counted::kDimension},
    {"aten::scatter_add", 2, Counted::kDimension},
    {"aten::scatter_add_", 2, Counted::kDimension},
    {"aten::scatter_reduce.two", 2, Counted::kDimension},
    {"aten::scatter_reduce_.two", 2, Counted::kDimension},
    {"aten::index_select", 2, Counted::kDimension},
    {"aten::index_add", 2, Counted::kDimension},
    {"aten::index_add_", 2, Counted::kDimension},
    {"aten::index_copy", 2, Counted::kDimension},
    {"aten::index_copy_", 2, Counted::kDimension},
    {"aten::index_fill_.int_Scalar", 2, Counted::kDimension, true},
    {"aten::_unsafe_index.Tensor", 1, Counted::kEach, true},
    {"aten::index.Tensor", 1, Counted::kEach, true},
    {"aten::_index_put_impl_", 1, Counted::kEach, true},
    {"aten::take", 1, Counted::kAll, true},
}};
constexpr std::size_t kIgnored = 4;  // the argument of nll_loss that says which index is

// Give elements of their operands, and constants at most.
constexpr std::array<std::string_view, 7> kMoves = {
    "aten::_to_copy", "aten::clone", "aten::constant_pad_nd", "aten::cat", "aten::stack", "aten::roll", "aten::flip"};

// The same elements in every call, as it is made of a number that says how many there are.
constexpr std::string_view kFixed = "aten::arange";

bool counts(c10::ScalarType type) { return type == at::kLong || type == at::kInt; }

class IndexSearch {
 public:
  explicit IndexSearch(const Tape& tape) : tape_(tape), written_(tape.blocks.size(), tape.ops.size()) {
    for (std::size_t i = tape.ops.size(); i-- > 0;)
      for_each_access(tape, tape.ops[i], [&](BlockId block, Access access) {
        if (access == Access::kWrite) written_[block.index()] = i;
      });
  }

  std::vector<IndexRange> find() {
    for (at_ = 0; at_ < tape_.ops.size(); ++at_) {
      const TapeOp& op = tape_.ops[at_];
      if (op.role != TapeOp::Role::kKernel) continue;
      const std::string name = full_name(op.handle);
      const auto known = std::ranges::find(kIndexed, name, &Indexed::name);
      const bool foreseen =
          known != kIndexed.end() ? take(op, *known) && known->alone : checks_only_a_number(op.handle);
      if (foreseen && op.around >= 0) foreseen_.push_back(op.around);
    }
    return std::move(found_);
  }
  // Of what find() has gone through
  [[nodiscard]] std::vector<std::int32_t> foreseen() { return std::move(foreseen_); }

 private:
  [[nodiscard]] const TensorMeta& meta(SlotId id) const { return tape_.slots[id.index()].meta; }

  // True where all of its indices are looked at in each call, or are the same in all.
  bool take(const TapeOp& op, const Indexed& known) {
    if (op.tensors.empty() || op.tensors[0].slots.empty() || !op.tensors[0].slots[0].valid()) return false;
    const std::vector<std::int64_t> sizes = meta(op.tensors[0].slots[0]).sizes;
    const std::vector<SlotId>& indices = op.tensors.at(known.index).slots;
    const bool plain = std::ranges::all_of(indices, [&](SlotId id) { return !id.valid() || counts(type_of(id)); });
    if (!plain) return false;  // masks take as many dimensions as they have
    bool all = true;
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (!indices[i].valid()) continue;
      IndexRange range{{}, TapeOpId(at_), 0, size(op, known.of, sizes, i), {}};
      if (known.of == Counted::kClasses && op.arguments.at(kIgnored).isInt())
        range.besides = op.arguments[kIgnored].toInt();
      if (range.end >= 0 && known.from_end) range.least = -range.end;
      all = range.end >= 0 && trace(indices[i], range) && all;
    }
    return all;
  }

  [[nodiscard]] c10::ScalarType type_of(SlotId id) const { return meta(id).dtype.toScalarType(); }

  // -1: not known.
  static std::int64_t size(const TapeOp& op, Counted of, const std::vector<std::int64_t>& sizes, std::size_t place) {
    const auto rank = static_cast<std::int64_t>(sizes.size());
    std::int64_t dim = 0;
    switch (of) {
      case Counted::kRows: break;
      case Counted::kClasses: dim = rank > 1 ? 1 : 0; break;
      case Counted::kEach: dim = static_cast<std::int64_t>(place); break;
      case Counted::kDimension:
        if (!op.arguments.at(1).isInt()) return -1;
        dim = op.arguments[1].toInt();
        if (dim < 0) dim += rank;
        break;
      case Counted::kAll: {
        std::int64_t all = 1;
        for (const std::int64_t each : sizes) all *= each;
        return all;
      }
    }
    return dim >= 0 && dim < rank ? sizes[static_cast<std::size_t>(dim)] : -1;
  }

  // To the arguments that the elements come from, as they are before the step. True where these are all.
  bool trace(SlotId id, IndexRange range) {
    const Slot& slot = tape_.slots[id.index()];
    const Block& block = tape_.blocks[slot.block.index()];
    if (!block.device.is_cpu()) return true;  // no kernel raises there
    if (written_[slot.block.index()] < at_ || !counts(slot.meta.dtype.toScalarType())) return false;
    if (block.external) {
      range.index = id;
      const bool there = std::ranges::any_of(found_, [&](const IndexRange& other) {
        return other.index == id && other.least == range.least && other.end == range.end &&
               other.besides == range.besides;
      });
      if (block.input >= 0 && !there) found_.push_back(range);
      return block.input >= 0;
    }
    const TapeOp& maker = tape_.op(block.creator);
    const std::string name = full_name(maker.handle);
    if (name == kFixed) return true;
    if (std::ranges::find(kMoves, name) == kMoves.end()) return false;
    bool all = name != "aten::constant_pad_nd";  // with what it pads, beside
    for (const TensorRef& ref : maker.tensors)
      for (const SlotId operand : ref.slots)
        if (operand.valid()) all = trace(operand, range) && all;
    return all;
  }

  const Tape& tape_;
  std::vector<std::size_t> written_;  // by block: the first op that writes it
  std::size_t at_ = 0;
  std::vector<IndexRange> found_;
  std::vector<std::int32_t> foreseen_;
};

template <class Index>
bool within(const at::Tensor& indices, const IndexRange& range) {
  const auto* const first = static_cast<const Index*>(indices.const_data_ptr());
  const auto least = static_cast<Index>(range.least), most = static_cast<Index>(range.end - 1);
  const Index besides = static_cast<Index>(range.besides.value_or(range.least));
  bool all = true;
  for (std::int64_t i = 0; i < indices.numel(); ++i)
    all &= (first[i] >= least && first[i] <= most) || first[i] == besides;
  return all;
}

bool fits(const at::Tensor& indices, const IndexRange& range) {
  if (indices.numel() == 0) return true;
  // By an operator where they may have to be brought back: an eager budget has let go of them
  const at::Tensor there =
      indices.is_contiguous() && !thread_attached() ? indices : at::clone(indices, at::MemoryFormat::Contiguous);
  return there.scalar_type() == at::kLong ? within<std::int64_t>(there, range) : within<std::int32_t>(there, range);
}

}  // namespace

IndexRanges::IndexRanges(std::shared_ptr<const Tape> tape) : tape_(std::move(tape)) {
  IndexSearch search(*tape_);
  ranges_ = search.find();
  foreseen_ = search.foreseen();
}

std::string IndexRanges::refused(const std::vector<at::Tensor>& inputs) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const IndexRange& range : ranges_) {
    const Slot& slot = tape_->slots[range.index.index()];
    const Block& block = tape_->blocks[slot.block.index()];
    const at::Tensor& input = inputs.at(static_cast<std::size_t>(block.input));
    if (!input.defined() || !input.has_storage()) continue;
    const at::Tensor indices = make_alias(part_of(input.storage(), span_bytes(input).first, block.bytes), slot.meta);
    if (!fits(indices, range)) return name_with_line(*tape_, tape_->op(range.op));
  }
  return {};
}

bool IndexRanges::may_refuse(const std::vector<at::Tensor>& inputs) const {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return std::ranges::any_of(ranges_, [&](const IndexRange& range) {
    const Slot& slot = tape_->slots[range.index.index()];
    const at::Tensor& input = inputs.at(static_cast<std::size_t>(tape_->blocks[slot.block.index()].input));
    if (!input.defined() || !input.has_storage()) return false;
    return input.dtype() != slot.meta.dtype || !fits(input, range);
  });
}

}  // namespace stowage::runtime
