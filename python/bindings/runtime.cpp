// stowage._runtime: recording and replaying, a file for each part (runtime.h). Tensors come as addresses; those that go out are
// made by Python and filled here.
#include "runtime.h"

#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>

#include <algorithm>
#include <exception>
#include <new>

#include "blocks.h"
#include "lines.h"

namespace nb = nanobind;

namespace {

template <class Kind>
bool is(const c10::Error& e) {
  return dynamic_cast<const Kind*>(&e) != nullptr;
}

struct PythonClass {
  bool (*is)(const c10::Error&);
  const char* module;
  const char* name;
};

// Kernel errors keep the Python class that eager would raise, but where memory is short. Those of torch are looked up by
// name: nothing here needs libtorch_python. What is derived from another stands before it.
constexpr PythonClass kClasses[] = {
    {&is<c10::OutOfMemoryError>, "builtins", "MemoryError"},
    {&is<c10::IndexError>, "builtins", "IndexError"},
    {&is<c10::ValueError>, "builtins", "ValueError"},
    {&is<c10::TypeError>, "builtins", "TypeError"},
    {&is<c10::NotImplementedError>, "builtins", "NotImplementedError"},
    {&is<c10::BufferError>, "builtins", "BufferError"},
    {&is<c10::SyntaxError>, "builtins", "SyntaxError"},
    {&is<c10::LinAlgError>, "torch._C", "_LinAlgError"},
    {&is<c10::DistBackendError>, "torch._C", "_DistBackendError"},
    {&is<c10::DistNetworkError>, "torch._C", "_DistNetworkError"},
    {&is<c10::DistQueueEmptyError>, "torch._C", "_DistQueueEmptyError"},
    {&is<c10::DistStoreError>, "torch._C", "_DistStoreError"},
    {&is<c10::DistError>, "torch._C", "_DistError"},
    {&is<c10::AcceleratorError>, "torch._C", "AcceleratorError"},
    {&is<c10::Error>, "builtins", "RuntimeError"},
};

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "no memory");
  } catch (const c10::Error& e) {
    const auto& found = *std::ranges::find_if(kClasses, [&](const PythonClass& known) { return known.is(e); });
    const nb::object kind = nb::module_::import_(found.module).attr(found.name);
    nb::object error = kind(e.what_without_backtrace());
    if (const auto* there = dynamic_cast<const c10::AcceleratorError*>(&e))
      error.attr("error_code") = there->get_error_code();
    PyErr_SetObject(kind.ptr(), error.ptr());
  }
}

}  // namespace

NB_MODULE(_runtime, m) {
  nb::set_leak_warnings(false);           // a process may end with plans alive
  nb::module_::import_("stowage._core");  // Graph and Plan
  nb::register_exception_translator(&translate);
  bind_memory(m);
  bind_generators(m);
  bind_operators(m);
  bind_uninterrupted(m);
  bind_recorder(m);
  bind_node_hooks(m);
  bind_turns(m);
  bind_matcher(m);
  bind_lowering(m);
  bind_executor(m);
  bind_blocks(m);
  bind_eager(m);
  bind_owners(m);
}
