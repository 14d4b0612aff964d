#include "runtime/replay/tile_rows.h"

#include "runtime/replay/kernel_table.h"

namespace stowage::runtime {

std::int64_t numbers_of(const TensorMeta& meta) {
  std::int64_t count = 1;
  for (const std::int64_t size : meta.sizes) count *= size;
  return count;
}

std::optional<TensorMeta> folded(const TensorMeta& meta, std::size_t lead) {
  if (meta.conjugated || meta.negated) return {};
  TensorMeta out = meta;
  std::int64_t count = 1, stride = 0;
  bool first = true;
  for (std::size_t d = lead; d-- > 0;) {
    if (meta.sizes[d] == 1) continue;
    if (first) {
      stride = meta.strides[d];
      first = false;
    } else if (meta.strides[d] != stride * count) {
      return {};
    }
    count *= meta.sizes[d];
  }
  const auto at = static_cast<std::ptrdiff_t>(lead);
  out.sizes.assign(meta.sizes.begin() + at, meta.sizes.end());
  out.strides.assign(meta.strides.begin() + at, meta.strides.end());
  out.sizes.insert(out.sizes.begin(), count);
  out.strides.insert(out.strides.begin(), stride);
  return out;
}

std::optional<TensorMeta> rows_first(const TensorMeta& meta, std::int64_t rows) {
  std::int64_t count = 1;
  for (std::size_t lead = 1; lead <= meta.sizes.size(); ++lead) {
    count *= meta.sizes[lead - 1];
    if (count == rows) return lead + 1 < meta.sizes.size() ? std::nullopt : folded(meta, lead);
  }
  return {};
}

bool fills_by_row(const TensorMeta& rows, const Block& block) {
  const std::int64_t width = rows.sizes.size() == 2 ? rows.sizes[1] : 1;
  const bool dense = rows.storage_offset == 0 && rows.strides[0] == width && (width == 1 || rows.strides.back() == 1);
  return dense && numbers_of(rows) * bytes_each(rows) == block.bytes;
}

std::string functional_name(const std::string& name) {
  const std::size_t dot = name.find('.');
  const std::string base = name.substr(0, dot);
  if (base.empty() || base.back() != '_') return {};
  return base.substr(0, base.size() - 1) + (dot == std::string::npos ? "" : name.substr(dot));
}

bool is_elementwise(const std::string& name) {
  if (name.starts_with("aten::_foreach") || name.starts_with("aten::native_dropout")) return false;
  const KernelFacts& facts = facts_named(name);
  return facts.in_place == InPlace::kByElement || facts.in_slices == InSlices::kElements || name == "aten::_to_copy" ||
         name == "aten::clone" || name == "aten::copy" || name == "aten::masked_fill.Tensor";
}

int product_argument(const std::string& name) { return name == "aten::mm" ? 0 : name == "aten::addmm" ? 1 : -1; }

int row_softmax_argument(const std::string& name) {
  if (name == "aten::_log_softmax" || name == "aten::_softmax") return 1;
  return name == "aten::_log_softmax_backward_data" || name == "aten::_softmax_backward_data" ? 2 : -1;
}

bool reduces(const std::string& name) {
  return name == "aten::sum.dim_IntList" || name == "aten::mean.dim" || name == "aten::logsumexp" ||
         name == "aten::amax" || name == "aten::argmax";
}

}  // namespace stowage::runtime
