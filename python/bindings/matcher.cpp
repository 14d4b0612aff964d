// Matching a call with tapes: what the call does is compared with what was recorded, and numbers come from the plan.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "handles.h"
#include "held_object.h"
#include "runtime.h"
#include "runtime/replay/executor.h"
#include "runtime/replay/index_ranges.h"
#include "runtime/replay/matcher.h"
#include "runtime/replay/numbers.h"
#include "tensors.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

namespace {

// call(); what it raises is also appended to the list: within an operator it becomes a RuntimeError on its way.
template <class Call>
void noting_what_it_raises(const HeldObject& raised, const Call& call) {
  try {
    call();
  } catch (nb::python_error& error) {
    nb::borrow<nb::list>(raised.object).append(error.value());
    throw;
  }
}

// Of a Python function of (run, may_fail) that answers True, False or None; none where there is none.
rt::WithinLimit within_limit(const nb::object& function, const std::shared_ptr<HeldObject>& raised) {
  if (function.is_none()) return {};
  return [held = std::make_shared<HeldObject>(function), raised](const std::function<void()>& run, bool may_fail) {
    const nb::gil_scoped_acquire acquire;
    nb::object room;
    noting_what_it_raises(*raised, [&] { room = held->object(nb::cpp_function(run), may_fail); });
    if (room.is_none()) return rt::Room::kShort;
    return nb::cast<bool>(room) ? rt::Room::kEnough : rt::Room::kMade;
  };
}

rt::OnAllRanks on_all_ranks(const nb::object& function, const std::shared_ptr<HeldObject>& raised) {
  if (function.is_none()) return {};
  return [held = std::make_shared<HeldObject>(function), raised](bool under_way) {
    const nb::gil_scoped_acquire acquire;
    bool on_all = false;
    noting_what_it_raises(*raised, [&] { on_all = nb::cast<bool>(held->object(under_way)); });
    return on_all;
  };
}

// The kernels of what is told run without the GIL, as others do.
rt::PythonOfKernels python_of_kernels(const nb::object& kernels) {
  const auto held = std::make_shared<HeldObject>(kernels);
  return {[held](const std::function<void()>& run) {
            const nb::gil_scoped_acquire acquire;
            held->object.attr("noted")(nb::cpp_function([&run] {
              const nb::gil_scoped_release release;
              run();
            }));
          },
          [held] {
            const nb::gil_scoped_acquire acquire;
            held->object.attr("back")();
          }};
}

// An interrupt has no moment between the beginning and the call, nor between the call and the end: those are C++.
std::string match_section(rt::Matcher& matcher, int section, const nb::object& step) {
  struct End {
    rt::Matcher& matcher;
    std::string differed = {};
    ~End() { matcher.end(); }
  } end{matcher};
  matcher.begin(section);
  try {
    step();
  } catch (nb::python_error& error) {
    // The hook ends a step() that differs by an exception of its own; one that raises by itself will do so again,
    // eagerly.
    const std::string differed = matcher.end();
    if (error.matches(PyExc_Exception) && !differed.empty()) return differed;
    throw;
  }
  return matcher.end();
}

// The same for a whole step. Returns what call() returns.
nb::object match_step(rt::Matcher& matcher, const nb::object& call) {
  struct Stop {
    rt::Matcher& matcher;
    ~Stop() { matcher.stop(); }
  } stop{matcher};
  matcher.start();
  try {
    nb::object result = call();
    const nb::gil_scoped_release release;
    matcher.end_step();
    return result;
  } catch (nb::python_error& error) {
    // No part of the step: it can come anywhere, and nothing of the step has happened
    if (error.matches(PyExc_KeyboardInterrupt)) throw;
    const std::string text = error.what();
    const nb::gil_scoped_release release;
    matcher.abandon_step(text);
    throw;
  }
}

}  // namespace

void bind_matcher(nb::module_& m) {
  nb::class_<rt::Handover>(m, "Handover")
      .def("begin", &rt::Handover::begin, "executor"_a)
      .def("take_results", &rt::Handover::take_results, "executor"_a);
  nb::class_<rt::IndexRanges>(m, "IndexRanges", "Indices among the arguments that a kernel of a tape refuses.")
      .def("__init__", [](rt::IndexRanges* self, const TapeHandle& tape) { new (self) rt::IndexRanges(tape.tape); })
      .def(
          "refused",
          [](const rt::IndexRanges& ranges, const std::vector<Address>& inputs) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return ranges.refused(in);
          },
          "inputs"_a, "The op that would raise for these arguments, with its line; \"\" for none.")
      .def(
          "may_refuse",
          [](const rt::IndexRanges& ranges, const std::vector<Address>& inputs) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return ranges.may_refuse(in);
          },
          "inputs"_a, "As refused(), but whichever part of an argument the step looks at.")
      .def("foreseen", &rt::IndexRanges::foreseen,
           "Of the recorder's ``around``, the places of those ops that raise for nothing but what may_refuse() sees.");
  nb::class_<rt::Matcher>(m, "Matcher")
      .def("__init__", [](rt::Matcher* self, const TapeHandle& tape) { new (self) rt::Matcher(tape.tape); })
      .def(
          "adopt_shell",
          [](rt::Matcher& matcher, Address tensor, int slot) {
            matcher.adopt_shell(tensor_at(tensor), rt::SlotId(slot));
          },
          "tensor"_a, "slot"_a)
      .def(
          "bind", [](rt::Matcher& matcher, const std::vector<Address>& inputs) { matcher.bind(tensors_at(inputs)); },
          "inputs"_a)
      .def("section", &match_section, "section"_a, "step"_a,
           "Calls step() and matches the section with what it does; the matching ends however the call ends. Returns "
           "what differed, or \"\".")
      .def(
          "begin_step",
          [](rt::Matcher& matcher, const std::vector<std::vector<Address>>& inputs,
             const std::vector<TapeHandle>& others, const nb::object& before_leaving, bool copies,
             const std::vector<rt::Executor*>& executors, const nb::object& around, const nb::list& raised,
             const std::vector<bool>& decided, const nb::object& kernels, const nb::object& everywhere) {
            const auto errors = std::make_shared<HeldObject>(raised);
            std::vector<std::shared_ptr<rt::Tape>> tapes;
            for (const TapeHandle& other : others) tapes.push_back(other.tape);
            const rt::WithinLimit within = within_limit(around, errors);
            std::vector<std::unique_ptr<rt::NumberSource>> numbers;
            for (std::size_t i = 0; i <= tapes.size(); ++i) {
              if (executors.at(i) != nullptr) {
                numbers.push_back(std::make_unique<rt::PlannedNumbers>(*executors[i], tensors_at(inputs.at(i))));
              } else {
                numbers.push_back(std::make_unique<rt::PlainNumbers>(i == 0 ? matcher.own_tape() : *tapes[i - 1],
                                                                     tensors_at(inputs.at(i)), within));
              }
              if (!(i == 0 ? matcher.own_tape() : *tapes[i - 1]).foreign) continue;
              numbers.back() =
                  std::make_unique<rt::NotedNumbers>(std::move(numbers.back()), python_of_kernels(kernels));
            }
            std::function<void()> call;
            if (!before_leaving.is_none()) {
              call = [before_leaving = std::make_shared<HeldObject>(before_leaving), errors] {
                const nb::gil_scoped_acquire acquire;
                noting_what_it_raises(*errors, [&] { before_leaving->object(); });
              };
            }
            std::vector<std::vector<at::Tensor>> tensors;
            for (const std::vector<Address>& each : inputs) tensors.push_back(tensors_at(each));
            matcher.begin_step(std::move(tensors), std::move(tapes), std::move(call), copies, std::move(numbers),
                               decided, on_all_ranks(everywhere, errors));
          },
          "inputs"_a, "others"_a, "before_leaving"_a.none(), "copies"_a, "executors"_a, "around"_a.none(), "raised"_a,
          "decided"_a, "kernels"_a, "on_all_ranks"_a.none(),
          nb::sig("def begin_step(self, inputs: collections.abc.Sequence[collections.abc.Sequence[int]], others: "
                  "collections.abc.Sequence[Tape], before_leaving: object | None, copies: bool, executors: "
                  "collections.abc.Sequence[Executor | None], around: object | None, raised: list, decided: "
                  "collections.abc.Sequence[bool], kernels: object, on_all_ranks: object | None) -> None"),
          "executors: of the trusted plans, this tape's first, else None. around(run, may_fail) calls run() where "
          "memory is limited: was there room, without any to be made? None: not enough. What these functions raise "
          "is appended to `raised`: within an operator it comes out as a RuntimeError. decided: is what each tape's "
          "guards ask for as it has it? kernels: noted(run) and back() (ToldKernels). on_all_ranks(under_way): of a "
          "step that is split, asked before kernels run for a number: have some run on all ranks?")
      .def("step", &match_step, "call"_a,
           "After begin_step(): calls call() and matches what it does; returns what it returns. `difference` says how "
           "it went.")
      .def(
          "returns",
          [](rt::Matcher& matcher, const std::vector<Address>& tensors) {
            return matcher.returns(tensors_at(tensors));
          },
          "tensors"_a)
      .def_prop_ro("under_way", &rt::Matcher::under_way)
      .def("start_over", &rt::Matcher::start_over)
      .def("run_plainly", &rt::Matcher::run_plainly, nb::call_guard<nb::gil_scoped_release>())
      .def("handover", &rt::Matcher::handover)
      .def_prop_ro("keeps_lost_states", &rt::Matcher::keeps_lost_states)
      .def("kept_agree", &rt::Matcher::kept_agree, "executor"_a)
      .def("forget_step", &rt::Matcher::forget_step, nb::call_guard<nb::gil_scoped_release>())
      .def("leave", &rt::Matcher::leave, "why"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("difference", &rt::Matcher::difference)
      .def_prop_ro("altered",
                   [](const rt::Matcher& m) { return std::vector<int>(m.altered().begin(), m.altered().end()); })
      .def_prop_ro("decides_as_before", &rt::Matcher::decides_as_before)
      .def_prop_ro(
          "told_otherwise",
          [](const rt::Matcher& matcher) {
            std::vector<std::int32_t> ops;
            for (const rt::TapeOpId op : matcher.told_otherwise()) ops.push_back(static_cast<std::int32_t>(op.index()));
            return ops;
          },
          "Ops that have told Python other numbers, which the step makes, than when it was recorded.")
      .def_prop_ro("left_by", &rt::Matcher::left_by)
      .def_prop_ro("plain_runs", &rt::Matcher::plain_runs)
      .def_prop_ro("read_shell", &rt::Matcher::read_shell)
      .def_prop_ro("chosen", &rt::Matcher::chosen)
      .def_prop_ro("refreshed", &rt::Matcher::refreshed)
      .def_prop_ro("left", &rt::Matcher::left)
      .def_prop_ro("matched", &rt::Matcher::matched)
      .def("repeatable_since", &rt::Matcher::repeatable_since, "matched"_a)
      .def(
          "is_behind", [](const rt::Matcher& matcher, Address tensor) { return matcher.is_behind(tensor_at(tensor)); },
          "tensor"_a, "Would what has been matched so far write it? Its memory does not show that yet.")
      .def(
          "touches", [](const rt::Matcher& matcher, Address tensor) { return matcher.touches(tensor_at(tensor)); },
          "tensor"_a, "Would what has been matched so far read it or write it?")
      .def(
          "array_made",
          [](rt::Matcher& matcher, Address memory, Address tensor, bool is_shell) {
            return matcher.array_made(tensor_at(memory), tensor_at(tensor), is_shell);
          },
          "memory"_a, "tensor"_a, "is_shell"_a)
      .def("array_gone", &rt::Matcher::array_gone, "number"_a)
      .def("join_arrays", &rt::Matcher::join_arrays)
      .def_prop_ro("array_stays", &rt::Matcher::array_stays)
      .def_prop_ro("left_in_section", &rt::Matcher::left_in_section)
      .def_prop_ro("other_in_step", &rt::Matcher::other_in_step)
      .def("look_closely", &rt::Matcher::look_closely, "on"_a)
      .def(
          "first_difference",
          [](const rt::Matcher& matcher, const rt::Executor& executor, bool watched) {
            return matcher.first_difference(executor.traced(), watched);
          },
          "executor"_a, "watched"_a = false)
      .def(
          "watch",
          [](rt::Matcher& matcher, const rt::Executor& executor) {
            matcher.watch(executor.replaced(), executor.tiles());
          },
          "executor"_a, "In the next plain run: what the executor's plan replaces.")
      .def_prop_ro(
          "tile_error",
          [](const rt::Matcher& matcher) {
            const rt::TileError& error = matcher.tile_error();
            return std::make_tuple(error.relative, error.absolute, error.where, error.too_large);
          },
          "Of the tiles in the latest plain run: the largest difference as a part of the largest number of its result, "
          "the "
          "largest one in numbers, the op that the first is of, and whether it is larger than roundings make it.")
      .def(
          "remember",
          [](rt::Matcher& matcher, const std::vector<Address>& inputs) { matcher.remember(tensors_at(inputs)); },
          "inputs"_a)
      .def("roll_back", &rt::Matcher::roll_back);
}
