#include "runtime/torch/compiled_kernel.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stowage::runtime {
namespace {

struct CompiledKernel {
  std::uintptr_t address = 0;
  std::string parameters;
};

std::mutex g_mutex;

std::unordered_map<std::string, CompiledKernel>& kernels() {
  static auto& known = *new std::unordered_map<std::string, CompiledKernel>();
  return known;
}

const CompiledKernel& kernel_named(std::string_view name) {
  const std::lock_guard lock(g_mutex);
  const auto found = kernels().find(std::string(name));
  TORCH_CHECK(found != kernels().end(), "stowage: no kernel of torch.compile is known as '", name, "'");
  return found->second;
}

// A pointer and a 64-bit number are passed alike by the calling conventions of x86-64 and AArch64.
using Word = std::uintptr_t;
static_assert(sizeof(void*) == sizeof(std::int64_t));

template <std::size_t>
using WordAt = Word;

template <std::size_t... kPositions>
void call_with(Word function, const Word* words, std::index_sequence<kPositions...>) {
  reinterpret_cast<void (*)(WordAt<kPositions>...)>(function)(words[kPositions]...);
}

template <std::size_t kCount>
void call(Word function, const Word* words) {
  call_with(function, words, std::make_index_sequence<kCount>());
}

template <std::size_t... kCounts>
constexpr auto calls(std::index_sequence<kCounts...>) {
  return std::array<void (*)(Word, const Word*), sizeof...(kCounts)>{&call<kCounts>...};
}

constexpr auto kCalls = calls(std::make_index_sequence<kMostKernelParameters + 1>());

void compiled_kernel(c10::string_view name, at::TensorList reads, at::TensorList writes, at::IntArrayRef numbers) {
  const CompiledKernel& kernel = kernel_named(name);
  std::array<Word, kMostKernelParameters> words{};
  std::size_t count = 0, read = 0, written = 0, number = 0;
  for (const char parameter : kernel.parameters) {
    TORCH_CHECK(parameter == 'r'   ? read < reads.size()
                : parameter == 'w' ? written < writes.size()
                                   : number < numbers.size(),
                "stowage: ", name, " has more parameters than it was given");
    words[count++] = parameter == 'r'   ? reinterpret_cast<Word>(reads[read++].const_data_ptr())
                     : parameter == 'w' ? reinterpret_cast<Word>(writes[written++].data_ptr())
                                        : static_cast<Word>(numbers[number++]);
  }
  kCalls[count](kernel.address, words.data());
}

}  // namespace

void add_compiled_kernel(const std::string& name, std::uintptr_t address, const std::string& parameters) {
  TORCH_CHECK(parameters.size() <= kMostKernelParameters, "stowage: ", name, " has ", parameters.size(),
              " parameters; at most ", kMostKernelParameters, " are supported");
  TORCH_CHECK(parameters.find_first_not_of("rwn") == std::string::npos, "stowage: unknown parameters '", parameters,
              "'");
  const std::lock_guard lock(g_mutex);
  kernels().insert_or_assign(name, CompiledKernel{address, parameters});
}

bool is_compiled_kernel(const c10::OperatorHandle& op) { return op.schema().name() == "stowage::compiled_kernel"; }

std::string kernel_title(const c10::IValue& name) {
  const std::string& all = name.toStringRef();
  return "inductor::" + all.substr(0, all.find(':'));
}

}  // namespace stowage::runtime

TORCH_LIBRARY_FRAGMENT(stowage, m) {
  m.def("compiled_kernel(str name, Tensor[] reads, Tensor(a!)[] writes, int[] numbers) -> ()");
  m.impl("compiled_kernel", torch::dispatch(c10::DispatchKey::CPU, TORCH_FN(stowage::runtime::compiled_kernel)));
  // Generated code runs below autograd
  m.impl("compiled_kernel", torch::dispatch(c10::DispatchKey::Autograd, torch::CppFunction::makeFallthrough()));
}
