#include "runtime/torch/hook.h"

#include <c10/core/AutogradState.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "runtime/torch/collectives.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/op_traits.h"

namespace stowage::runtime {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
constexpr auto kKeyBelow = c10::DispatchKey::Fake;  // free for others' use up to torch 2.13

thread_local Interceptor* tl_interceptor = nullptr;
thread_local Level tl_level = Level::kAbove;  // of tl_interceptor
thread_local int tl_leaf_depth = 0;
thread_local int tl_depth_below = 0;
thread_local std::int64_t tl_aside_ns = 0;
thread_local int tl_key_kept = 0;       // keep_attached_key()
thread_local bool tl_only_key = false;  // the thread has kKey, and is not attached
std::atomic<Interceptor*> g_shared{nullptr};

class InLeaf {
 public:
  explicit InLeaf(int& depth) : depth_(depth) { ++depth_; }
  ~InLeaf() { --depth_; }
  InLeaf(const InLeaf&) = delete;
  InLeaf& operator=(const InLeaf&) = delete;

 private:
  int& depth_;
};

Interceptor* interceptor_above() {
  const bool own = tl_interceptor != nullptr && tl_level == Level::kAbove;
  if (own) return tl_interceptor;
  return tl_only_key ? nullptr : g_shared.load(std::memory_order_relaxed);
}

bool is_subclass(const at::Tensor& tensor) {
  return tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python);
}

// A composite that computes on plain memory without inner ops, since nobody wants a gradient of it.
bool is_leaf_itself(const OpTraits& op, const torch::jit::Stack& stack) {
  if (!op.fills_by_itself) return false;
  const at::Tensor& input = stack[stack.size() - op.arguments].toTensor();
  return input.is_cpu() && !is_subclass(input) && !is_differentiated(input);
}

// Not for us: somebody above the kernels will take the op apart and call again. Autocast that has not had its turn
// casts the arguments; modes and subclasses of Python's, and functorch's transforms, see tensors that have no bytes of
// their own.
bool comes_back(const OpTraits& op, c10::DispatchKeySet keys, const torch::jit::Stack& stack) {
  return (op.composite && !is_leaf_itself(op, stack)) || keys.has_any(op.autocasts) ||
         keys.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
}

// FakeTensorMode at work on the inside of an op. C++ also calls it past the dispatcher, where no leaf is under way: a
// saved tensor's shallow copy becomes a detach() in Python.
bool inside_fake_kernel() { return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python); }

bool has_subclass(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto in = [](const c10::IValue& value) {
    if (value.isTensor()) return is_subclass(value.toTensor());
    if (value.isTensorList()) {
      const c10::List<at::Tensor> list = value.toTensorList();
      return std::any_of(list.begin(), list.end(), [](const at::Tensor& t) { return is_subclass(t); });
    }
    if (!value.isOptionalTensorList()) return false;
    const std::vector<std::optional<at::Tensor>> list = value.toOptionalTensorVector();
    return std::any_of(list.begin(), list.end(), [](const auto& t) { return t.has_value() && is_subclass(*t); });
  };
  return std::any_of(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack.end(), in);
}

bool fake_mode_on() {
  return c10::impl::TorchDispatchModeTLS::get_mode(c10::impl::TorchDispatchModeKey::FAKE).has_value();
}

// Part of what a subclass does, or of what PyTorch does to find out what it should do.
bool around_subclass(const Interceptor& interceptor, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return interceptor.looks_inside_subclasses() ? has_subclass(op, stack) || fake_mode_on() : inside_fake_kernel();
}

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet next = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  Interceptor* const interceptor = interceptor_above();
  const OpTraits& traits = traits_of(op);
  const bool passes = interceptor == nullptr || tl_leaf_depth > 0 || traits.marker || comes_back(traits, next, *stack);
  if (passes || around_subclass(*interceptor, op, *stack)) {
    op.redispatchBoxed(next, stack);
  } else {
    interceptor->on_leaf(op, next, stack);
  }
}

void fallback_below(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet next = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKeyBelow);
  // Torch before 2.13 comes here ahead of a dispatch mode of the user's, which may make something else of the op; what
  // it makes is unseen, and the step is refused for it.
  const bool by_a_mode = next.has(c10::DispatchKey::Python);
  const bool mine = tl_interceptor != nullptr && tl_level == Level::kBelow && tl_depth_below == 0 && !by_a_mode;
  const OpTraits& traits = traits_of(op);
  if (mine && !traits.marker && (!traits.composite || is_leaf_itself(traits, *stack))) {
    tl_interceptor->on_leaf(op, next, stack);
  } else {
    op.redispatchBoxed(next, stack);
  }
}

}  // namespace

void run_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (tl_interceptor != nullptr && tl_level == Level::kBelow) {
    const InLeaf in_leaf(tl_depth_below);
    op.redispatchBoxed(keys, stack);
    return;
  }
  const InLeaf in_leaf(tl_leaf_depth);
  if (is_collective(op)) return run_collective(op, stack);
  if (Interceptor* below = g_shared.load(std::memory_order_relaxed)) return below->on_leaf(op, keys, stack);
  op.redispatchBoxed(keys, stack);
}

void run_unseen(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kKey);
  op.redispatchBoxed(keys, stack);
}

Intercept::Intercept(Interceptor& interceptor)
    : key_(interceptor.level() == Level::kAbove ? kKey : kKeyBelow),
      included_before_(c10::impl::tls_is_dispatch_key_included(key_)),
      threads_before_(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
  TORCH_CHECK(tl_interceptor == nullptr, "stowage: a step cannot be recorded inside another one");
  c10::impl::tls_set_dispatch_key_included(key_, true);
  tl_interceptor = &interceptor;
  tl_level = interceptor.level();
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
}

Unseen::Unseen() : above_(kKey), below_(kKeyBelow) { pass_unseen(true); }
Unseen::~Unseen() { pass_unseen(false); }

Intercept::~Intercept() {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(threads_before_);
  if (!included_before_) c10::impl::tls_set_dispatch_key_included(key_, false);
  tl_interceptor = nullptr;
}

WithStepKeys::WithStepKeys(bool limited)
    : limited_(limited), included_before_(c10::impl::tls_is_dispatch_key_included(kKeyBelow)) {
  c10::impl::tls_set_dispatch_key_included(kKeyBelow, true);
  if (limited_) keep_attached_key(true);
}

WithStepKeys::~WithStepKeys() {
  if (limited_) keep_attached_key(false);
  if (!included_before_) c10::impl::tls_set_dispatch_key_included(kKeyBelow, false);
}

SeenAgain::SeenAgain()
    : was_unseen_(c10::impl::tls_is_dispatch_key_excluded(kKey) &&
                  !c10::impl::tls_is_dispatch_key_excluded(kKeyBelow)) {
  if (was_unseen_) c10::impl::tls_set_dispatch_key_excluded(kKey, false);
}

SeenAgain::~SeenAgain() {
  if (was_unseen_) c10::impl::tls_set_dispatch_key_excluded(kKey, true);
}

void pass_unseen(bool passes) {
  tl_depth_below += passes ? 1 : -1;
  tl_leaf_depth += passes ? 1 : -1;
}

void tell_cannot_replay(const std::string& why) {
  if (tl_interceptor != nullptr) tl_interceptor->cannot_replay(why);
}

bool intercepting() { return tl_interceptor != nullptr; }

bool inside_operator() {
  return tl_interceptor != nullptr && (tl_level == Level::kBelow ? tl_depth_below : tl_leaf_depth) > 0;
}

void set_shared_interceptor(Interceptor* interceptor) { g_shared.store(interceptor); }
std::int64_t aside_ns() { return tl_aside_ns; }
void add_aside_ns(std::int64_t ns) { tl_aside_ns += ns; }

void attach_thread(bool attached) {
  tl_only_key = tl_key_kept > 0 && !attached;
  c10::impl::tls_set_dispatch_key_included(kKey, attached || tl_only_key);
}

bool thread_attached() { return !tl_only_key && c10::impl::tls_is_dispatch_key_included(kKey); }

void keep_attached_key(bool kept) {
  const bool attached = thread_attached();
  tl_key_kept = std::max(tl_key_kept + (kept ? 1 : -1), 0);  // a block may end in another thread
  attach_thread(attached);
}

AtHand::AtHand(const c10::Storage& storage) {
  if (!thread_attached()) return;
  by_ = g_shared.load(std::memory_order_relaxed);
  if (by_ != nullptr) number_ = by_->hold(storage);
}

AtHand::~AtHand() {
  if (number_ != 0) by_->release(number_);
}

}  // namespace stowage::runtime

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&stowage::runtime::fallback>());
}

TORCH_LIBRARY_IMPL(_, Fake, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&stowage::runtime::fallback_below>());
}
