// Calls that no interrupt ends half way.
#include <ATen/ThreadLocalState.h>
#include <nanobind/nanobind.h>

#include <exception>
#include <thread>

#include "runtime.h"
#include "runtime/torch/generator.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

namespace {

void uninterrupted_call(const nb::object& function) {
  std::exception_ptr error;
  bool no_memory = false;  // for another thread
  rt::OwnGeneratorSets& sets = rt::own_generator_sets();
  {
    const nb::gil_scoped_release release;
    try {
      std::thread([&] {
        const nb::gil_scoped_acquire acquire;
        rt::own_generator_sets() = sets;
        try {
          function();
        } catch (nb::python_error& raised) {
          no_memory = raised.matches(PyExc_MemoryError);
          if (!no_memory) error = std::current_exception();
        } catch (...) {
          error = std::current_exception();
        }
        sets = rt::own_generator_sets();
      }).join();
    } catch (const std::exception&) {
      no_memory = true;
    }
  }
  if (no_memory) function();
  if (error) std::rethrow_exception(error);
}

// What PyTorch keeps for the calling thread: whether gradients are recorded, modes, autocast.
struct ThreadState {
  at::ThreadLocalState state;
};

// Calls function(), which may be called twice, on another thread and waits: there Python runs no signal handlers, so
// that nothing can interrupt it. Before, where `error` is an interrupt, the thread gets back the state that it had: the
// interrupt may have come between the lines of a library that would have put it back.
void uninterrupted(const nb::object& function, const nb::object& error, const ThreadState* before) {
  if (before != nullptr && !error.is_none() && PyErr_GivenExceptionMatches(error.ptr(), PyExc_Exception) == 0) {
    at::ThreadLocalState::setThreadLocalState(before->state);
  }
  uninterrupted_call(function);
}

}  // namespace

void bind_uninterrupted(nb::module_& m) {
  nb::class_<ThreadState>(m, "ThreadState", "As it is now.").def(nb::init<>());
  m.def("uninterrupted", &uninterrupted, "function"_a, "error"_a.none() = nb::none(), "before"_a.none() = nb::none());
}
