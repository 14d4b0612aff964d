// A call of a compiled step has its turn (runtime/replay/turns.h) as a with block of Python. When the block ends, whatever
// interrupts it: what the call has begun comes to its end, and no function mode of ours stays on the thread.
#include "runtime.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <nanobind/stl/string.h>

#include "blocks.h"
#include "runtime/replay/turns.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

namespace {

// Takes function modes of Stowage's own from the top of this thread's stack, down to so many, where an interrupt came
// before those that put them there could. The user's stay.
void drop_function_modes(std::int64_t down_to) {
  using Stack = at::impl::PythonTorchFunctionTLS;
  while (Stack::stack_len() > down_to) {
    const auto top = Stack::get_stack_at(Stack::stack_len() - 1);
    const nb::object module = nb::handle(top->ptr(&top->pyinterpreter())).type().attr("__module__");
    if (!nb::isinstance<nb::str>(module) || !nb::cast<std::string>(module).starts_with("stowage.")) return;
    Stack::pop_stack();
  }
}

// Where PyTorch takes a mode off the stack for a while, an interrupt can leave the generator that puts it back
// suspended in a frame. It does so when the frame goes: now, not at some time after the call.
void clear_frames(nb::handle traceback) {
  const nb::object clear = nb::module_::import_("traceback").attr("clear_frames");
  to_its_end(nb::module_::import_("functools").attr("partial")(clear, traceback));
}

// A turn as a with block, and what it ends with.
struct TurnOfCall {
  rt::Turn turn;
  nb::object last;                  // its end() comes to its end, too
  std::int64_t function_modes = 0;  // of the thread when it began
};

// Where a signal has come whose handler raises, so does this.
void let_signals_in() {
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

void bind_turns(nb::module_& m) {
  constexpr auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<rt::Gate>(m, "Gate", "Of a step: one thread at a time is through, as often as it wants.")
      .def(nb::init<>());
  nb::class_<TurnOfCall>(m, "Turn",
                         "Of a compiled step, in a with block: through its gate, and together with those of other "
                         "threads, or alone(). Raises "
                         "stowage.Error where a turn does not come for `longest_s` seconds.")
      .def(
          "__init__",
          [](TurnOfCall* self, rt::Gate* gate, double longest_s) {
            new (self) TurnOfCall{rt::Turn(gate, longest_s), nb::none(), 0};
          },
          "gate"_a.none() = nb::none(), "longest_s"_a = rt::kLongestWaitS, nb::keep_alive<1, 2>())
      .def(
          "__enter__",
          [](nb::handle self) {
            auto& turn = nb::cast<TurnOfCall&>(self).turn;
            nb::cast<TurnOfCall&>(self).function_modes = at::impl::PythonTorchFunctionTLS::stack_len();
            {
              const nb::gil_scoped_release release;
              turn.begin(&let_signals_in);
            }
            return nb::borrow(self);
          },
          nb::sig("def __enter__(self) -> Turn"))
      .def(
          "__exit__",
          [](TurnOfCall& self, nb::handle, nb::handle error, nb::handle traceback) {
            const std::exception_ptr interrupt = self.last.is_none() ? nullptr : to_its_end(self.last.attr("end"));
            if (!error.is_none() && PyErr_GivenExceptionMatches(error.ptr(), PyExc_Exception) == 0)
              clear_frames(traceback);
            self.turn.end();
            drop_function_modes(self.function_modes);
            if (interrupt) std::rethrow_exception(interrupt);
          },
          "kind"_a.none(), "error"_a.none(), "traceback"_a.none())
      .def(
          "alone", [](TurnOfCall& self) { return self.turn.alone(&let_signals_in); }, unlocked,
          "From now on; True where others may have run since the block began.")
      .def(
          "ends", [](TurnOfCall& self, nb::object last) { self.last = std::move(last); }, "last"_a.none(),
          "The block ends with last.end(), whatever interrupts it.");
}
