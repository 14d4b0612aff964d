#include "runtime/evict/graph.h"

#include <algorithm>
#include <utility>

namespace stowage::runtime::evict {
namespace {

constexpr std::size_t kFarEnough = 512;

}  // namespace

bool Graph::needed(const Value& value) const {
  if (state_.table.dropped() == 0 || value.readers == nullptr) return false;
  std::vector<const Value*> seen;
  return needed(value, seen);
}

bool Graph::needed(const Value& value, std::vector<const Value*>& seen) const {
  if (std::find(seen.begin(), seen.end(), &value) != seen.end()) return false;
  if (seen.size() == kFarEnough) return true;  // to keep bytes for nothing is only a waste
  seen.push_back(&value);
  for (const Argument* reader = value.readers; reader != nullptr; reader = reader->next) {
    for (const Recipe::Result& result : reader->recipe->results) {
      const Value* made = result.value;
      if (made == nullptr || made->recipe.get() != reader->recipe) continue;
      if (made->residence() == Residence::kDropped) return true;
      if (made->residence() == Residence::kGone && needed(*made, seen)) return true;
    }
  }
  return false;
}

void Graph::forget_readers(Value& value) {
  std::vector<Ref<Value>> without_bytes = {Ref<Value>(&value)};
  while (!without_bytes.empty()) {
    const Ref<Value> lost = std::move(without_bytes.back());
    without_bytes.pop_back();
    while (lost->readers != nullptr) {
      const Ref<Recipe> recipe(lost->readers->recipe);
      for (Recipe::Result& result : recipe->results) {
        Value* made = result.value;
        if (made == nullptr || made->recipe.get() != recipe.get()) continue;
        const Ref<Value> held(made);
        lose_recipe(*made);
        if (made->residence() == Residence::kGone && !made->small_copy) without_bytes.push_back(held);
      }
      for (std::int32_t i = 0; i < recipe->argument_count; ++i) unlink_reader(recipe->arguments[i]);
    }
  }
}

void Graph::give_recipe(Value& value, const Ref<Recipe>& recipe, std::int32_t position, std::int64_t took_ns) {
  c10::SmallVector<ValueId, 8> parents;
  for (std::int32_t i = 0; i < recipe->argument_count; ++i) {
    const Value* parent = recipe->arguments[i].value.get();
    if (parent != nullptr && !parent->small() &&
        std::find(parents.begin(), parents.end(), parent->id) == parents.end()) {
      parents.push_back(parent->id);
    }
  }
  recipe->results.push_back({&value, position});
  value.recipe = recipe;
  try {
    state_.table.recipe(value.id, took_ns, {parents.data(), parents.size()});
  } catch (...) {
    lose_recipe(value);
    throw;
  }
}

void Graph::lose_recipe(Value& value) {
  if (!value.recipe) return;
  const Ref<Recipe> recipe = std::move(value.recipe);
  for (Recipe::Result& result : recipe->results) {
    if (result.value == &value) result.value = nullptr;
  }
  ++state_.stats.lost_recipes;
  if (!value.small()) state_.table.lost_recipe(value.id);
}

}  // namespace stowage::runtime::evict
