// Ops as the program runs them: the hook brings each here.
//
//   op ──► bring its operands back ──► run ──► note its results and how to make them again ──► advice: fetch, copy out early
//                                       │
//                                   allocate ── would pass the limit ──► make_room (room.h)
//
// ops.cpp: the op with its operands there. notes.cpp: what is known of its results. A list op whose operands are not all
// there, or whose results may not all fit beside them, goes element by element.
#pragma once

#include "runtime/evict/call.h"
#include "runtime/evict/kernel_costs.h"
#include "runtime/evict/outside.h"
#include "runtime/evict/restorer.h"
#include "runtime/evict/running.h"
#include "runtime/evict/updates.h"
#include "runtime/torch/hook.h"

namespace stowage::runtime::evict {

class Ops final : public Interceptor {
 public:
  Ops(State& state, Awake& awake, Graph& graph, Ahead& ahead, Restorer& restorer, Updates& updates, Outside& outside)
      : state_(state),
        awake_(awake),
        graph_(graph),
        ahead_(ahead),
        restorer_(restorer),
        updates_(updates),
        outside_(outside) {}

  void on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) override;
  std::int64_t hold(const c10::Storage& storage) override { return outside_.hold(storage.unsafeGetStorageImpl()); }
  void release(std::int64_t number) override { outside_.release(number); }

 private:
  void run(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);
  void keep_parts(const torch::jit::Stack& stack, std::size_t count);
  bool run_split(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                 torch::jit::Stack* stack);
  void run_elsewhere(const c10::OperatorHandle& handle, const OpTraits& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack);
  void bring_operands(const OpTraits& op, Operands& operands, Running& running);
  bool find_values(const OpTraits& op, Operands& operands, Running& running);
  const std::shared_ptr<const KernelSettings>& settings();

  // notes.cpp
  void begin_op(const OpTraits& op, const Operands& operands);
  void note_writes(const Operands& operands, Running& running, bool undoing);
  [[nodiscard]] bool reads_what_changes(const Operands& operands) const;
  void overwrite(const OpTraits& op, const Operands& operands, const torch::jit::Stack& stack, bool& rememberable);
  void tell_readers(const Value& value);
  void take_notes(const OpTraits& op, const torch::jit::Stack& stack, Running& running, std::int64_t took_ns);
  void forget_met(const Written& written);
  void note_results(const OpTraits& op, const torch::jit::Stack& stack, const Running& running, std::int64_t took_ns);

  State& state_;
  Awake& awake_;
  Graph& graph_;
  Ahead& ahead_;
  Restorer& restorer_;
  Updates& updates_;
  Outside& outside_;
  KernelCosts costs_;
  std::shared_ptr<const KernelSettings> settings_;  // of the latest op that is remembered
};

}  // namespace stowage::runtime::evict
