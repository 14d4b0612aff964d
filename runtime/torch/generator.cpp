#include "runtime/torch/generator.h"

#include <ATen/Context.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

namespace stowage::runtime {
namespace {

at::CPUGeneratorImpl* generator() {
  return at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
}

// How often it was set, by whatever thread. Counted under the CPU generator's lock.
OfGeneratorParts<std::uint64_t> g_set;
thread_local OwnGeneratorSets tl_own;

std::atomic<c10::GeneratorImpl*> g_device_generator{nullptr};  // lives as long as the process

void count_set(GeneratorPart part) {
  ++g_set[part];
  ++tl_own.all[part];
}

}  // namespace

OwnGeneratorSets& own_generator_sets() { return tl_own; }

void note_set_by_python(const c10::GeneratorImpl* impl) {
  const bool host = impl == generator();
  if (!host && impl != g_device_generator.load()) return;
  const GeneratorPart part = host ? GeneratorPart::kHost : GeneratorPart::kDevice;
  const std::lock_guard lock(generator()->mutex_);
  count_set(part);
  ++tl_own.by_python[part];
}

std::string why_not_repeatable(c10::Device device) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  try {
    generator.get_offset();
    return {};
  } catch (const c10::Error&) {
    return "the random generator of " + device.str() + " does not tell how far it has come";
  }
}

void watch_generator(c10::Device device) {
  if (!why_not_repeatable(device).empty()) return;
  g_device_generator.store(at::globalContext().defaultGenerator(device).unsafeGetGeneratorImpl());
}

GeneratorState GeneratorState::current() {
  at::CPUGeneratorImpl* impl = generator();
  const std::lock_guard lock(impl->mutex_);
  GeneratorState state(impl->engine());
  state.next_float_normal_ = impl->next_float_normal_sample();
  state.next_double_normal_ = impl->next_double_normal_sample();
  for (const GeneratorPart part : kGeneratorParts) state.set_by_others_[part] = g_set[part] - tl_own.all[part];
  state.set_by_python_ = tl_own.by_python;
  if (c10::GeneratorImpl* const device = g_device_generator.load()) {
    const std::lock_guard device_lock(device->mutex_);
    state.device_ = Philox{device->current_seed(), device->get_offset()};
  }
  return state;
}

void GeneratorState::restore(const OfGeneratorParts<bool>& parts) const {
  at::CPUGeneratorImpl* impl = generator();
  const std::lock_guard lock(impl->mutex_);
  for (const GeneratorPart part : kGeneratorParts)
    if (parts[part]) count_set(part);
  if (parts[GeneratorPart::kHost]) {
    impl->set_engine(engine_);
    impl->set_next_float_normal_sample(next_float_normal_);
    impl->set_next_double_normal_sample(next_double_normal_);
  }
  c10::GeneratorImpl* const device = g_device_generator.load();
  if (!parts[GeneratorPart::kDevice] || device == nullptr || !device_) return;
  const std::lock_guard device_lock(device->mutex_);
  if (device->current_seed() != device_->seed) device->set_current_seed(device_->seed);
  if (device->get_offset() != device_->offset) device->set_offset(device_->offset);
}

void GeneratorState::restore() const {
  OfGeneratorParts<bool> both;
  for (const GeneratorPart part : kGeneratorParts) both[part] = true;
  restore(both);
}

void GeneratorState::restore(GeneratorPart part) const {
  OfGeneratorParts<bool> it;
  it[part] = true;
  restore(it);
}

void GeneratorState::put_back(const OfGeneratorParts<bool>& draws) const {
  const GeneratorState now = current();
  for (const GeneratorPart part : kGeneratorParts)
    if (draws[part] || !now.same_or_follows(part, *this)) restore(part);
}

bool GeneratorState::same_or_follows(GeneratorPart part, const GeneratorState& before) const {
  if (same(part, before)) return true;
  if (set_by_python_[part] != before.set_by_python_[part]) return false;
  if (set_by_others_[part] != before.set_by_others_[part]) return true;
  return part == GeneratorPart::kHost ? engine_follows(before) : device_->follows(*before.device_);
}

bool GeneratorState::same(GeneratorPart part, const GeneratorState& other) const {
  if (part == GeneratorPart::kHost) return same_numbers(other);
  return !device_ || !other.device_ || *device_ == *other.device_;
}

bool GeneratorState::same_numbers(const GeneratorState& other) const {
  const at::mt19937_data_pod a = engine_.data();
  const at::mt19937_data_pod b = other.engine_.data();
  return a.seed_ == b.seed_ && a.left_ == b.left_ && a.seeded_ == b.seeded_ && a.next_ == b.next_ &&
         std::memcmp(a.state_.data(), b.state_.data(), sizeof(a.state_)) == 0 &&
         next_float_normal_ == other.next_float_normal_ && next_double_normal_ == other.next_double_normal_;
}

// The numbers of a block of 624 come from its state; the next block's is made of it.
bool GeneratorState::engine_follows(const GeneratorState& before) const {
  constexpr int kMostBlocks = 1 << 16;  // 40 million numbers, some 0.1 s
  const at::mt19937_data_pod now = engine_.data();
  at::mt19937 engine = before.engine_;
  at::mt19937_data_pod data = engine.data();
  if (now.seed_ != data.seed_) return false;
  const auto same_block = [&] { return std::memcmp(now.state_.data(), data.state_.data(), sizeof(now.state_)) == 0; };
  if (same_block()) return now.left_ <= data.left_;
  for (int block = 0; block < kMostBlocks; ++block) {
    data.left_ = 1;  // the block's last number is drawn: the next one makes a block
    engine.set_data(data);
    engine();
    data = engine.data();
    if (same_block()) return true;
  }
  return false;
}

bool GeneratorState::operator==(const GeneratorState& other) const {
  return same(GeneratorPart::kDevice, other) && same(GeneratorPart::kHost, other);
}

bool GeneratorState::is_seed(GeneratorPart part) const {
  if (part == GeneratorPart::kDevice) return !device_ || device_->offset == 0;
  return same_numbers(GeneratorState(at::mt19937(engine_.data().seed_)));
}

GeneratorState GeneratorState::marked(std::size_t draws, GeneratorPart part) const {
  GeneratorState other = *this;
  if (part == GeneratorPart::kDevice && other.device_) {
    constexpr std::uint64_t kFar = std::uint64_t{1} << 60;  // no step draws so much, and no seed begins there
    other.device_->seed ^= 0x9E3779B97F4A7C15U * (draws + 1);
    other.device_->offset |= kFar;
    return other;
  }
  at::mt19937_data_pod data = engine_.data();
  // Of the first word the next block takes the highest bit alone: a true state would seem to follow from the mark
  const std::size_t words = data.state_.size() - 1;
  data.state_[1 + draws % words] += 1 + static_cast<std::uint32_t>(draws / words);
  other.engine_.set_data(data);
  return other;
}

namespace {

bool same_jump(GeneratorPart part, const GeneratorJump::OfPart& a, const GeneratorJump::OfPart& b) {
  return a.draws == b.draws && (a.state == b.state || (a.state && b.state && a.state->same(part, *b.state)));
}

}  // namespace

void GeneratorJump::make(const std::vector<std::optional<GeneratorState>>& after_draws) const {
  for (const GeneratorPart part : kGeneratorParts) {
    const OfPart& jump = to[part];
    if (jump.state) jump.state->restore(part);
    if (jump.draws >= 0) after_draws[static_cast<std::size_t>(jump.draws)]->restore(part);
  }
}

bool GeneratorJump::moves() const { return to[GeneratorPart::kHost].moves() || to[GeneratorPart::kDevice].moves(); }

bool GeneratorJump::operator==(const GeneratorJump& other) const {
  return std::all_of(kGeneratorParts.begin(), kGeneratorParts.end(),
                     [&](GeneratorPart part) { return same_jump(part, to[part], other.to[part]); });
}

bool GeneratorJump::same_but_seed(const GeneratorJump& other) const {
  return std::all_of(kGeneratorParts.begin(), kGeneratorParts.end(), [&](GeneratorPart part) {
    const OfPart &a = to[part], &b = other.to[part];
    return same_jump(part, a, b) || (a.state && b.state && a.state->is_seed(part) && b.state->is_seed(part));
  });
}

}  // namespace stowage::runtime
