// Hooks that a program has put on the autograd node of a tensor that lasts, which no object of Python's shows:
//
//   p.expand_as(p).grad_fn.next_functions[0][0].register_hook(f)     the node that adds up p's gradient; it lives as long as
//                                                                    somebody holds it
//
// A hook is told by its address; those that Python has put lie in one dict per node, whose keys count up. Nothing here links
// libtorch_python: its hooks are known by the name of their type. O(tensors).
#include "runtime.h"

#include <nanobind/stl/vector.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/python_hook.h>

#include <cstring>
#include <typeinfo>

#include "tensors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

class NodeHooks {
 public:
  explicit NodeHooks(const std::vector<Address>& tensors) {
    for (const at::Tensor& tensor : tensors_at(tensors)) tensors_.emplace_back(tensor.getIntrusivePtr());
  }

  // What there is now, as numbers; empty where there are none.
  [[nodiscard]] std::vector<std::uint64_t> now() const {
    std::vector<std::uint64_t> found;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      const auto held = tensors_[i].lock();
      if (!held) continue;
      const at::Tensor tensor(held);
      if (!tensor.requires_grad()) continue;
      if (auto* inner = torch::autograd::impl::grad_fn_unsafe(tensor)) {
        add(i, *inner, found);
      } else if (const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor)) {
        add(i, *node, found);
      }
    }
    return found;
  }

 private:
  static void add(std::size_t tensor, torch::autograd::Node& node, std::vector<std::uint64_t>& found) {
    const std::size_t before = found.size();
    for (const auto& hook : node.pre_hooks())
      add_hook<torch::autograd::PyFunctionPreHook>(*hook, "PyFunctionPreHook", found);
    for (const auto& hook : node.post_hooks())
      add_hook<torch::autograd::PyFunctionPostHook>(*hook, "PyFunctionPostHook", found);
    if (found.size() > before) found.push_back(tensor);
  }

  template <class OfPython, class Hook>
  static void add_hook(const Hook& hook, const char* name, std::vector<std::uint64_t>& found) {
    if (std::strstr(typeid(hook).name(), name) == nullptr) {
      found.push_back(reinterpret_cast<std::uint64_t>(&hook));
      return;
    }
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(static_cast<const OfPython&>(hook).dict, &at, &key, &value) != 0) {
      found.push_back(PyLong_Check(key) ? PyLong_AsUnsignedLongLongMask(key) : reinterpret_cast<std::uint64_t>(key));
      found.push_back(reinterpret_cast<std::uint64_t>(value));
    }
  }

  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> tensors_;
};

}  // namespace

void bind_node_hooks(nb::module_& m) {
  nb::class_<NodeHooks>(m, "NodeHooks")
      .def(nb::init<const std::vector<Address>&>(), "tensors"_a)
      .def("now", &NodeHooks::now, "What is on the autograd nodes of these tensors, as numbers; empty: nothing.");
}
