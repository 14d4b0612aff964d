#include "runtime/record/recorder.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>

#include "runtime/memory/allocator.h"
#include "runtime/record/by_value.h"
#include "runtime/record/finish.h"
#include "runtime/record/ticks.h"
#include "runtime/torch/collectives.h"
#include "runtime/torch/op_facts.h"
#include "runtime/torch/shape_questions.h"
#include "runtime/torch/sparse.h"
#include "runtime/torch/split.h"
#include "runtime/torch/tensors.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Storages that nothing but these tensors holds: neither another view nor, by a view, the tensor that it looks into.
std::set<const c10::StorageImpl*> held_by_these_alone(const std::vector<at::Tensor>& tensors) {
  std::map<const c10::StorageImpl*, std::set<const c10::TensorImpl*>> holders;
  std::map<const c10::TensorImpl*, std::set<const c10::TensorImpl*>> views;  // by the tensor that they look into
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage()) continue;
    holders[tensor.storage().unsafeGetStorageImpl()].insert(tensor.unsafeGetTensorImpl());
    if (tensor.is_view()) views[tensor._base().unsafeGetTensorImpl()].insert(tensor.unsafeGetTensorImpl());
  }
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.has_storage() || !tensor.is_view()) continue;
    const at::Tensor base(tensor._base());
    std::set<const c10::TensorImpl*>& known = holders[tensor.storage().unsafeGetStorageImpl()];
    if (base.use_count() - 1 <= views[base.unsafeGetTensorImpl()].size()) known.insert(base.unsafeGetTensorImpl());
  }
  std::set<const c10::StorageImpl*> alone;
  for (const auto& [storage, known] : holders) {
    if (c10::raw::intrusive_ptr::use_count(const_cast<c10::StorageImpl*>(storage)) <= known.size())
      alone.insert(storage);
  }
  return alone;
}

constexpr std::int64_t kLittle = 1 << 20;  // bytes that may be copied in each call, although they may stay the same

bool has_unreplayable_argument(const c10::IValue& value) {
  return value.isStorage() || value.isStream() || value.isPyObject() || value.isCustomClass();
}

// Null where the step has not come by it, or it has none.
const c10::StorageImpl* found_storage(const Block& block) {
  const bool has = block.found && block.tensor.defined() && block.tensor.has_storage();
  return has ? block.tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// What all earlier calls have found, and some have written to. A call that writes to it and one that does not begin alike:
// to both it is one and the same tensor.
std::set<const c10::StorageImpl*> lasting_and_written(const std::vector<std::shared_ptr<Tape>>& earlier) {
  std::set<const c10::StorageImpl*> written;
  std::map<const c10::StorageImpl*, std::size_t> calls;
  for (const std::shared_ptr<Tape>& tape : earlier) {
    for (const Block& block : tape->blocks)
      if (const c10::StorageImpl* storage = found_storage(block)) ++calls[storage];
    const auto note = [&](BlockId id, Access access) {
      const c10::StorageImpl* storage = found_storage(tape->blocks[id.index()]);
      if (access == Access::kWrite && storage != nullptr) written.insert(storage);
    };
    for (const TapeOp& op : tape->ops) for_each_access(*tape, op, note);
  }
  std::erase_if(written, [&](const c10::StorageImpl* storage) { return calls[storage] < earlier.size(); });
  return written;
}

}  // namespace

void take_up(c10::Device device) {
  device_at(device).install();
  device_at(device).count_others();
  watch_generator(device);
}

Recorder::Recorder(RecordOptions options)
    : options_(std::move(options)),
      tape_(std::make_shared<Tape>()),
      names_(*tape_, options_.fake),
      draws_(*tape_, options_.fake),
      kept_writes_(names_),
      host_fills_(*tape_, names_, options_.fake) {
  tape_->below_autograd = level() == Level::kBelow;
  tape_->of_parts = options_.distributed;
}

// The first tensor that is known says where the step's memory is planned.
void Recorder::settle_device(const at::Tensor& tensor) {
  if (options_.fake || options_.distributed || tensor.device().is_cpu() || !tape_->device.is_cpu()) return;
  if (!at::accelerator::isAccelerator(tensor.device().type())) return;
  try {
    take_up(tensor.device());
    tape_->device = tensor.device();
  } catch (const Error& error) {
    refuse(error.what());
  }
}

SlotId Recorder::declare(const at::Tensor& tensor, BufferKind kind, std::string name) {
  settle_device(tensor);
  return names_.declare(tensor, kind, std::move(name));
}

SlotId Recorder::declare_input(const at::Tensor& tensor, BufferKind kind, std::string name, int input,
                               std::int64_t start_bytes, std::int64_t end_bytes) {
  settle_device(tensor);
  return names_.declare_input(tensor, kind, std::move(name), input, start_bytes, end_bytes);
}

void Recorder::declare_gradient(const at::Tensor& parameter, int input) {
  gradients_.push_back({parameter, parameter.grad().unsafeGetTensorImpl(), input});
}

void Recorder::note_let_go() {
  for (const Gradient& known : gradients_)
    if (known.parameter.grad().unsafeGetTensorImpl() != known.gradient)
      let_go_.emplace(known.input, LetGo{known.parameter, tape_->ops.size()});
}

std::vector<int> Recorder::let_go() const {
  std::vector<int> inputs;
  for (const auto& [input, gone] : let_go_) inputs.push_back(input);
  return inputs;
}

void Recorder::start() {
  draws_.start();
  if (!tape_->below_autograd || thread_attached()) kept_writes_.give_up();
  intercept_ = std::make_unique<Intercept>(*this);
  tape_->settings = {KernelSettings::now()};
  settings_ = 0;
  started_ns_ = now_ns() - aside_ns();
  stream_ = device_at(tape_->device).stream();
}

void Recorder::stop() {
  note_let_go();
  tape_->wall_ns = now_ns() - aside_ns() - started_ns_;
  if (!intercept_) return;
  intercept_.reset();
  draws_.stop();
}

void Recorder::begin_section(const std::vector<at::Tensor>& gradients) {
  tape_->sections.push_back({static_cast<std::int32_t>(tape_->ops.size()), -1});
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    const BlockId block = names_.block_of(gradient);
    if (block.valid() && !tape_->blocks[block.index()].external)
      tape_->blocks[block.index()].kind = BufferKind::kGradient;
  }
}

void Recorder::end_section() { tape_->sections.back().to = static_cast<std::int32_t>(tape_->ops.size()); }

void Recorder::refuse(const std::string& reason) {
  if (!tape_->refusal.empty()) return;
  const std::string where = options_.source && intercept_ ? options_.source() : std::string();
  tape_->refusal = where.empty() ? reason : where + ": " + reason;
}

bool Recorder::take_back() {
  if (!kept_writes_.complete() || !draws_.has_started()) return false;
  kept_writes_.put_back();
  draws_.put_back();
  return true;
}

void Recorder::close() {
  gradients_.clear();
  let_go_.clear();
  kept_writes_.forget();
  intercept_.reset();
  names_.stop();
}

void Recorder::reads_on_host(const at::Tensor& tensor, const std::string& what) {
  if (!tape_->refusal.empty() || options_.fake) return;
  DataGuard guard;
  guard.tensor = slot_of(tensor);
  guard.at = static_cast<std::int32_t>(tape_->ops.size());
  const std::string line = options_.source ? options_.source() : std::string();
  guard.where = (line.empty() ? "" : line + ": ") + what;
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::Fake);
  const at::AutoDispatchBelowAutograd below;
  const at::Tensor elements = tensor.contiguous().resolve_conj().resolve_neg().cpu();
  guard.content.assign(static_cast<const char*>(elements.const_data_ptr()), elements.nbytes());
  tape_->data_guards.push_back(std::move(guard));
}

int Recorder::current_line() {
  if (!options_.source) return -1;
  const std::string line = options_.source();
  if (line.empty()) return -1;
  if (tape_->lines.empty() || tape_->lines.back() != line) {
    const auto it = std::find(tape_->lines.begin(), tape_->lines.end(), line);
    if (it != tape_->lines.end()) return static_cast<int>(it - tape_->lines.begin());
    tape_->lines.push_back(line);
  }
  return static_cast<int>(tape_->lines.size()) - 1;
}

void Recorder::on_leaf(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!tape_->refusal.empty()) {
    kept_writes_.give_up();  // nobody knows any more what the step has made
    run_leaf(op, keys, stack);
  } else if (gives_sparse() && reshapes_sparse(op, *stack)) {
    run_leaf(op, keys, stack);
  } else if (is_elementwise_list_op(op)) {
    record_per_element(op, keys, stack);
  } else {
    record(op, keys, stack);
  }
}

void Recorder::record_per_element(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::vector<torch::jit::Stack> parts = split_list_op(op, *stack);
  if (parts.empty()) return record(op, keys, stack);
  for (torch::jit::Stack& part : parts) record(op, keys, &part);
  join_results(op, parts, stack);
}

void Recorder::record(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (tells_value(handle)) note_let_go();
  const bool asked = ask_for_shape(handle, keys, *stack);
  TapeOp op(handle);
  op.line = current_line();
  op.grad_mode = c10::GradMode::is_enabled();
  op.backward = torch::autograd::get_current_graph_task_id() >= 0;
  const bool checks = checks_values(handle, op.backward) && !(asked && refuses_when_asked(handle));
  if (options_.may_raise && (checks || talks_to_other_processes(handle)))
    op.around = options_.may_raise(is_custom(handle));
  op.settings = settings_ = settings_now(tape_->settings, settings_);
  if (!tape_->sections.empty() && tape_->sections.back().to < 0)
    op.section = static_cast<int>(tape_->sections.size()) - 1;
  // Each rank decides by itself when it rehearses: its messages would meet others of its peers
  if (!options_.distributed && talks_to_other_processes(handle))
    refuse(full_name(handle) + " talks to other processes: compile forward and backward alone, and let this and " +
           "optimizer.step() follow them");
  take_arguments(op, stack);
  if (!asked && depends_on_data(handle, *stack) && !tells_value(handle)) {
    refuse(full_name(handle) + ": the shape or value of its result depends on data");
  }
  if (device_at(tape_->device).stream() != stream_)
    refuse(full_name(handle) + " runs on another stream than the step's first operators");
  if (draws_random_numbers(handle) && !tape_->device.is_cpu() && !why_not_repeatable(tape_->device).empty())
    refuse(full_name(handle) + ": " + why_not_repeatable(tape_->device));
  const std::optional<GeneratorState> before = draws_.begin(op);
  tape_->foreign |= !tags_tell_draws(handle);

  std::vector<AllocationEvent> events;
  {
    const WatchAllocations watch(events, tape_->device.type());
    kept_writes_.save(op, *stack);
    device_at(tape_->device).wait();
    kernel_raised_ = true;
    const std::int64_t start = now_ns() - aside_ns();
    run_leaf(handle, keys, stack);
    device_at(tape_->device).wait();  // so that the time is the op's own
    kernel_raised_ = false;
    op.cost_ns = now_ns() - aside_ns() - start;
  }
  if (before) draws_.end(op, *before);
  op.form = form_of(handle);
  take_results(op, stack, events);
  tape_->ops.push_back(std::move(op));
}

TapeOp::Form Recorder::form_of(const c10::OperatorHandle& op) const {
  if (options_.fake || op.schema().returns().empty() || !is_foreign(op)) return TapeOp::Form::kKnown;
  const bool declared = options_.declares_form && options_.declares_form(full_name(op));
  return declared ? TapeOp::Form::kDeclared : TapeOp::Form::kUnsure;
}

bool Recorder::ask_for_shape(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                             const torch::jit::Stack& stack) {
  if (options_.fake || !tape_->below_autograd) return false;
  std::vector<ShapeQuestion> questions = shape_questions(handle, stack);
  for (ShapeQuestion& question : questions) {
    record(question.count, keys, &question.arguments);
    record(scalar_reader(), keys, &question.arguments);
    tape_->ops.back().asks_shape = true;
  }
  return !questions.empty();
}

void Recorder::take_arguments(TapeOp& op, torch::jit::Stack* stack) {
  const std::size_t count = op.handle.schema().arguments().size();
  const std::size_t first = stack->size() - count;
  std::vector<BlockId> none;
  arguments_.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = (*stack)[first + i];
    if (has_unreplayable_argument(value) && !is_collective(op.handle))
      refuse(full_name(op.handle) + ": a storage, stream or object as argument");
    if (value.isGenerator()) {
      if (const std::string why = draws_.take_generator(op, i, value.toGenerator()); !why.empty()) refuse(why);
    }
    const bool lifts = lifts_host_data(op.handle) && value.isTensor();
    if (lifts) host_fills_.lift(value.toTensor());
    const std::size_t known_blocks = tape_->blocks.size();
    const bool given = is_number_tensor(value) || take_sparse(op.handle, value);
    TensorRef ref = given ? TensorRef{} : reference(value, /*is_result=*/false, none);
    op.arguments.push_back(ref.kind == TensorRef::Kind::kNone ? value : c10::IValue());
    op.tensors.push_back(std::move(ref));
    if (const std::string why = host_fills_.look_at(op, i, value); !why.empty()) refuse(why);
    for (std::size_t b = known_blocks; b < tape_->blocks.size(); ++b) tape_->blocks[b].refreshed = op.section >= 0;
  }
  look_for_absolute_offset(op);
}

// Can calls give kernels sparse tensors as they give numbers?
bool Recorder::gives_sparse() const { return !options_.fake && tape_->below_autograd; }

bool Recorder::take_sparse(const c10::OperatorHandle& op, const c10::IValue& value) {
  if (!gives_sparse() || !is_sparse(value) || !multiplies_sparse(op)) return false;
  for (const at::Tensor& part : parts_of_sparse(value.toTensor())) {
    if (names_.block_of(part).valid() || names_.made_in_step(part))
      refuse(full_name(op) + ": a sparse tensor whose indices or values the step has by themselves, too");
  }
  return true;
}

// x.as_strided(sizes, strides, 5) counts from the beginning of the storage, of which an argument may be a slice.
void Recorder::look_for_absolute_offset(const TapeOp& op) {
  const int position = absolute_offset_argument(op.handle);
  if (position < 0 || op.arguments[static_cast<std::size_t>(position)].isNone()) return;
  for (const SlotId slot : op.tensors[0].slots) {
    if (slot.valid()) tape_->absolute_inputs |= tape_->blocks[tape_->slots[slot.index()].block.index()].input >= 0;
  }
}

TensorRef Recorder::reference(const c10::IValue& value, bool is_result, std::vector<BlockId>& created) {
  TensorRef ref;
  std::string refusal;
  const auto add = [&](const at::Tensor& tensor) {
    SlotId slot;
    if (tensor.defined() && is_result) {
      const bool anew = std::ranges::find(arguments_, tensor.unsafeGetTensorImpl()) == arguments_.end();
      slot = names_.result(tensor, anew, created, refusal);
    } else if (tensor.defined()) {
      slot = names_.use(tensor, refusal);
      arguments_.push_back(tensor.unsafeGetTensorImpl());
    }
    if (!refusal.empty()) refuse(refusal);
    ref.slots.push_back(slot);
    if (slot.valid() && is_result) tape_->slots[slot.index()].made = true;
  };
  if (value.isTensor()) {
    ref.kind = TensorRef::Kind::kTensor;
    add(value.toTensor());
  } else if (value.isTensorList()) {
    ref.kind = TensorRef::Kind::kTensorList;
    for (const at::Tensor& tensor : value.toTensorVector()) add(tensor);
  } else if (value.isOptionalTensorList()) {
    ref.kind = TensorRef::Kind::kOptionalTensorList;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) add(tensor.value_or(at::Tensor()));
  }
  return ref;
}

void Recorder::take_results(TapeOp& op, torch::jit::Stack* stack, const std::vector<AllocationEvent>& events) {
  const std::size_t count = op.handle.schema().returns().size();
  for (std::size_t i = stack->size() - count; i < stack->size(); ++i) {
    const c10::IValue& value = (*stack)[i];
    const std::size_t before = op.creates.size();
    op.results.push_back(reference(value, /*is_result=*/true, op.creates));
    op.values.push_back(op.results.back().kind == TensorRef::Kind::kNone ? value : c10::IValue());
    for (std::size_t b = before; b < op.creates.size(); ++b)
      tape_->blocks[op.creates[b].index()].creator = TapeOpId(tape_->ops.size());
  }
  host_fills_.take_result(op, *stack);
  op.born.assign(op.creates.size(), 0);
  if (!options_.fake) {
    std::vector<const void*> data;
    for (const BlockId block : op.creates) data.push_back(names_.data(block));
    if (!take_inside(*tape_, op, events, data))
      refuse(full_name(op.handle) + " returns memory that it did not allocate");
  }
  settle_role(op, events);
}

void Recorder::settle_role(TapeOp& op, const std::vector<AllocationEvent>& events) {
  if (op.form == TapeOp::Form::kUnsure) return;
  if (changes_metadata(op.handle)) {
    op.role = TapeOp::Role::kView;
    const bool allocates = std::any_of(events.begin(), events.end(), [](const auto& e) { return !e.is_free; });
    if (allocates) refuse(full_name(op.handle) + " resizes a storage in place");
    return;
  }
  bool writes = false;
  bool tensor_result = false;
  for (std::size_t i = 0; i < op.tensors.size(); ++i) {
    writes |= op.tensors[i].kind != TensorRef::Kind::kNone && writes_argument(op.handle, i);
  }
  for (const TensorRef& ref : op.results) tensor_result |= ref.kind != TensorRef::Kind::kNone;
  const bool only_tells = !op.results.empty() && !tensor_result && !tells_value(op.handle);  // a size, a flag
  const bool only_views = tensor_result && op.creates.empty();
  if (!writes && op.random_order < 0 && (only_tells || only_views)) op.role = TapeOp::Role::kView;
}

std::vector<BlockId> Recorder::surviving_blocks(const std::vector<at::Tensor>& allowed) const {
  const std::set<const c10::StorageImpl*> alone = held_by_these_alone(allowed);
  std::set<BlockId> fine;
  for (const at::Tensor& tensor : allowed) {
    // Elsewhere others hold it, too
    const bool counted = !options_.fake && !options_.distributed && tensor.has_storage();
    if (!counted || alone.contains(tensor.storage().unsafeGetStorageImpl())) fine.insert(names_.block_of(tensor));
  }
  const std::map<BlockId, TapeOpId> written = host_fills_.written_and_held(kept_writes_, allowed);
  for (const HostFilled& filled : host_fills_.by_python()) {
    const BlockId block = names_.block_of(filled.tensor);
    if (!written.contains(block)) fine.insert(block);
  }
  for (const FilledInside& filled : host_fills_.inside()) fine.insert(filled.block);
  std::vector<BlockId> blocks = names_.alive();
  for (const auto& [block, lift] : written) blocks.push_back(block);
  std::erase_if(blocks, [&](BlockId block) { return fine.contains(block); });
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}

void Recorder::array_gone(std::int32_t teller) {
  if (tape_ == nullptr || teller < 0 || static_cast<std::size_t>(teller) >= tape_->ops.size()) return;
  TapeOp& op = tape_->ops[static_cast<std::size_t>(teller)];
  if (tells_content(op.handle)) op.array_until = static_cast<std::int32_t>(tape_->ops.size());
}

std::vector<std::string> Recorder::survivors(const std::vector<at::Tensor>& allowed) const {
  std::vector<std::string> lines;
  const std::map<BlockId, TapeOpId> written = host_fills_.written_and_held(kept_writes_, allowed);
  for (const BlockId block : surviving_blocks(allowed)) {
    const TapeOpId creator = tape_->blocks[block.index()].creator;
    const TapeOp& op = tape_->op(creator.valid() ? creator : written.at(block));
    lines.push_back((op.line >= 0 ? tape_->lines[static_cast<std::size_t>(op.line)] + ": " : std::string()) +
                    full_name(op.handle));
  }
  return lines;
}

SlotId Recorder::slot_of(const at::Tensor& tensor) {
  std::string refusal;
  const SlotId slot = names_.use(tensor, refusal);
  if (!refusal.empty()) refuse(refusal);
  return slot;
}

std::set<int> Recorder::touched_inputs() const {
  std::set<int> touched;
  for (const TapeOp& op : tape_->ops) {
    for (const TensorRef& ref : op.tensors) {
      for (const SlotId slot : ref.slots) {
        if (slot.valid()) touched.insert(tape_->blocks[tape_->slots[slot.index()].block.index()].input);
      }
    }
  }
  touched.erase(-1);
  return touched;
}

bool Recorder::lasts(const at::Tensor& tensor) const {
  const BlockId block = names_.block_of(tensor);
  return block.valid() && tape_->blocks[block.index()].external && tape_->blocks[block.index()].input < 0;
}

bool Recorder::touches(const at::Tensor& tensor) const {
  const BlockId block = names_.block_of(tensor);
  if (!block.valid()) return false;
  const auto is_in_it = [&](SlotId slot) { return slot.valid() && tape_->slots[slot.index()].block == block; };
  return std::any_of(tape_->ops.begin(), tape_->ops.end(), [&](const TapeOp& op) {
    return std::any_of(op.tensors.begin(), op.tensors.end(),
                       [&](const TensorRef& ref) { return std::any_of(ref.slots.begin(), ref.slots.end(), is_in_it); });
  });
}

bool Recorder::writes(const at::Tensor& tensor) const {
  const BlockId block = names_.block_of(tensor);
  return block.valid() && std::any_of(tape_->ops.begin(), tape_->ops.end(), [&](const TapeOp& op) {
           bool found = false;
           for_each_access(*tape_, op,
                           [&](BlockId of, Access access) { found |= of == block && access == Access::kWrite; });
           return found;
         });
}

void Recorder::note_found() {
  for (const TapeOp& op : tape_->ops) {
    for (const TensorRef& ref : op.tensors) {
      for (const SlotId slot : ref.slots) {
        if (!slot.valid()) continue;
        Block& block = tape_->blocks[tape_->slots[slot.index()].block.index()];
        block.found = block.external && block.input < 0 && block.kind == BufferKind::kConstant;
      }
    }
  }
  for (const HostFilled& filled : host_fills_.by_python()) {
    const BlockId id = names_.block_of(filled.tensor);
    if (id.valid()) tape_->blocks[id.index()].found = false;
  }
}

// Of what the step has come by: those of which it may find others in the next call, as it did once: next(iterator).
std::vector<at::Tensor> Recorder::found_anew(const std::vector<std::shared_ptr<Tape>>& earlier) {
  std::set<BlockId> anew;
  std::set<const c10::StorageImpl*> known;  // in some earlier call as well
  const std::set<const c10::StorageImpl*> stay = lasting_and_written(earlier);
  for (const std::shared_ptr<Tape>& tape : earlier) {
    tape_->finds |= tape->finds;
    tape_->by_value |= tape->by_value;
    for (const Block& block : tape->blocks) {
      tape_->finds |= block.replaced;
      tape_->by_value |= block.scattered;
      if (block.found && !block.of_python && !block.replaced)
        known.insert(block.tensor.storage().unsafeGetStorageImpl());
    }
  }
  for (std::size_t i = 0; i < tape_->blocks.size(); ++i) {
    const Block& block = tape_->blocks[i];
    if (!(tape_->finds || tape_->by_value) || !block.found) continue;
    if (stay.contains(found_storage(block))) continue;
    if (block.bytes <= kLittle || !known.contains(block.tensor.storage().unsafeGetStorageImpl()))
      anew.insert(BlockId(i));
  }
  tape_->finds = !anew.empty();
  if (tape_->by_value) {
    std::set<BlockId> constants;
    for (const HostFilled& filled : host_fills_.by_python()) {
      if (filled.lift.valid()) constants.insert(names_.block_of(filled.tensor));
    }
    constants.erase(BlockId());
    anew = take_by_value(*tape_, anew, constants, stay);
    tape_->by_value =
        std::any_of(tape_->blocks.begin(), tape_->blocks.end(), [](const Block& b) { return b.by_value; });
    tape_->finds |= tape_->by_value;
  }
  std::vector<at::Tensor> tensors;
  for (const BlockId block : anew) tensors.push_back(tape_->blocks[block.index()].tensor);
  return tensors;
}

std::shared_ptr<Tape> Recorder::finish(const std::vector<at::Tensor>& returned, bool keep,
                                       const std::vector<at::Tensor>& replaced, const std::set<int>& dropped,
                                       const std::vector<std::shared_ptr<Tape>>& earlier,
                                       const std::set<TapeOpId>& returned_numbers, const std::set<int>& until_next) {
  note_found();
  for (const at::Tensor& tensor : returned) tape_->returned.push_back(slot_of(tensor));
  for (const BlockId block : keep ? surviving_blocks(returned) : std::vector<BlockId>()) {
    tape_->returned.push_back(tape_->blocks[block.index()].owner);
    ++tape_->kept;
  }
  for (const at::Tensor& tensor : replaced) host_fills_.replaced(tensor);
  for (const at::Tensor& tensor : found_anew(earlier)) host_fills_.replaced(tensor);
  if (tape_->refusal.empty()) settle_filled(*tape_, host_fills_.inside());
  draws_.part_from_made();
  tape_->settle_moved();
  if (tape_->refusal.empty()) finish_tape(*tape_, names_, host_fills_.by_python(), options_.fake, returned_numbers);
  settle_dropped(returned, dropped);
  for (const int i : until_next) tape_->until_next.at(static_cast<std::size_t>(i)) = true;
  let_go_of_untouched();
  return std::move(tape_);
}

void Recorder::settle_dropped(const std::vector<at::Tensor>& returned, const std::set<int>& dropped) {
  const std::size_t first_read = tape_->reads.empty() ? tape_->ops.size() : tape_->reads.front().index();
  std::set<int> early;
  std::unordered_set<const c10::TensorImpl*> until_next;
  for (const auto& [input, gone] : let_go_) {
    if (!dropped.contains(input) || gone.before > first_read) continue;
    early.insert(input);
    until_next.insert(gone.parameter.grad().unsafeGetTensorImpl());
  }
  for (Block& block : tape_->blocks) block.dropped = early.contains(block.input);
  tape_->until_next.resize(tape_->returned.size(), false);
  for (std::size_t i = 0; i < returned.size(); ++i)
    tape_->until_next[i] = until_next.contains(returned[i].unsafeGetTensorImpl());
}

// The program may drop them while the tape lives. A storage's address is no other's as long as the tape knows it.
void Recorder::let_go_of_untouched() {
  if (!tape_->below_autograd || tape_->fake) return;
  const std::vector<bool> touched = touched_blocks(*tape_);
  for (std::size_t i = 0; i < touched.size(); ++i) {
    Block& block = tape_->blocks[i];
    if (touched[i] || !block.external || block.input >= 0 || block.of_python || block.found) continue;
    if (!block.tensor.defined() || !block.tensor.has_storage()) continue;
    block.untouched = block.tensor.storage().getWeakStorageImpl();
    block.tensor = at::Tensor();
  }
}

}  // namespace stowage::runtime
