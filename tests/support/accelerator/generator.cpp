// Generators of the device (see generator.h).
#include "generator.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "settings.h"
#include "streams.h"

namespace standin {
namespace {

constexpr std::uint64_t kOffsetOfOp = 4;
constexpr std::int64_t kStateBytes = 16;
std::mutex g_lending;  // the default CPU generator is lent to one at a time

// Mixes 128 bits into a seed, so that neighbours draw unlike numbers.
std::uint64_t mixed(std::uint64_t seed, std::uint64_t offset) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15U * (offset + 1);
  for (const std::uint64_t factor : {0xbf58476d1ce4e5b9U, 0x94d049bb133111ebU}) x = (x ^ (x >> 29)) * factor;
  return x ^ (x >> 32);
}

class Generator final : public c10::GeneratorImpl {
 public:
  Generator() : c10::GeneratorImpl(kDevice, c10::DispatchKeySet(kKey)) {}

  void set_current_seed(std::uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
    numbers_.set_current_seed(seed);
  }
  std::uint64_t current_seed() const override { return seed_; }
  std::uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_offset(std::uint64_t offset) override { offset_ = offset; }
  std::uint64_t get_offset() const override { return offset_; }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    if (settings().cpu_numbers) return numbers_.get_state().getIntrusivePtr();
    // Not through the dispatcher: CUDA's is not seen there, either.
    const at::Tensor state = at::detail::empty_cpu({kStateBytes}, at::kByte);
    auto* const bytes = static_cast<char*>(state.mutable_data_ptr());
    std::memcpy(bytes, &seed_, sizeof seed_);
    std::memcpy(bytes + sizeof seed_, &offset_, sizeof offset_);
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& state) override {
    if (settings().cpu_numbers) return numbers_.unsafeGetGeneratorImpl()->set_state(state);
    TORCH_CHECK(state.numel() == kStateBytes && state.dtype() == at::kByte, "RNG state is wrong size");
    const auto* const bytes = static_cast<const char*>(state.data());
    std::memcpy(&seed_, bytes, sizeof seed_);
    std::memcpy(&offset_, bytes + sizeof seed_, sizeof offset_);
  }

  // A CPU generator for one op.
  at::Generator next_op() {
    if (!settings().cpu_numbers) {
      numbers_.set_current_seed(mixed(seed_, offset_));
      offset_ += kOffsetOfOp;
    }
    return numbers_;
  }

 private:
  Generator* clone_impl() const override {
    auto* const copy = new Generator();
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    copy->numbers_ = numbers_.clone();
    return copy;
  }

  std::uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
  at::Generator numbers_ = at::detail::createCPUGenerator();
};

void copy_numbers(const at::Generator& to, const at::Generator& from) {
  auto& t = *at::check_generator<at::CPUGeneratorImpl>(to);
  auto& f = *at::check_generator<at::CPUGeneratorImpl>(from);
  t.set_engine(f.engine());
  t.set_next_float_normal_sample(f.next_float_normal_sample());
  t.set_next_double_normal_sample(f.next_double_normal_sample());
}

}  // namespace

const at::Generator& default_generator() {
  static const auto* const g = new at::Generator(at::make_generator<Generator>());
  return *g;
}

at::Generator new_generator() { return at::make_generator<Generator>(); }

Draw::Draw(const at::Generator& from, bool lend) : from_(from.defined() ? from : default_generator()) {
  auto* const generator = static_cast<Generator*>(from_.unsafeGetGeneratorImpl());
  lock_ = std::unique_lock(generator->mutex_);
  numbers_ = generator->next_op();
  counters().draws.fetch_add(1);
  if (!lend) return;
  lending_ = std::unique_lock(g_lending);
  kept_ = at::detail::createCPUGenerator();
  copy_numbers(kept_, at::detail::getDefaultCPUGenerator());
  copy_numbers(at::detail::getDefaultCPUGenerator(), numbers_);
}

Draw::~Draw() {
  if (!kept_.defined()) return;
  copy_numbers(numbers_, at::detail::getDefaultCPUGenerator());
  copy_numbers(at::detail::getDefaultCPUGenerator(), kept_);
}

}  // namespace standin
