// Decisions on data: `if mask.all():` in the step's Python. Where such a number follows from arguments and residents as
// they are before the step, a small part of the tape works it out before each call:
//
//   argument mask ──all──► t ──item──► True     as when the step was recorded?  then this recording may serve
// What leads to it may hold numbers of Python's, too: `if (x > threshold).any():`. Those are on the tape as the latest
// call has given them, so the same part works out what this call decides, once its Python has come there (Matcher).
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <exception>
#include <map>
#include <string>
#include <vector>

#include "runtime/record/tape.h"
#include "runtime/replay/plain_run.h"

namespace stowage::runtime {

// What guards ask for, from `inputs` by argument number, residents as they are before the step, and the numbers and
// constants that the tape holds now. Autograd is out of the way while one is alive.
class WorkedOut {
 public:
  WorkedOut(const Tape& tape, const std::vector<at::Tensor>& inputs) : tape_(tape), run_(tape, inputs) {}
  c10::IValue number(const DataGuard& guard);
  std::string content(const DataGuard& guard);
  // As the tape has it?
  bool holds(const DataGuard& guard);

 private:
  void lead_to(const DataGuard& guard);

  const at::AutoDispatchBelowADInplaceOrView below_autograd_;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast_{c10::autocast_dispatch_keyset};
  const c10::AutoGradMode grad_mode_restorer_{c10::GradMode::is_enabled()};
  const Tape& tape_;
  PlainRun run_;
  std::map<std::int32_t, bool> done_;  // by op; false: it has raised, or has made another shape
  torch::jit::Stack stack_;
};

// What the guards of a tape say of a call's arguments.
struct Decided {
  std::string other;  // what is another than on the tape, "" for nothing
  bool serves =
      true;  // all the same, the tape may hold what Python will do: only numbers are others, which it would be
             // given, or what it knows of Python's numbers is old
};

// `inputs` by argument number. `other_numbers`: Python is known to have others than the tape holds. Costs what the ops
// cost that lead to the numbers; memory for their results comes from the allocator.
Decided decided(const Tape& tape, const std::vector<at::Tensor>& inputs, bool other_numbers);

}  // namespace stowage::runtime
