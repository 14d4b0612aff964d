#include "runtime/evict/recompute.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "runtime/evict/block.h"
#include "runtime/evict/call.h"
#include "runtime/evict/restorer.h"
#include "runtime/evict/running.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {
namespace {

// By argument. Once the lock is free, another thread may find that no use is left for the recipe, and empty it.
Values operands_of(const Recipe& recipe) {
  Values operands;
  for (std::int32_t i = 0; i < recipe.argument_count; ++i) operands.push_back(recipe.arguments[i].value);
  return operands;
}

}  // namespace

void Recompute::run(Value& value, int depth) {
  Ref<Recipe> recipe;
  Values operands;
  Values inputs;  // each once
  {
    const std::lock_guard lock(state_.lock);
    TORCH_CHECK_WITH(OutOfMemoryError, depth < kDeepest && --runs_left_ > 0, "stowage: the limit is so short that ",
                     value.name(), " would be recomputed again and again; ", room_.explain(0));
    state_.stats.deepest_recompute = std::max<std::int64_t>(state_.stats.deepest_recompute, depth);
    TORCH_CHECK(value.recipe && complete(*value.recipe), "stowage: ", value.name(), " cannot be brought back");
    recipe = value.recipe;
    operands = operands_of(*recipe);
    for (const Ref<Value>& operand : operands) {
      if (operand && std::find(inputs.begin(), inputs.end(), operand) == inputs.end()) inputs.push_back(operand);
    }
  }
  std::vector<StoragePtr> storages;
  Values read;
  torch::jit::Stack stack;
  bool pinned = false;
  const auto clean_up = [&] {
    stack.clear();
    storages.clear();
    const std::lock_guard lock(state_.lock);
    end_reading(read);
    if (pinned) unpin(state_, inputs);
    operands.clear();
    inputs.clear();
    recipe = {};
  };
  try {
    while (storages.empty()) {
      restorer_.bring(inputs, depth + 1);
      pinned = true;
      storages = storages_for(*recipe, operands, read);
      if (!storages.empty() || recipe->argument_count == 0) break;
      // Another thread has written to one, or is resizing its storage this very moment: it is given its turn, and all
      // are brought again.
      {
        const std::lock_guard lock(state_.lock);
        end_reading(read);
        unpin(state_, inputs);
        pinned = false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    stack = stack_for(*recipe, storages);
    const std::int64_t away_ns = waited_ns();
    const std::int64_t start = now_ns();
    rerun(*recipe, stack, state_.options.replay_generator);
    const std::int64_t host_ns = now_ns() - start - (waited_ns() - away_ns);
    const std::int64_t took_ns = state_.on_host() ? host_ns : std::max(host_ns, recipe->cost_ns);
    take_results(*recipe, stack, storages, value, took_ns);
  } catch (...) {
    clean_up();
    throw;
  }
  clean_up();
}

// The blocks that the op has filled become those of the value wanted, and of its other results that are dropped.
void Recompute::take_results(Recipe& recipe, const torch::jit::Stack& stack, const std::vector<StoragePtr>& storages,
                             Value& wanted, std::int64_t took_ns) {
  c10::SmallVector<const at::Tensor*, 4> tensors;
  collect_results(*recipe.op, stack, tensors);
  const std::lock_guard lock(state_.lock);
  ++state_.stats.recomputed_ops;
  state_.stats.recompute_ns += took_ns;
  for (const Recipe::Result& result : recipe.results) {
    Value* value = result.value;
    if (value == nullptr || value->recipe.get() != &recipe) continue;
    graph_.bury_if_dead(*value);
    if (value != &wanted && value->residence() != Residence::kDropped) continue;
    if (value->resident()) continue;
    c10::StorageImpl* storage = result.position >= 0 ? storage_of(*tensors[static_cast<std::size_t>(result.position)])
                                                     : storages[static_cast<std::size_t>(-1 - result.position)].get();
    void** mark = mark_in(*storage);
    TORCH_CHECK(mark != nullptr && *mark == nullptr && static_cast<std::int64_t>(storage->nbytes()) == value->bytes(),
                "stowage: ", value->name(), " came out differently when it was made again");
    c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    c10::DataPtr block = std::move(data);
    data = c10::DataPtr();
    if (put(*value, block)) {
      state_.table.restored(value->id, How::kDrop, value == &wanted ? took_ns : 0);
    } else if (value == &wanted) {
      keep_on_host(wanted, block.get());
    } else {
      continue;
    }
    state_.record(Event::Kind::kRecompute, value->bytes(), recipe.op);
  }
  TORCH_CHECK(wanted.resident() || wanted.residence() == Residence::kSwapped, "stowage: ", wanted.name(),
              " could not be made again");
}

// What was made again, and cannot be put into its storage.
void Recompute::keep_on_host(Value& value, const void* data) {
  TORCH_CHECK_WITH(OutOfMemoryError, copies_.copy_out(value, data), "stowage: the host store is full, and ",
                   value.name(), " is needed there");
  state_.table.restored(value.id, How::kDrop, 0);
  state_.table.released(value.id, How::kSwap);
}

}  // namespace stowage::runtime::evict
