#include "runtime/replay/data_guards.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <cstring>
#include <set>

#include "runtime/replay/plain_run.h"

namespace stowage::runtime {

std::string changed_decision(const Tape& tape, const std::vector<at::Tensor>& inputs) {
  if (tape.data_guards.empty()) return {};
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const c10::AutoGradMode grad_mode_restorer(c10::GradMode::is_enabled());
  PlainRun run(tape, inputs);
  std::set<std::int32_t> done;
  torch::jit::Stack stack;
  for (const DataGuard& guard : tape.data_guards) {
    for (const std::int32_t i : guard.needs) {
      const TapeOp& op = tape.ops[static_cast<std::size_t>(i)];
      if (op.role == TapeOp::Role::kKernel && done.insert(i).second) run.call(op, stack);
    }
    if (guard.tensor.valid()) {
      const at::Tensor elements = run.tensor(guard.tensor).contiguous().resolve_conj().resolve_neg().cpu();
      const bool same = elements.nbytes() == guard.content.size() &&
                        (guard.content.empty() ||
                         std::memcmp(elements.const_data_ptr(), guard.content.data(), guard.content.size()) == 0);
      if (!same) return guard.where + ": a tensor that is read on the host";
      continue;
    }
    const TapeOp& asks = tape.ops[static_cast<std::size_t>(guard.op)];
    run.call(asks, stack);
    if (stack[0] != asks.values[0]) {
      return (asks.line >= 0 ? tape.lines[static_cast<std::size_t>(asks.line)] + ": " : std::string()) +
             "a decision on the arguments' data";
    }
  }
  return {};
}

}  // namespace stowage::runtime
