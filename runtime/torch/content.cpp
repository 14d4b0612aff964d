#include "runtime/torch/content.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cstring>
#include <vector>

namespace stowage::runtime {
namespace {

// The elements in order, in words of the machine; the last one is filled up with zeros. `shared`: the caller also hands
// out the memory.
std::vector<std::int64_t> content(const at::Tensor& tensor, bool shared) {
  if (!tensor.device().is_cpu()) return content(tensor.cpu(), shared);
  const std::size_t bytes = static_cast<std::size_t>(tensor.numel()) * tensor.element_size();
  std::vector<std::int64_t> words((bytes + 7) / 8, 0);
  if (tensor.is_contiguous()) {
    if (bytes > 0) std::memcpy(words.data(), tensor.const_data_ptr(), bytes);
  } else {
    at::from_blob(words.data(), tensor.sizes(), tensor.options()).copy_(tensor);
  }
  return words;
}

}  // namespace

bool tells_content(const c10::OperatorHandle& op) { return op.schema().name() == "stowage::content"; }

}  // namespace stowage::runtime

TORCH_LIBRARY_FRAGMENT(stowage, m) {
  m.def("content(Tensor tensor, bool shared) -> int[]", {at::Tag::data_dependent_output});
  m.impl("content", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(stowage::runtime::content)));
}
