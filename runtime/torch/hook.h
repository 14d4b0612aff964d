// The dispatcher hook: boxed fallbacks that see every operator of forward, backward and optimizer, at one of two
// levels.
//
//   user's Python ──► TESTING_ONLY_GenericMode ──► functorch ──► autocast ──► autograd ──► conjugation ──► Fake ──► kernel
//                     kAbove: what the user calls                                                          kBelow: what runs
//
// They are registered once and cost nothing until a thread has an interceptor. A composite op is redispatched and its
// inner ops come back; above, so is an op that autocast is about to rewrite. What is left is a leaf: the interceptor
// decides what happens to it, and while it runs, nested calls pass unseen. Below, everything that autograd calls for
// itself is a leaf of its own, at the moment when it runs: the copy of x that x.mul_(y) saves, what saved-tensor hooks
// do. Tensors are plain there: neither functorch's, nor conjugated or negated unless the kernel wants them so. Above,
// FakeTensors and DTensors are still themselves.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstdint>
#include <string>

namespace stowage::runtime {

enum class Level : std::uint8_t { kAbove, kBelow };

class Interceptor {
 public:
  virtual ~Interceptor() = default;
  [[nodiscard]] virtual Level level() const { return Level::kAbove; }
  // A leaf op with its arguments on the stack. Must leave its returns there. `keys` is what to redispatch with.
  virtual void on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) = 0;
  // True: an op on a tensor subclass (DTensor) is no leaf; those that it makes of plain tensors are. What PyTorch works
  // out on fake tensors meanwhile (shapes, shardings) passes unseen.
  [[nodiscard]] virtual bool looks_inside_subclasses() const { return false; }
  // The step does something that no replay can do.
  virtual void cannot_replay(const std::string& why) { (void)why; }
  // Of a shared one: the storage's bytes are there, and stay until release() of the number returned. 0: they stay anyway.
  virtual std::int64_t hold(const c10::Storage& storage) { return (void)storage, 0; }
  virtual void release(std::int64_t number) { (void)number; }
};

// Runs the op as eager would, with nested calls unseen by interceptors of its level.
void run_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// While alive, the calling thread (and autograd's threads that work for it) reports its leaf ops to `interceptor`.
// At most one per thread. Meanwhile autograd works on this thread alone: it would give an accelerator's backward pass to a
// thread of its own, where neither the interceptor nor a plan that is armed would see it. (What PyTorch can take along,
// ThreadLocalDebugInfo, costs a look-up in each allocation; the order of the operators is the same.)
class Intercept {
 public:
  explicit Intercept(Interceptor& interceptor);
  ~Intercept();
  Intercept(const Intercept&) = delete;
  Intercept& operator=(const Intercept&) = delete;

 private:
  c10::DispatchKey key_;
  // PyTorch's own guard would put back all keys: an eager budget that was left meanwhile would see the thread again
  bool included_before_;
  bool threads_before_;
};

// While alive, no interceptor of this thread sees its ops, whatever is done to the dispatch keys meanwhile.
class Unseen {
 public:
  Unseen();
  ~Unseen();
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  c10::impl::ExcludeDispatchKeyGuard above_, below_;
};

// While alive, the calling thread's tensors have the dispatch keys that they have while a step is recorded or matched,
// though nobody listens: torch.compile's guards compare these keys, and would compile for either anew. `limited`: of a
// step that has a budget, as they are while that watches.
class WithStepKeys {
 public:
  explicit WithStepKeys(bool limited);
  ~WithStepKeys();
  WithStepKeys(const WithStepKeys&) = delete;
  WithStepKeys& operator=(const WithStepKeys&) = delete;

 private:
  bool limited_;
  bool included_before_;
};

// While alive, what the calling thread does inside an op comes to the shared interceptor, as if between two ops: the
// program's own code runs there (a hook of saved tensors).
class SeenAgain {
 public:
  SeenAgain();
  ~SeenAgain();
  SeenAgain(const SeenAgain&) = delete;
  SeenAgain& operator=(const SeenAgain&) = delete;

 private:
  bool was_unseen_;
};

// From true on, until false (as often), the calling thread has the dispatch key of an attached one, whether it is or not.
void keep_attached_key(bool kept);

// Between true and false, the ops of this thread pass its own Intercept unseen, as those within a leaf do; the thread's
// dispatch keys stay as they are.
void pass_unseen(bool passes);

// True while an Intercept is alive on this thread.
bool intercepting();

// Does this thread run the kernel of an operator that its Intercept has seen?
bool inside_operator();

// Tells the interceptor of this thread, where there is one, what its step does that no replay can do.
void tell_cannot_replay(const std::string& why);

// Serves, above autograd, every thread that is attached, below that thread's own Intercept: a step can be recorded
// under an eager budget. nullptr: none.
void set_shared_interceptor(Interceptor* interceptor);

// What it does on the calling thread beside running the ops (bringing tensors back), in nanoseconds so far. It adds to
// that itself.
std::int64_t aside_ns();
void add_aside_ns(std::int64_t ns);

// The calling thread (and autograd's threads that work for it) reports to the shared interceptor.
void attach_thread(bool attached);
bool thread_attached();

// While alive, the bytes of a storage may be read past the dispatcher: where the thread is attached, the shared interceptor
// has brought them back, and does not let go of them.
class AtHand {
 public:
  explicit AtHand(const c10::Storage& storage);
  ~AtHand();
  AtHand(const AtHand&) = delete;
  AtHand& operator=(const AtHand&) = delete;

 private:
  Interceptor* by_ = nullptr;
  std::int64_t number_ = 0;
};

// Runs the op as eager would; what it calls does not come to the hook at all.
void run_unseen(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

}  // namespace stowage::runtime
