// stowage._runtime: recording and replaying, a file for each part (runtime.h). Tensors come as addresses; those that go out are
// made by Python and filled here.
#include "runtime.h"

#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>

#include <exception>
#include <new>

#include "blocks.h"
#include "lines.h"

namespace nb = nanobind;

namespace {

// Kernel errors keep the Python type that eager would raise.
void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const std::bad_alloc&) {
    PyErr_SetString(PyExc_MemoryError, "no memory");
  } catch (const c10::OutOfMemoryError& e) {
    PyErr_SetString(PyExc_MemoryError, e.what_without_backtrace());
  } catch (const c10::IndexError& e) {
    PyErr_SetString(PyExc_IndexError, e.what_without_backtrace());
  } catch (const c10::ValueError& e) {
    PyErr_SetString(PyExc_ValueError, e.what_without_backtrace());
  } catch (const c10::TypeError& e) {
    PyErr_SetString(PyExc_TypeError, e.what_without_backtrace());
  } catch (const c10::NotImplementedError& e) {
    PyErr_SetString(PyExc_NotImplementedError, e.what_without_backtrace());
  } catch (const c10::Error& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what_without_backtrace());
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
