#include "runtime/torch/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <variant>

namespace stowage::runtime {
namespace {

c10::GeneratorImpl* host_generator() { return at::detail::getDefaultCPUGenerator().unsafeGetGeneratorImpl(); }

// How often each was set, by whatever thread. Its lock is taken before that of a generator.
std::mutex g_lock;
std::unordered_map<std::uintptr_t, std::uint64_t> g_set;
thread_local OwnGeneratorSets tl_own;
thread_local GeneratorStateListener* tl_listener = nullptr;

std::atomic<c10::GeneratorImpl*> g_device_generator{nullptr};  // lives as long as the process

at::Generator generator_at(c10::GeneratorImpl* impl) {
  return at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(impl));
}

void count_set(std::uintptr_t key) {
  ++g_set[key];
  ++tl_own.all[key];
}

std::uint64_t count_of(const std::unordered_map<std::uintptr_t, std::uint64_t>& counts, std::uintptr_t key) {
  const auto it = counts.find(key);
  return it != counts.end() ? it->second : 0;
}

}  // namespace

// A seed, and how far it has come: of an accelerator.
struct Philox {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  bool operator==(const Philox&) const = default;
  // By draws alone.
  [[nodiscard]] bool follows(const Philox& before) const { return seed == before.seed && offset >= before.offset; }
};

// Of the CPU.
struct Twister {
  at::mt19937 engine;
  std::optional<float> next_float_normal;
  std::optional<double> next_double_normal;

  bool operator==(const Twister& other) const {
    const at::mt19937_data_pod a = engine.data();
    const at::mt19937_data_pod b = other.engine.data();
    return a.seed_ == b.seed_ && a.left_ == b.left_ && a.seeded_ == b.seeded_ && a.next_ == b.next_ &&
           std::memcmp(a.state_.data(), b.state_.data(), sizeof(a.state_)) == 0 &&
           next_float_normal == other.next_float_normal && next_double_normal == other.next_double_normal;
  }
  // The numbers of a block of 624 come from its state; the next block's is made of it.
  [[nodiscard]] bool follows(const Twister& before) const {
    constexpr int kMostBlocks = 1 << 16;  // 40 million numbers, some 0.1 s
    const at::mt19937_data_pod now = engine.data();
    at::mt19937 drawn = before.engine;
    at::mt19937_data_pod data = drawn.data();
    if (now.seed_ != data.seed_) return false;
    const auto same_block = [&] { return std::memcmp(now.state_.data(), data.state_.data(), sizeof(now.state_)) == 0; };
    if (same_block()) return now.left_ <= data.left_;
    for (int block = 0; block < kMostBlocks; ++block) {
      data.left_ = 1;  // the block's last number is drawn: the next one makes a block
      drawn.set_data(data);
      drawn();
      data = drawn.data();
      if (same_block()) return true;
    }
    return false;
  }
};

struct GeneratorState::Content {
  std::variant<Twister, Philox> of;

  bool operator==(const Content& other) const { return of == other.of; }
  [[nodiscard]] bool follows(const Content& before) const {
    if (of.index() != before.of.index()) return false;
    if (const auto* twister = std::get_if<Twister>(&of)) return twister->follows(std::get<Twister>(before.of));
    return std::get<Philox>(of).follows(std::get<Philox>(before.of));
  }
};

GeneratorPart part_of(const c10::GeneratorImpl* generator) {
  if (generator == host_generator()) return kHostGenerator;
  if (generator == g_device_generator.load()) return kDeviceGenerator;
  return {reinterpret_cast<std::uintptr_t>(generator)};
}

OwnGeneratorSets& own_generator_sets() { return tl_own; }

void note_set_by_python(const c10::GeneratorImpl* impl) {
  const std::uintptr_t key = part_of(impl).key;
  const std::lock_guard lock(g_lock);
  count_set(key);
  ++tl_own.by_python[key];
}

GeneratorStateListener* listen_to_generator_states(GeneratorStateListener* listener) {
  return std::exchange(tl_listener, listener);
}

void tell_generator_state(const at::Generator& generator, const at::Tensor& state) {
  if (tl_listener != nullptr) tl_listener->on_state_told(generator, state);
}

void tell_generator_state_read(const at::Tensor& state, bool begins) {
  if (tl_listener != nullptr) tl_listener->on_state_read(state, begins);
}

void tell_generator_pickled(const at::Generator& generator) {
  if (tl_listener != nullptr) tl_listener->on_pickled(generator);
}

void tell_generator_set(const at::Generator& generator) {
  if (tl_listener != nullptr) tl_listener->on_set(generator);
}

std::string why_not_repeatable(c10::Device device) {
  return why_not_repeatable(at::globalContext().defaultGenerator(device));
}

std::string why_not_repeatable(const at::Generator& generator) {
  const std::string where = generator.device().str();
  if (generator.device().is_cpu()) {
    const bool known = dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()) != nullptr;
    return known ? "" : "a random generator that is not one of PyTorch's";
  }
  c10::GeneratorImpl* const impl = generator.unsafeGetGeneratorImpl();
  const std::lock_guard lock(impl->mutex_);
  try {
    impl->get_offset();
    return {};
  } catch (const c10::Error&) {
    return "the random generator of " + where + " does not tell how far it has come";
  }
}

void watch_generator(c10::Device device) {
  if (!why_not_repeatable(device).empty()) return;
  g_device_generator.store(at::globalContext().defaultGenerator(device).unsafeGetGeneratorImpl());
}

// ---- Taking a state

// Under g_lock.
GeneratorState::Part GeneratorState::part_now(GeneratorPart part, const at::Generator& generator) {
  c10::GeneratorImpl* const impl = generator.unsafeGetGeneratorImpl();
  auto content = std::make_shared<Content>();
  const std::uintptr_t key = part_of(impl).key;
  Part now{part, generator, nullptr, count_of(g_set, key) - count_of(tl_own.all, key), count_of(tl_own.by_python, key)};
  const std::lock_guard lock(impl->mutex_);
  if (auto* const twister = dynamic_cast<at::CPUGeneratorImpl*>(impl)) {
    content->of = Twister{twister->engine(), twister->next_float_normal_sample(), twister->next_double_normal_sample()};
  } else {
    content->of = Philox{impl->current_seed(), impl->get_offset()};
  }
  now.content = std::move(content);
  return now;
}

GeneratorState GeneratorState::current(const Generators& others) {
  GeneratorState state;
  const std::lock_guard lock(g_lock);
  state.parts_.push_back(part_now(kHostGenerator, generator_at(host_generator())));
  if (c10::GeneratorImpl* const device = g_device_generator.load())
    state.parts_.push_back(part_now(kDeviceGenerator, generator_at(device)));
  for (const auto& [part, generator] : others)
    if (generator.defined()) state.parts_.push_back(part_now(part, generator));
  return state;
}

void GeneratorState::add(GeneratorPart part, const at::Generator& generator) {
  const std::lock_guard lock(g_lock);
  parts_.push_back(part_now(part, generator));
}

void GeneratorState::share(const GeneratorState& other) {
  for (Part& part : parts_) {
    const Part* known = other.find(part.part);
    if (known != nullptr && *known->content == *part.content) part.content = known->content;
  }
}

const GeneratorState::Part* GeneratorState::find(GeneratorPart part) const {
  const auto it = std::find_if(parts_.begin(), parts_.end(), [&](const Part& known) { return known.part == part; });
  return it != parts_.end() ? &*it : nullptr;
}

std::vector<GeneratorPart> GeneratorState::parts() const {
  std::vector<GeneratorPart> all;
  for (const Part& part : parts_) all.push_back(part.part);
  return all;
}

GeneratorState GeneratorState::only(const OfGeneratorParts<bool>& parts) const {
  GeneratorState state;
  for (const Part& part : parts_)
    if (parts[part.part]) state.parts_.push_back(part);
  return state;
}

// ---- Setting the generators

void GeneratorState::set(const Part& part, const at::Generator& generator) {
  c10::GeneratorImpl* const impl = generator.unsafeGetGeneratorImpl();
  const std::lock_guard lock(g_lock);
  count_set(part_of(impl).key);
  const std::lock_guard own_lock(impl->mutex_);
  if (const auto* twister = std::get_if<Twister>(&part.content->of)) {
    auto* const of = dynamic_cast<at::CPUGeneratorImpl*>(impl);
    of->set_engine(twister->engine);
    of->set_next_float_normal_sample(twister->next_float_normal);
    of->set_next_double_normal_sample(twister->next_double_normal);
    return;
  }
  const Philox philox = std::get<Philox>(part.content->of);
  if (impl->current_seed() != philox.seed) impl->set_current_seed(philox.seed);
  if (impl->get_offset() != philox.offset) impl->set_offset(philox.offset);
}

void GeneratorState::restore() const {
  for (const Part& part : parts_) set(part, part.from);
}

void GeneratorState::restore(GeneratorPart part) const {
  if (const Part* const known = find(part)) set(*known, known->from);
}

void GeneratorState::restore(const OfGeneratorParts<bool>& parts) const {
  for (const Part& part : parts_)
    if (parts[part.part]) set(part, part.from);
}

void GeneratorState::restore_into(GeneratorPart part, const Generators& others) const {
  const Part* const known = find(part);
  if (known == nullptr) return;
  const at::Generator& into = others[part];
  set(*known, into.defined() ? into : known->from);
}

void GeneratorState::restore_as(GeneratorPart part, const GeneratorState& now, GeneratorPart other) const {
  const Part* const known = find(part);
  const Part* const into = now.find(other);
  if (known != nullptr && into != nullptr) set(*known, into->from);
}

void GeneratorState::put_back(const OfGeneratorParts<bool>& draws) const {
  GeneratorState now;
  {
    const std::lock_guard lock(g_lock);
    for (const Part& part : parts_) now.parts_.push_back(part_now(part.part, part.from));
  }
  for (const Part& part : parts_)
    if (draws[part.part] || !now.same_or_follows(part.part, *this)) set(part, part.from);
}

void GeneratorState::write_to(GeneratorPart part, void* state, std::size_t bytes) const {
  const Part* const known = find(part);
  if (known == nullptr) return;
  const at::Generator other(known->from.unsafeGetGeneratorImpl()->clone());
  set(*known, other);
  const at::Tensor now = other.get_state();
  if (now.nbytes() == bytes) std::memcpy(state, now.const_data_ptr(), bytes);
}

// ---- Comparing

bool GeneratorState::same_or_follows(GeneratorPart part, const GeneratorState& before) const {
  if (same(part, before)) return true;
  const Part* const now = find(part);
  const Part* const then = before.find(part);
  if (now == nullptr || then == nullptr || now->set_by_python != then->set_by_python) return false;
  return now->set_by_others != then->set_by_others || now->content->follows(*then->content);
}

bool GeneratorState::moved_by_python() const {
  const std::lock_guard lock(g_lock);
  return std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
    return part_now(part.part, part.from).set_by_python != part.set_by_python;
  });
}

bool GeneratorState::same(GeneratorPart part, const GeneratorState& other) const {
  const Part* const a = find(part);
  const Part* const b = other.find(part);
  // Before the accelerator is watched nothing is known of its generator
  if (a == nullptr || b == nullptr) return part == kDeviceGenerator || a == b;
  return a->content == b->content || *a->content == *b->content;
}

bool GeneratorState::same_as(GeneratorPart part, const GeneratorState& other, GeneratorPart other_part) const {
  const Part* const a = find(part);
  const Part* const b = other.find(other_part);
  return a != nullptr && b != nullptr && *a->content == *b->content;
}

bool GeneratorState::operator==(const GeneratorState& other) const {
  const auto alike = [&](const Part& part) { return same(part.part, other); };
  return std::all_of(parts_.begin(), parts_.end(), alike) &&
         std::all_of(other.parts_.begin(), other.parts_.end(), alike);
}

bool GeneratorState::is_seed(GeneratorPart part) const {
  const Part* const known = find(part);
  if (known == nullptr) return true;
  if (const auto* philox = std::get_if<Philox>(&known->content->of)) return philox->offset == 0;
  const auto& twister = std::get<Twister>(known->content->of);
  return twister == Twister{at::mt19937(twister.engine.data().seed_), {}, {}};
}

GeneratorState GeneratorState::marked(std::size_t draws, GeneratorPart part) const {
  GeneratorState other = *this;
  for (Part& marked : other.parts_) {
    if (marked.part != part) continue;
    auto content = std::make_shared<Content>(*marked.content);
    if (auto* const philox = std::get_if<Philox>(&content->of)) {
      constexpr std::uint64_t kFar = std::uint64_t{1} << 60;  // no step draws so much, and no seed begins there
      philox->seed ^= 0x9E3779B97F4A7C15U * (draws + 1);
      philox->offset |= kFar;
    } else {
      auto& engine = std::get<Twister>(content->of).engine;
      at::mt19937_data_pod data = engine.data();
      // Of the first word the next block takes the highest bit alone: a true state would seem to follow from the mark
      const std::size_t words = data.state_.size() - 1;
      data.state_[1 + draws % words] += 1 + static_cast<std::uint32_t>(draws / words);
      engine.set_data(data);
    }
    marked.content = std::move(content);
  }
  return other;
}

// ---- Jumps

namespace {

bool same_jump(GeneratorPart part, const GeneratorJump::OfPart& a, const GeneratorJump::OfPart& b) {
  return a.draws == b.draws && (a.state == b.state || (a.state && b.state && a.state->same(part, *b.state)));
}

template <class Alike>
bool alike_in_all_parts(const GeneratorJump& a, const GeneratorJump& b, const Alike& alike) {
  std::set<GeneratorPart> parts;
  for (const auto& [part, to] : a.to) parts.insert(part);
  for (const auto& [part, to] : b.to) parts.insert(part);
  return std::all_of(parts.begin(), parts.end(), [&](GeneratorPart part) {
    return alike(part, std::as_const(a.to)[part], std::as_const(b.to)[part]);
  });
}

}  // namespace

void GeneratorJump::make(const std::vector<std::optional<GeneratorState>>& after_draws,
                         const Generators& others) const {
  for (const auto& [part, jump] : to) {
    if (jump.state) jump.state->restore_into(part, others);
    if (jump.draws >= 0) after_draws[static_cast<std::size_t>(jump.draws)]->restore_into(part, others);
  }
}

bool GeneratorJump::moves() const {
  return std::any_of(to.begin(), to.end(), [](const auto& jump) { return jump.second.moves(); });
}

bool GeneratorJump::operator==(const GeneratorJump& other) const { return alike_in_all_parts(*this, other, same_jump); }

bool GeneratorJump::same_but_seed(const GeneratorJump& other) const {
  return alike_in_all_parts(*this, other, [](GeneratorPart part, const OfPart& a, const OfPart& b) {
    if (same_jump(part, a, b)) return true;
    return a.state && b.state && (is_made(part) || (a.state->is_seed(part) && b.state->is_seed(part)));
  });
}

}  // namespace stowage::runtime
