#include "runtime/evict/value.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/evict/graph.h"
#include "runtime/torch/torch_versions.h"

namespace stowage::runtime::evict {

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

bool complete(const Recipe& recipe) {
  const auto arguments = std::span(recipe.arguments.get(), static_cast<std::size_t>(recipe.argument_count));
  return std::none_of(arguments.begin(), arguments.end(), [](const Argument& argument) {
    return argument.kind == Argument::Kind::kValue && !argument.overwritten && !argument.value;
  });
}

std::int16_t ghost_depth(const Recipe& recipe) {
  int depth = 0;
  for (std::int32_t i = 0; i < recipe.argument_count; ++i) {
    const Value* value = recipe.arguments[i].value.get();
    if (value != nullptr && value->residence() == Residence::kGone) depth = std::max<int>(depth, value->ghost_depth);
  }
  return static_cast<std::int16_t>(depth + 1);
}

Recipe::Recipe(Graph& owner, const c10::OperatorHandle& run, const OpTraits& traits)
    : graph(owner), handle(run), op(&traits) {
  ++graph.recipes;
}

Recipe::~Recipe() {
  for (std::int32_t i = 0; i < argument_count; ++i) unlink_reader(arguments[i]);
  --graph.recipes;
}

Value::Value(Graph& in_graph, State& of_budget) : graph(in_graph), state(of_budget), slot(of_budget.values.size()) {
  state.values.push_back(this);
}

Value::~Value() {
  moves_out();
  graph.value_dies(*this);
  if (recipe) {
    for (Recipe::Result& result : recipe->results) {
      if (result.value == this) result.value = nullptr;
    }
  }
  state.values[slot] = state.values.back();
  state.values[slot]->slot = slot;
  state.values.pop_back();
}

void Value::moves_into(c10::StorageImpl* into) {
  c10::raw::weak_intrusive_ptr::incref(into);
  storage = into;
}

void Value::moves_out() {
  if (storage != nullptr) c10::raw::weak_intrusive_ptr::decref(std::exchange(storage, nullptr));
}

void Value::keep_small(const void* data) {
  if (data == nullptr) return;
  small_copy = state.device.allocate(small_bytes);
  state.device.copy(small_copy.get(), data, small_bytes);
}

bool Value::at_hand() const {
  return there() ||
         (residence() == Residence::kSwapped && storage != nullptr && torch_versions::only_python_has(*storage));
}

std::string Value::name() const {
  std::string text = made ? "a result of " : "a tensor read by ";
  text += origin != nullptr ? origin->name : std::string("nothing yet");
  return text + " (" + std::to_string(bytes()) + " bytes)";
}

}  // namespace stowage::runtime::evict
