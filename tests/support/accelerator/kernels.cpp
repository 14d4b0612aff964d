// The boxed kernel of all ops (see kernels.h).
#include "kernels.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "generator.h"
#include "graphs.h"
#include "kernel_memory.h"
#include "mapping.h"
#include "order.h"
#include "settings.h"
#include "streams.h"
#include "twins.h"

namespace standin {
namespace {

// Ops that take host tensors beside device tensors on a GPU, too.
bool may_mix(const std::string& name) {
  static const std::set<std::string> names{
      "aten::copy_", "aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index", "aten::set_"};
  return names.count(name) > 0;
}

bool takes_workspace(const std::string& name) {
  static const std::set<std::string> names{"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::addmv"};
  return names.count(name) > 0;
}

// As CUDA's matrix products do: the first on each stream takes some memory through the allocator, which it keeps.
void keep_workspace() {
  static std::mutex mutex;
  static auto* const kept = new std::map<c10::StreamId, c10::DataPtr>();
  const std::int64_t bytes = settings().workspace_bytes;
  const std::lock_guard lock(mutex);
  if (bytes == 0) {
    kept->clear();
  } else if (kept->count(current_stream()) == 0) {
    (*kept)[current_stream()] = c10::GetAllocator(kType)->allocate(static_cast<std::size_t>(bytes));
  }
}

bool is_generator(const c10::Argument& argument) {
  const c10::TypePtr& type = argument.type();
  if (type->kind() == c10::TypeKind::GeneratorType) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         type->castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

bool touches_no_bytes(const c10::FunctionSchema& schema) {
  static const std::set<std::string> names{"aten::empty", "aten::empty_strided", "aten::resize_", "aten::set_"};
  const auto views = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  return names.count(schema.name()) > 0 || std::ranges::any_of(schema.returns(), views);
}

bool is_written(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  if (alias == nullptr) return false;
  const auto& inner = alias->containedTypes();
  return alias->isWrite() || std::ranges::any_of(inner, [](const auto& a) { return a.isWrite(); });
}

// The host knows something that the kernel found out, so it has waited.
bool host_learns(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

// One call: its arguments made the CPU's, and what has to be undone or done after.
struct Call {
  Twins twins;
  at::Generator drawn_from;
  c10::IValue* generator = nullptr;  // the argument
  bool makes = false;                // a tensor of the device, by an argument that says so
  bool ordered = false;              // its accesses are checked (order.h)
  Capture* capture = nullptr;        // it is noted there, as this
  Node* node = nullptr;
  std::vector<const void*> given;  // storages of arguments

  void touches(const at::Tensor& tensor, bool write) const {
    if (capture != nullptr) return (write ? node->writes : node->reads).push_back(order::bytes_of(tensor));
    write ? order::writes(tensor) : order::reads(tensor);
  }

  at::Tensor to_cpu(const at::Tensor& tensor, bool written) {
    if (ordered && tensor.defined() && tensor.has_storage()) {
      given.push_back(tensor.storage().unsafeGetStorageImpl());
      touches(tensor, written);
    }
    const at::Tensor twin = twins.to_cpu(tensor);
    if (capture != nullptr && twin.defined() && !twin.is_same(tensor))  // some write without saying so (batch norm)
      capture->keep({twin.storage().mutable_data(), twin.storage().nbytes()});
    return twin;
  }

  at::Tensor to_device(const at::Tensor& cpu) {
    at::Tensor tensor = twins.to_device(cpu);
    if (ordered && tensor.defined() && tensor.has_storage() &&
        std::ranges::count(given, static_cast<const void*>(tensor.storage().unsafeGetStorageImpl())) == 0) {
      touches(tensor, /*write=*/true);
    }
    return tensor;
  }

  void to_cpu(const c10::Argument& argument, c10::IValue& v) {
    if (v.isTensor()) {
      v = to_cpu(v.toTensor(), is_written(argument));
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(to_cpu(t, is_written(argument)));
      v = std::move(list);
    } else if (v.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& t : v.toOptionalTensorVector()) {
        list.push_back(t.has_value() ? std::optional(to_cpu(*t, /*written=*/false)) : t);
      }
      v = std::move(list);
    } else if (v.isStorage()) {
      if (v.toStorage().device_type() == kType) v = twins.to_cpu(v.toStorage());
    } else if (v.isDevice()) {
      if (v.toDevice().type() != kType) return;
      v = c10::Device(c10::kCPU);
      makes = true;
    } else if (is_generator(argument)) {
      generator = &v;
      if (v.isGenerator()) drawn_from = v.toGenerator();
    }
  }

  void to_device(c10::IValue& v) {
    if (v.isTensor()) {
      v = to_device(v.toTensor());
    } else if (v.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : v.toTensorVector()) list.push_back(to_device(t));
      v = std::move(list);
    }
  }
};

}  // namespace

void call_cpu_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;  // what the kernel calls is plain work of the CPU
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

void run_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  TORCH_CHECK(!forked(), "Cannot re-initialize the stand-in in a forked subprocess");
  const c10::FunctionSchema& schema = op.schema();
  counters().kernels.fetch_add(1);
  Node node{op, {}, {}, {}, {}, {}};
  Call call;
  call.capture = capturing();
  call.node = &node;
  if (call.capture != nullptr && is_not_noted(schema.name())) refuse_while_capturing(schema.name());
  if (host_learns(op)) refuse_while_capturing(schema.name());
  if (call.capture == nullptr) queue(current_stream()).wait();
  if (takes_workspace(schema.name())) keep_workspace();
  if (call.capture != nullptr && settings().captures_take) call.capture->take();

  call.ordered = (settings().check_order || call.capture != nullptr) && !touches_no_bytes(schema);
  if (call.ordered && call.capture == nullptr) order::begin_operation(schema.name());
  const std::size_t first = stack->size() - schema.arguments().size();
  for (std::size_t i = first; i < stack->size(); ++i) call.to_cpu(schema.arguments()[i - first], (*stack)[i]);
  if (settings().strict && call.twins.any_host_operand() && call.twins.any_device() && !may_mix(schema.name())) {
    counters().refusals.fetch_add(1);
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", kDevice,
                " and cpu! (", op.operator_name(), ")");
  }
  const bool ours = call.twins.any_device() || call.makes;
  std::optional<Draw> draw;
  if (call.generator != nullptr && (ours || call.drawn_from.defined())) {
    TORCH_CHECK(!call.drawn_from.defined() || call.drawn_from.device().type() == kType, "Expected a '", kDevice.type(),
                "' device type for generator but found '", call.drawn_from.device().type(), "'");
    draw.emplace(call.drawn_from, /*lend=*/false);
    *call.generator = draw->numbers();
  } else if (ours && op.hasTag(at::Tag::nondeterministic_seeded)) {
    draw.emplace(at::Generator(), /*lend=*/true);
  }
  if (!ours) call.capture = nullptr;
  if (call.capture != nullptr) {
    if (draw) refuse_while_capturing("random numbers");
    node.arguments.assign(stack->begin() + static_cast<std::ptrdiff_t>(first), stack->end());
    MadeStorages made;
    for (c10::IValue& argument : node.arguments) argument = twins_of(argument, made);
  }
  {
    const InKernel in_kernel(call.capture, &node.taken);
    call_cpu_kernel(op, stack);
  }
  if (!ours) return;
  call.twins.settle();
  const auto place = [&](const at::Tensor& result) {
    Piece piece;
    if (result.device().type() == kType && result.has_storage())
      piece = {kernels_view(result.storage().mutable_data()), result.storage().nbytes()};
    node.results.push_back(piece);
  };
  for (std::size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    call.to_device((*stack)[i]);
    if (call.capture != nullptr) for_each_result((*stack)[i], place);
  }
  if (call.capture != nullptr) call.capture->add(std::move(node));
  if (call.ordered && host_learns(op)) order::host_waits(order::given_to(current_stream()));
}

}  // namespace standin

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&standin::run_kernel>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  // Composites that look for the device's own kernels inside are taken whole, beside what has a CPU kernel.
  std::set<std::string> names{"aten::convolution", "aten::convolution_backward"};
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (op.has_value() && op->hasKernelForDispatchKey(c10::DispatchKey::CPU)) names.insert(c10::toString(name));
  }
  for (const char* own : {"aten::copy_", "aten::record_stream"}) names.erase(own);
  for (const std::string& name : names) {
    m.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&standin::run_kernel>());
  }
}
