#include "runtime/torch/op_traits.h"

#include <ATen/core/enum_tag.h>

#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "runtime/torch/op_facts.h"

namespace stowage::runtime {
namespace {

// Alias their argument without saying so in the schema, or only tell something about it.
constexpr std::array<std::string_view, 8> kUnmarkedViews = {
    "aten::_unsafe_view", "aten::lift_fresh",   "aten::_reshape_alias", "aten::unsafe_split",
    "aten::unsafe_chunk", "aten::is_same_size", "aten::result_type",    "aten::unsafe_split_with_sizes"};

bool only_views(const c10::FunctionSchema& schema) {
  for (const std::string_view name : kUnmarkedViews) {
    if (schema.name() == name) return true;
  }
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) return false;
  }
  bool view = false;
  for (const c10::Argument& result : schema.returns()) {
    if (result.alias_info() == nullptr) return false;
    view = true;
  }
  return view;
}

// In training it leaves its running statistics changed, and its schema does not say so.
void look_at_batch_norm(const c10::FunctionSchema& schema, OpTraits& traits) {
  if (schema.name() != "aten::native_batch_norm" || !schema.overload_name().empty()) return;
  traits.batch_norm = true;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "training") traits.training = static_cast<std::int16_t>(i);
  }
}

std::unique_ptr<OpTraits> look_at(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  auto traits = std::make_unique<OpTraits>();
  traits->name = full_name(op);
  traits->arguments = static_cast<std::uint16_t>(schema.arguments().size());
  traits->returns = static_cast<std::uint16_t>(schema.returns().size());
  traits->marker = is_marker(op);
  traits->composite = is_composite(op);
  traits->fills_by_itself = traits->composite && fills_by_itself(op);
  for (const c10::DispatchKey key : c10::autocast_dispatch_keyset) {
    if (op.hasKernelForDispatchKey(key)) traits->autocasts = traits->autocasts.add(key);
  }
  traits->view = only_views(schema);
  traits->any_order = adds_in_any_order(op);
  traits->draws = draws_random_numbers(op);
  traits->lists = is_elementwise_list_op(op);
  const bool own_kernel = op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
                          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
                          op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional);
  traits->replayable = (own_kernel || traits->fills_by_itself) && schema.name().starts_with("aten::") &&
                       !changes_metadata(op) && !reads_scalar(op) && schema.arguments().size() <= 64;
  look_at_batch_norm(schema, *traits);
  for (std::size_t i = 0; i < schema.arguments().size() && i < 64; ++i) {
    if (stowage::runtime::writes_argument(op, i)) traits->writes |= std::uint64_t{1} << i;
    if (stowage::runtime::reads_only_shape(op, i)) traits->shape_only |= std::uint64_t{1} << i;
  }
  return traits;
}

const OpTraits& look_up(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<const void*, std::unique_ptr<OpTraits>>();
  const std::lock_guard lock(mutex);
  std::unique_ptr<OpTraits>& traits = known[&op.schema()];
  if (!traits) traits = look_at(op);
  return *traits;
}

struct Remembered {
  const void* schema = nullptr;
  const OpTraits* traits = nullptr;
};
thread_local std::array<Remembered, 512> tl_remembered;

}  // namespace

const OpTraits& traits_of(const c10::OperatorHandle& op) {
  const void* schema = &op.schema();
  Remembered& slot = tl_remembered[(reinterpret_cast<std::uintptr_t>(schema) >> 6) % tl_remembered.size()];
  if (slot.schema != schema) slot = {schema, &look_up(op)};
  return *slot.traits;
}

}  // namespace stowage::runtime
