#include "runtime/hook.h"

#include <torch/library.h>

#include "runtime/op_traits.h"

namespace stowage::runtime {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local Interceptor* tl_interceptor = nullptr;
thread_local int tl_leaf_depth = 0;

struct InLeaf {
  InLeaf() { ++tl_leaf_depth; }
  ~InLeaf() { --tl_leaf_depth; }
};

// Autocast has not had its turn: its kernel for the op will cast the arguments and call the op again.
bool autocast_pending(const c10::OperatorHandle& op, c10::DispatchKeySet keys) {
  return keys.has(c10::DispatchKey::AutocastCPU) && op.hasKernelForDispatchKey(c10::DispatchKey::AutocastCPU);
}

// FakeTensorMode at work on the inside of an op. C++ also calls it past the dispatcher, where no leaf is under way: a saved tensor's
// shallow copy becomes a detach() in Python.
bool inside_fake_kernel() { return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Python); }

void fallback(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet next = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey);
  const bool passes = tl_interceptor == nullptr || tl_leaf_depth > 0 || is_marker(op) || is_composite(op) ||
                      autocast_pending(op, next) || inside_fake_kernel();
  if (passes) {
    op.redispatchBoxed(next, stack);
  } else {
    tl_interceptor->on_leaf(op, next, stack);
  }
}

}  // namespace

void run_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const InLeaf in_leaf;
  op.redispatchBoxed(keys, stack);
}

Intercept::Intercept(Interceptor& interceptor) : key_(kKey) {
  TORCH_CHECK(tl_interceptor == nullptr, "stowage: a step cannot be recorded inside another one");
  tl_interceptor = &interceptor;
}

Intercept::~Intercept() { tl_interceptor = nullptr; }

bool intercepting() { return tl_interceptor != nullptr; }

}  // namespace stowage::runtime

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&stowage::runtime::fallback>());
}
