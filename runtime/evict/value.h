// Values and recipes: what the storages of a program hold, and how to make it again.
//
//   storage S   ── v0 ──relu_──► v1            a value is the content of a storage after one op, and never changes
//                  ▲               ▲
//   recipe of v0 ──┘  recipe of v1 ┴── reads v0, though S has moved on: v0 is a ghost now, no bytes, only a recipe
//
// Where a value is, its size and its pins stand in its row of the table (stowage/value_table.h), and nowhere else. Here
// is what the mechanism needs to act: the storage, the recipe, the copy on the host. A value is held by its storage, by
// the recipes that read it, and by whoever works with it; a recipe by its results. Everything here is protected by the
// lock of the budget.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/evict/ref.h"
#include "runtime/evict/state.h"
#include "runtime/memory/link.h"
#include "runtime/torch/generator.h"
#include "runtime/torch/kernel_settings.h"
#include "runtime/torch/op_traits.h"

namespace stowage::runtime::evict {

struct Recipe;
struct Value;
class Graph;

using StoragePtr = c10::intrusive_ptr<c10::StorageImpl>;
using Values = c10::SmallVector<Ref<Value>, 8>;

// Below this a value has no row in the table: it is never evicted, and its bytes are copied when a recipe outlives it.
constexpr std::int64_t kSmallBytes = 2048;
// Numbers and masks up to here stay, since composites look at them without a kernel.
constexpr std::int64_t kSmallNumbersBytes = 64 << 10;

// A tensor as a recipe remembers it: metadata over a value. A node in that value's list of readers.
struct Argument {
  enum class Kind : std::uint8_t { kUndefined, kValue, kShape, kNumber };
  Kind kind = Kind::kUndefined;
  bool written = false;
  bool overwritten = false;  // every byte of it: what was there does not matter
  Recipe* recipe = nullptr;
  Ref<Value> value;
  Argument* previous = nullptr;
  Argument* next = nullptr;
  c10::SmallVector<std::int64_t, 5> sizes;
  c10::SmallVector<std::int64_t, 5> strides;
  std::int64_t offset = 0;
  std::int64_t storage_bytes = 0;
  caffe2::TypeMeta dtype;
  at::Tensor number;  // a Python number in a tensor's clothes: type promotion depends on that
};

// One run of an op: enough to run it again.
struct Recipe : Counted {
  Recipe(Graph& graph, const c10::OperatorHandle& handle, const OpTraits& op);
  ~Recipe();
  Recipe(const Recipe&) = delete;
  Recipe& operator=(const Recipe&) = delete;

  Graph& graph;
  c10::OperatorHandle handle;
  const OpTraits* op;
  struct Slot {
    enum class Kind : std::uint8_t { kPlain, kTensor, kList, kOptionalList };
    Kind kind = Kind::kPlain;
    std::int32_t count = 0;
    c10::IValue plain;
  };
  c10::SmallVector<Slot, 4> slots;        // by argument of the schema
  std::unique_ptr<Argument[]> arguments;  // tensors, in order
  std::int32_t argument_count = 0;
  bool grad_mode = false;
  std::shared_ptr<const KernelSettings> settings;
  std::int64_t cost_ns = 0;
  std::unique_ptr<GeneratorState> generator;  // before it ran; none when it draws nothing
  struct Result {
    Value* value = nullptr;     // null when forgotten
    std::int32_t position = 0;  // among the returned tensors, or -1 - index of the argument that it was written to
  };
  c10::SmallVector<Result, 2> results;
};

struct Value : Counted {
  Value(Graph& graph, State& state);
  ~Value();

  Graph& graph;
  State& state;
  // Null once it has died or was written to; held weakly: moves_into(), moves_out()
  c10::StorageImpl* storage = nullptr;
  StoragePtr own;  // of a value without a storage whose bytes are there nevertheless
  Ref<Recipe> recipe;
  Argument* readers = nullptr;
  const OpTraits* origin = nullptr;  // the op that made it, or that it was first met at
  ValueId id;                        // its row; none when small
  std::int64_t small_bytes = 0;      // of one without a row
  std::int32_t owner = 0;            // who asked for its bytes (runtime/memory/owners.h)
  bool made = false;                 // by `origin`; else met there
  bool known_outside = false;        // somebody has its address
  std::int16_t in_place_depth = 0;
  std::int16_t ghost_depth = 0;   // of gone values, the longest chain of gone ancestors
  std::int32_t being_read = 0;    // by a recipe that runs: not to be written to meanwhile
  std::size_t slot = 0;           // in State::values
  const void* died_in = nullptr;  // its storage, found dead before its thread has said so
  c10::DataPtr small_copy;        // of a small value that has no storage any more, on the device

  void* host = nullptr;  // its copy in the host store
  std::optional<Link::Ticket> going_out;
  std::optional<Link::Ticket> coming_in;
  c10::DataPtr incoming;  // where a fetch puts it

  // A weak reference: another thread may let go of the storage at any time, and its count must be there to ask.
  void moves_into(c10::StorageImpl* into);
  void moves_out();
  // Of a small one that a recipe reads: its storage moves on.
  void keep_small(const void* data);

  [[nodiscard]] bool small() const { return !id.valid(); }
  [[nodiscard]] std::int64_t bytes() const { return small() ? small_bytes : state.table[id].bytes; }
  [[nodiscard]] std::int32_t pins() const { return small() ? 0 : state.table[id].pins; }  // a small one's do not count
  [[nodiscard]] Residence residence() const {
    if (!small()) return state.table[id].residence;
    return storage != nullptr ? Residence::kResident : Residence::kGone;
  }
  [[nodiscard]] bool resident() const { return residence() == Residence::kResident; }
  [[nodiscard]] bool there() const { return small() || resident(); }
  // There, or a recipe can read it on the host: what only a Python object has cannot be put back without the GIL, which
  // is never waited for here, and no op can ask for it.
  [[nodiscard]] bool at_hand() const;
  [[nodiscard]] c10::StorageImpl* holder() const { return storage != nullptr ? storage : own.get(); }
  [[nodiscard]] std::string name() const;
};

void link_reader(Argument& argument, Recipe& recipe, Ref<Value> value);
void unlink_reader(Argument& argument);

// No argument has been emptied since: it can run.
[[nodiscard]] bool complete(const Recipe& recipe);
// Of its results, once they are gone.
[[nodiscard]] std::int16_t ghost_depth(const Recipe& recipe);

}  // namespace stowage::runtime::evict
