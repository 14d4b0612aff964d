#include "runtime/evict/value.h"

#include <algorithm>
#include <utility>

namespace stowage::runtime::evict {
namespace {

constexpr std::size_t kFarEnough = 512;

}  // namespace

void link_reader(Argument& argument, Recipe& recipe, Ref<Value> value) {
  argument.recipe = &recipe;
  argument.value = std::move(value);
  argument.next = argument.value->readers;
  if (argument.next != nullptr) argument.next->previous = &argument;
  argument.value->readers = &argument;
}

void unlink_reader(Argument& argument) {
  if (!argument.value) return;
  if (argument.next != nullptr) argument.next->previous = argument.previous;
  (argument.previous != nullptr ? argument.previous->next : argument.value->readers) = argument.next;
  argument.previous = argument.next = nullptr;
  argument.value = {};
}

Recipe::Recipe(Graph& owner, const c10::OperatorHandle& run, const OpTraits& traits)
    : graph(owner), handle(run), op(&traits) {
  ++graph.recipes;
}

Recipe::~Recipe() {
  for (std::int32_t i = 0; i < argument_count; ++i) unlink_reader(arguments[i]);
  --graph.recipes;
}

Value::Value(Graph& owner) : graph(owner), slot(owner.values_.size()) { owner.values_.push_back(this); }

Value::~Value() {
  moves_out();
  graph.value_dies(*this);
  if (recipe) {
    for (Recipe::Result& result : recipe->results) {
      if (result.value == this) result.value = nullptr;
    }
  }
  graph.values_[slot] = graph.values_.back();
  graph.values_[slot]->slot = slot;
  graph.values_.pop_back();
}

void Value::moves_into(c10::StorageImpl* into) {
  c10::raw::weak_intrusive_ptr::incref(into);
  storage = into;
}

void Value::moves_out() {
  if (storage != nullptr) c10::raw::weak_intrusive_ptr::decref(std::exchange(storage, nullptr));
}

std::string Value::name() const {
  std::string text = made ? "a result of " : "a tensor read by ";
  text += origin != nullptr ? origin->name : std::string("nothing yet");
  return text + " (" + std::to_string(bytes()) + " bytes)";
}

bool Graph::needed(const Value& value) const {
  if (table.dropped() == 0 || value.readers == nullptr) return false;
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

void Graph::lose_recipe(Value& value) {
  if (!value.recipe) return;
  const Ref<Recipe> recipe = std::move(value.recipe);
  for (Recipe::Result& result : recipe->results) {
    if (result.value == &value) result.value = nullptr;
  }
  recipe_lost(value);
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

}  // namespace stowage::runtime::evict
