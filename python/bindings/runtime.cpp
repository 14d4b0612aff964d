// stowage._runtime: recording and replaying. Tensors come as addresses; those that go out are made by Python and filled
// here.
#include <ATen/ThreadLocalState.h>
#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <thread>

#include "blocks.h"
#include "eager.h"
#include "generator_sets.h"
#include "lines.h"
#include "node_hooks.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/arena.h"
#include "runtime/memory/available.h"
#include "runtime/record/cost_key.h"
#include "runtime/record/recorder.h"
#include "runtime/replay/data_guards.h"
#include "runtime/replay/executor.h"
#include "runtime/replay/in_place_reuse.h"
#include "runtime/replay/kernel_table.h"
#include "runtime/replay/lower.h"
#include "runtime/replay/matcher.h"
#include "runtime/replay/row_slices.h"
#include "runtime/torch/compiled_kernel.h"
#include "runtime/torch/spent_graph.h"
#include "source_line.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "tensors.h"
#include "turns.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

stowage::BufferKind kind_named(const std::string& name) {
  for (std::size_t i = 0; i < stowage::kBufferKindNames.size(); ++i) {
    if (stowage::kBufferKindNames[i] == name) return static_cast<stowage::BufferKind>(i);
  }
  throw stowage::Error("unknown buffer kind '" + name + "'");
}

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

struct TapeHandle {
  std::shared_ptr<rt::Tape> tape;
};

std::vector<std::pair<Address, std::int64_t>> held_storages(const TapeHandle& handle) {
  std::vector<std::pair<Address, std::int64_t>> held;
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return;
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    held.emplace_back(reinterpret_cast<Address>(storage), static_cast<std::int64_t>(storage->nbytes()));
  };
  for (const rt::Block& block : handle.tape->blocks) {
    if (block.external && block.input < 0) add(block.tensor);
  }
  for (const rt::TapeOp& op : handle.tape->ops) {
    for (const c10::IValue& argument : op.arguments) {
      if (argument.isTensor()) add(argument.toTensor());
    }
  }
  return held;
}

// Where the externals lie that the step's ops touch: (first byte, end, is written, name). An argument's by its number.
std::vector<std::tuple<Address, Address, bool, std::string>> memory_of(const TapeHandle& handle,
                                                                       const std::vector<Address>& inputs) {
  const rt::Tape& tape = *handle.tape;
  const std::vector<at::Tensor> arguments = tensors_at(inputs);
  std::vector<std::pair<bool, bool>> access(tape.blocks.size());  // read, written
  for (const rt::TapeOp& op : tape.ops) {
    rt::for_each_access(tape, op, [&](rt::BlockId block, rt::Access how) {
      (how == rt::Access::kWrite ? access[block.index()].second : access[block.index()].first) = true;
    });
  }
  std::vector<std::tuple<Address, Address, bool, std::string>> found;
  for (std::size_t i = 0; i < tape.blocks.size(); ++i) {
    const rt::Block& block = tape.blocks[i];
    if (!block.external || block.of_python || !(access[i].first || access[i].second)) continue;
    const at::Tensor& tensor = block.input < 0 ? block.tensor : arguments.at(static_cast<std::size_t>(block.input));
    if (!tensor.defined() || !tensor.has_storage()) continue;
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    const auto begin = reinterpret_cast<Address>(storage->_mutable_data_ptr_no_checks().get());
    if (begin == 0) continue;
    const auto start = static_cast<Address>(block.input < 0 ? 0 : block.start_bytes);
    found.emplace_back(begin + start, begin + start + static_cast<Address>(block.bytes), access[i].second, block.name);
  }
  return found;
}

struct LoweredHandle {
  std::shared_ptr<rt::Lowered> lowered;
};

void bind_recorder(nb::module_& m) {
  nb::class_<TapeHandle>(m, "Tape")
      .def_prop_ro("refusal", [](const TapeHandle& t) { return t.tape->refusal; })
      .def_prop_ro("sections", [](const TapeHandle& t) { return t.tape->sections.size(); })
      .def_prop_ro("ops", [](const TapeHandle& t) { return t.tape->ops.size(); })
      .def_prop_ro(
          "reads", [](const TapeHandle& t) { return t.tape->reads.size(); },
          "Numbers that the step makes and its Python asks for.")
      .def_prop_ro("wall_ns", [](const TapeHandle& t) { return t.tape->wall_ns; })
      .def_prop_ro(
          "device", [](const TapeHandle& t) { return t.tape->device.str(); },
          "Where its memory is planned: \"cpu\", ...")
      .def(
          "cost_keys",
          [](const TapeHandle& t) {
            std::vector<std::string> keys;
            for (const rt::TapeOp& op : t.tape->ops) {
              keys.push_back(op.role == rt::TapeOp::Role::kKernel ? rt::cost_key(*t.tape, op) : std::string());
            }
            return keys;
          },
          "What each op's run time depends on; \"\" for those that are not replayed.")
      .def_prop_rw(
          "costs_ns",
          [](const TapeHandle& t) {
            std::vector<std::int64_t> costs;
            for (const rt::TapeOp& op : t.tape->ops) costs.push_back(op.cost_ns);
            return costs;
          },
          [](const TapeHandle& t, const std::vector<std::int64_t>& costs) {
            for (std::size_t i = 0; i < t.tape->ops.size(); ++i) t.tape->ops[i].cost_ns = costs.at(i);
          })
      .def_prop_ro(
          "finds", [](const TapeHandle& t) { return t.tape->finds; }, "Each call comes by other tensors by itself.")
      .def_prop_ro(
          "makes_generators",
          [](const TapeHandle& t) {
            const auto made = [](const auto& known) { return rt::is_made(known.first); };
            return t.tape->sets_come_by || std::ranges::any_of(t.tape->generators, made);
          },
          "It draws from random generators that it makes, or comes by, or sets them.")
      .def_prop_ro(
          "outdated", [](const TapeHandle& t) { return std::ranges::any_of(t.tape->blocks, &rt::Block::replaced); },
          "A later call came by another tensor than one that it holds.")
      .def("held_storages", &held_storages,
           "(address, bytes) of what it keeps alive: residents of the step, and numbers that its Python made.")
      .def("memory", &memory_of, "inputs"_a,
           "Of a recording that has just been made: (first byte, end, written, name) of what it finds and touches.")
      .def(
          "decided",
          [](const TapeHandle& t, const std::vector<Address>& inputs, bool other_numbers) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            const rt::Decided found = rt::decided(*t.tape, in, other_numbers);
            return std::pair(found.other, found.serves);
          },
          "inputs"_a, "other_numbers"_a,
          "What the step's Python would decide otherwise for these arguments than the tape has it, \"\" for nothing; "
          "and if the tape may hold what it does all the same. other_numbers: Python is known to give others.")
      .def(
          "same_program", [](const TapeHandle& a, const TapeHandle& b) { return rt::difference(*a.tape, *b.tape); },
          "other"_a,
          "Empty when both tapes hold the same ops on the same tensors with the same numbers, else what differs "
          "first.");

  nb::class_<rt::Recorder>(m, "Recorder")
      .def(
          "__init__",
          [](rt::Recorder* self, bool fake, std::vector<std::string> hidden, bool distributed) {
            rt::RecordOptions options;
            options.fake = fake;
            options.distributed = distributed;
            options.source = [hidden = std::move(hidden)] { return source_line(hidden); };
            new (self) rt::Recorder(std::move(options));
          },
          "fake"_a, "hidden"_a, "distributed"_a = false)
      .def(
          "declare",
          [](rt::Recorder& r, Address tensor, const std::string& kind, std::string name) {
            r.declare(tensor_at(tensor), kind_named(kind), std::move(name));
          },
          "tensor"_a, "kind"_a, "name"_a)
      .def(
          "declare_input",
          [](rt::Recorder& r, Address tensor, const std::string& kind, std::string name, int input,
             std::int64_t start_bytes, std::int64_t end_bytes) {
            r.declare_input(tensor_at(tensor), kind_named(kind), std::move(name), input, start_bytes, end_bytes);
          },
          "tensor"_a, "kind"_a, "name"_a, "input"_a, "start_bytes"_a, "end_bytes"_a)
      .def(
          "know_generator",
          [](rt::Recorder& r, nb::handle generator, const std::vector<TapeHandle>& earlier) {
            std::vector<std::shared_ptr<rt::Tape>> tapes;
            for (const TapeHandle& tape : earlier) tapes.push_back(tape.tape);
            r.know(generator_of(generator), tapes);
          },
          "generator"_a, "earlier"_a,
          "One that the step can reach, before it may be drawn from or set. earlier: tapes of the same step.")
      .def("start", &rt::Recorder::start)
      .def("stop", &rt::Recorder::stop)
      .def("close", &rt::Recorder::close)
      .def("take_back", &rt::Recorder::take_back)
      .def_prop_ro("kernel_raised", &rt::Recorder::kernel_raised)
      .def("refuse", &rt::Recorder::refuse, "reason"_a)
      .def(
          "reads_on_host",
          [](rt::Recorder& r, Address tensor, const std::string& what) { r.reads_on_host(tensor_at(tensor), what); },
          "tensor"_a, "what"_a)
      .def_prop_ro("refusal", [](const rt::Recorder& r) { return r.refusal(); })
      .def("begin_section",
           [](rt::Recorder& r, const std::vector<Address>& gradients) { r.begin_section(tensors_at(gradients)); })
      .def("end_section", &rt::Recorder::end_section)
      .def("slot_of", [](rt::Recorder& r, Address tensor) { return r.slot_of(tensor_at(tensor)).value; })
      .def("made_in_step", [](const rt::Recorder& r, Address tensor) { return r.made_in_step(tensor_at(tensor)); })
      .def("touched_inputs",
           [](const rt::Recorder& r) {
             const std::set<int> touched = r.touched_inputs();
             return std::vector<int>(touched.begin(), touched.end());
           })
      .def("fills", &rt::Recorder::fills, "inside"_a,
           "Within a function of PyTorch's that fills tensors on the host, by what it has read there.")
      .def("survivors",
           [](const rt::Recorder& r, const std::vector<Address>& allowed) { return r.survivors(tensors_at(allowed)); })
      .def(
          "finish",
          [](rt::Recorder& r, const std::vector<Address>& returned, bool keep, const std::vector<Address>& replaced,
             const std::vector<TapeHandle>& earlier) {
            std::vector<std::shared_ptr<rt::Tape>> tapes;
            for (const TapeHandle& tape : earlier) tapes.push_back(tape.tape);
            return TapeHandle{r.finish(tensors_at(returned), keep, tensors_at(replaced), tapes)};
          },
          "returned"_a, "keep"_a = false, "replaced"_a = std::vector<Address>(),
          "earlier"_a = std::vector<TapeHandle>(),
          "replaced: lasting tensors that the step has read, and put others in their places. earlier: recordings "
          "of the same step.");
}

// Let go of under the GIL, whoever lets go last.
struct HeldObject {
  explicit HeldObject(nb::object held) : object(std::move(held)) {}
  ~HeldObject() {
    const nb::gil_scoped_acquire acquire;
    object.reset();
  }
  HeldObject(const HeldObject&) = delete;
  HeldObject& operator=(const HeldObject&) = delete;
  nb::object object;
};

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

// A Python function that is given something to call; none where there is none.
std::function<void(std::function<void()>)> called_with_work(const nb::object& function,
                                                            const std::shared_ptr<HeldObject>& raised) {
  if (function.is_none()) return {};
  return [held = std::make_shared<HeldObject>(function), raised](const std::function<void()>& work) {
    const nb::gil_scoped_acquire acquire;
    noting_what_it_raises(*raised, [&] { held->object(nb::cpp_function(work)); });
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

void bind_matcher(nb::module_& m) {
  nb::class_<rt::Handover>(m, "Handover")
      .def("begin", &rt::Handover::begin, "executor"_a)
      .def("take_results", &rt::Handover::take_results, "executor"_a);
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
             const std::vector<bool>& decided, const nb::object& kernels) {
            const auto errors = std::make_shared<HeldObject>(raised);
            std::vector<std::shared_ptr<rt::Tape>> tapes;
            for (const TapeHandle& other : others) tapes.push_back(other.tape);
            const std::function<void(std::function<void()>)> run_within = called_with_work(around, errors);
            std::vector<std::unique_ptr<rt::NumberSource>> numbers;
            for (std::size_t i = 0; i <= tapes.size(); ++i) {
              if (executors.at(i) != nullptr) {
                numbers.push_back(std::make_unique<rt::PlannedNumbers>(*executors[i], tensors_at(inputs.at(i))));
              } else {
                numbers.push_back(std::make_unique<rt::PlainNumbers>(i == 0 ? matcher.own_tape() : *tapes[i - 1],
                                                                     tensors_at(inputs.at(i)), run_within));
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
                               decided);
          },
          "inputs"_a, "others"_a, "before_leaving"_a.none(), "copies"_a, "executors"_a, "around"_a.none(), "raised"_a,
          "decided"_a, "kernels"_a,
          nb::sig(
              "def begin_step(self, inputs: collections.abc.Sequence[collections.abc.Sequence[int]], others: "
              "collections.abc.Sequence[Tape], "
              "before_leaving: object | None, copies: bool, executors: collections.abc.Sequence[Executor | None], "
              "around: object | None, raised: list, decided: collections.abc.Sequence[bool], kernels: object) -> None"),
          "executors: of the trusted plans, this tape's first, else None. around(run) calls run() where memory is "
          "limited. What either function "
          "raises is appended to `raised`: within an operator it comes out as a RuntimeError. decided: is what each "
          "tape's guards ask for as it has it? kernels: noted(run) and back() (ToldKernels).")
      .def("step", &match_step, "call"_a,
           "After begin_step(): calls call() and matches what it does; returns what it returns. `difference` says how "
           "it went.")
      .def(
          "returns",
          [](rt::Matcher& matcher, const std::vector<Address>& tensors) {
            return matcher.returns(tensors_at(tensors));
          },
          "tensors"_a)
      .def("run_plainly", &rt::Matcher::run_plainly, nb::call_guard<nb::gil_scoped_release>())
      .def("handover", &rt::Matcher::handover)
      .def_prop_ro("keeps_lost_states", &rt::Matcher::keeps_lost_states)
      .def("kept_agree", &rt::Matcher::kept_agree, "executor"_a)
      .def("forget_step", &rt::Matcher::forget_step, nb::call_guard<nb::gil_scoped_release>())
      .def("leave", &rt::Matcher::leave, "why"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("difference", &rt::Matcher::difference)
      .def_prop_ro("other_operator", &rt::Matcher::other_operator)
      .def_prop_ro("plain_runs", &rt::Matcher::plain_runs)
      .def_prop_ro("read_shell", &rt::Matcher::read_shell)
      .def_prop_ro("chosen", &rt::Matcher::chosen)
      .def_prop_ro("refreshed", &rt::Matcher::refreshed)
      .def_prop_ro("left", &rt::Matcher::left)
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

void bind_executor(nb::module_& m) {
  nb::class_<rt::Arena>(m, "Arena")
      .def(nb::init<>())
      .def("fill", &rt::Arena::fill, "value"_a)
      .def(
          "reserve", [](rt::Arena& arena, std::int64_t bytes) { arena.reserve(bytes); }, "bytes"_a)
      .def("release", &rt::Arena::release)
      .def_prop_ro("bytes", &rt::Arena::bytes);
  nb::class_<rt::RowSlicing>(
      m, "RowSlicing", "Which chains of kernels work row by row in slices, and which products over their operand.")
      .def(
          "__init__",
          [](rt::RowSlicing* self, bool on, std::int64_t slice_bytes, std::int64_t least_bytes, bool wrong,
             std::int64_t product_columns) {
            new (self) rt::RowSlicing{on, slice_bytes, least_bytes, wrong, product_columns};
          },
          "on"_a = true, "slice_bytes"_a = rt::RowSlicing().slice_bytes, "least_bytes"_a = rt::RowSlicing().least_bytes,
          "wrong"_a = false, "product_columns"_a = rt::RowSlicing().product_columns,
          "wrong: for tests, one bit of each result is another one. product_columns: of a slice at least; 0: no "
          "products.");
  nb::class_<rt::TileOptions>(m, "TileOptions", "Which loss heads are done some rows at a time.")
      .def(
          "__init__",
          [](rt::TileOptions* self, bool on, std::int64_t tile_bytes, std::int64_t least_bytes, bool wrong) {
            new (self) rt::TileOptions{on, tile_bytes, least_bytes, wrong};
          },
          "on"_a = false, "tile_bytes"_a = rt::TileOptions().tile_bytes,
          "least_bytes"_a = rt::TileOptions().least_bytes, "wrong"_a = false,
          "wrong: for tests, a number of each result is another one.");
  nb::class_<LoweredHandle>(m, "Lowered")
      .def_prop_ro("graph", [](const LoweredHandle& l) { return l.lowered->graph; })
      .def_prop_ro(
          "replaced", [](const LoweredHandle& l) { return l.lowered->chains.size(); },
          "Chains of kernels that one op stands for.")
      .def_prop_ro(
          "products", [](const LoweredHandle& l) { return l.lowered->products.size(); },
          "Products that may take the memory of their operand.")
      .def_prop_ro(
          "tiled",
          [](const LoweredHandle& l) {
            std::size_t members = 0;
            for (const rt::Tiles& tiles : l.lowered->tiles) members += tiles.members.size();
            return members;
          },
          "Kernels that run on tiles.")
      .def_prop_ro(
          "tile_refusal", [](const LoweredHandle& l) { return l.lowered->tile_refusal; },
          "Why not all loss heads are tiled, where that is asked for.")
      .def(
          "set_costs_ns",
          [](const LoweredHandle& l, const std::vector<std::int64_t>& costs) {
            for (std::size_t i = 0; i < l.lowered->graph.ops.size(); ++i) l.lowered->graph.ops[i].cost_ns = costs.at(i);
            stowage::seal(l.lowered->graph);
          },
          "costs"_a, "Of the graph's ops.");
  m.def(
      "lower",
      [](const TapeHandle& tape, const std::string& name, const rt::RowSlicing& slicing, bool leaving,
         const rt::TileOptions& tiles, const std::set<std::string>& once) {
        LoweredHandle handle{std::make_shared<rt::Lowered>(rt::lower(*tape.tape, name, slicing, tiles, leaving, once))};
        rt::fix_numbers(*tape.tape, handle.lowered->chains);
        return handle;
      },
      "tape"_a, "name"_a, "slicing"_a, "leaving"_a = false, "tiles"_a = rt::TileOptions(),
      "once"_a = std::set<std::string>(),
      nb::sig("def lower(tape: Tape, name: str, slicing: RowSlicing, leaving: bool = False, tiles: TileOptions = ..., "
              "once: "
              "set[str] = ...) -> Lowered"),
      "leaving: residents are marked that may wait on the host. once: kinds of ops that must not be made again.");
  nb::class_<rt::Hosts>(m, "Host", "Where swapped buffers wait, and the link that leads there.")
      .def(
          "__init__",
          [](rt::Hosts* self, std::string directory, std::int64_t limit_bytes, double gbps, std::int64_t good_writes,
             std::int64_t good_reads) {
            const bool file = !directory.empty();
            const auto homes = std::make_shared<rt::Homes>(directory, limit_bytes);
            std::unique_ptr<rt::HostStore> made =
                !file ? rt::memory_store(limit_bytes) : rt::file_store(std::move(directory), limit_bytes);
            if (good_writes >= 0 || good_reads >= 0) made = rt::failing_store(std::move(made), good_writes, good_reads);
            std::shared_ptr<rt::HostStore> store = std::move(made);
            const std::shared_ptr<rt::Link> link = rt::threaded_link(store, gbps);
            const std::shared_ptr<rt::Link> home_link = rt::threaded_link(homes, gbps);
            new (self) rt::Hosts({std::move(store), link, homes, home_link}, file, limit_bytes);
          },
          "directory"_a = "", "limit_bytes"_a = 0, "gbps"_a = 0.0, "good_writes"_a = -1, "good_reads"_a = -1)
      .def_prop_ro("bytes", &rt::Hosts::bytes)
      .def_prop_ro("home_bytes", &rt::Hosts::home_bytes, "Of residents that wait there between their uses.")
      .def(
          "reserve", [](rt::Hosts& hosts, std::int64_t bytes) { hosts.at(kCpu).store->reserve(bytes); }, "bytes"_a)
      .def("release", &rt::Hosts::release)
      .def(
          "measure_gbps",
          [](rt::Hosts& hosts, const std::string& device, std::int64_t room_bytes) {
            const c10::Device where(device);
            const rt::Host host = hosts.at(where);
            return rt::measure_gbps(*host.store, *host.link, rt::device_at(where), room_bytes);
          },
          "device"_a = "cpu", "room_bytes"_a = rt::kTrialBytes, nb::call_guard<nb::gil_scoped_release>());
  m.def("end_copy_thread", &rt::end_copy_thread, "after_parts"_a, "no_more"_a = false,
        "For tests: a copy thread ends once they have moved so many parts (of a MiB) from now; negative: none. Returns "
        "what was left.");
  nb::class_<rt::RunStats>(m, "RunStats")
      .def_ro("misses", &rt::RunStats::misses)
      .def_ro("skipped", &rt::RunStats::skipped)
      .def_ro("peak_bytes", &rt::RunStats::peak_bytes)
      .def_ro("escaped_blocks", &rt::RunStats::escaped_blocks)
      .def_ro("stall_ns", &rt::RunStats::stall_ns)
      .def_ro("rescued_bytes", &rt::RunStats::rescued_bytes)
      .def_ro("wall_ns", &rt::RunStats::wall_ns);
  nb::class_<rt::Executor>(m, "Executor")
      .def(
          "__init__",
          [](rt::Executor* self, const TapeHandle& tape, const LoweredHandle& lowered, const stowage::Plan& plan,
             std::shared_ptr<rt::Arena> arena, const std::shared_ptr<rt::Hosts>& host) {
            new (self) rt::Executor(tape.tape, *lowered.lowered, plan, std::move(arena), host);
          },
          "tape"_a, "lowered"_a, "plan"_a, "arena"_a, "host"_a)
      .def("reserve", &rt::Executor::reserve)
      .def("reserve_host", &rt::Executor::reserve_host)
      .def_prop_ro("host_bytes", [](const rt::Executor& executor) { return executor.swaps().host_bytes; })
      .def(
          "op_times",
          [](const rt::Executor& executor) {
            std::vector<std::pair<int, std::int64_t>> times;
            for (const auto& [op, ns] : executor.op_times()) times.emplace_back(op.value, ns);
            return times;
          },
          "Of the last timed run: (op of the tape, ns), one entry for each time an op ran.")
      .def_prop_ro("swapped_bytes", [](const rt::Executor& executor) { return executor.swaps().swapped_bytes; })
      .def_prop_ro("chain_surprised", &rt::Executor::chain_surprised,
                   "The last rehearsal saw a replacement allocate otherwise than was planned.")
      .def_prop_ro("runs", &rt::Executor::runs)
      .def_prop_ro("half_done", &rt::Executor::half_done)
      .def("look_closely", &rt::Executor::look_closely, "on"_a, "paranoid"_a)
      .def_prop_ro("again_otherwise", &rt::Executor::again_otherwise)
      .def_prop_ro(
          "do_not_repeat", &rt::Executor::do_not_repeat,
          "Kinds of ops that the last run that was looked at made again, on the same inputs, with other results.")
      .def_prop_ro("made_again", &rt::Executor::made_again, "Kinds of ops that the plan makes again.")
      .def("inject", &rt::Executor::inject, "ops"_a, "times"_a = 1,
           "For tests: the kernel after so many others raises, so many times.")
      .def_prop_ro("injected_in", &rt::Executor::injected_in)
      .def("residents_unchanged", &rt::Executor::residents_unchanged)
      .def(
          "accepts",
          [](const rt::Executor& executor, const std::vector<Address>& inputs) {
            return executor.accepts(tensors_at(inputs));
          },
          "inputs"_a)
      .def_prop_ro("learned_something", &rt::Executor::learned_something)
      .def(
          "run",
          [](rt::Executor& executor, const std::vector<Address>& inputs, bool time_ops) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return executor.run(in, {.time_ops = time_ops});
          },
          "inputs"_a, "time_ops"_a = false)
      .def(
          "rehearse",
          [](rt::Executor& executor, const std::vector<Address>& inputs, const rt::Matcher& matcher, bool learn) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return executor.rehearse(in, matcher.host_written(in), learn);
          },
          "inputs"_a, "matcher"_a, "learn"_a = true)
      .def(
          "state",
          [](const rt::Executor& executor, const std::vector<Address>& inputs, const rt::Matcher& matcher) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return executor.state(in, matcher.host_written(in));
          },
          "inputs"_a, "matcher"_a)
      .def(
          "hand_out",
          [](const rt::Executor& executor, const std::vector<Address>& inputs, const std::vector<Address>& into) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            for (std::size_t i = 0; i < into.size(); ++i) {
              tensor_at(into[i]).unsafeGetTensorImpl()->shallow_copy_from(executor.output(i, in).getIntrusivePtr());
            }
          },
          "inputs"_a, "into"_a, "What the last run returns: each tensor of `into` becomes one.")
      .def("is_result", &rt::Executor::is_result, "i"_a, "It lies in the arena: neither a resident nor an input.")
      .def("drop_results", &rt::Executor::drop_results)
      .def("drop_returned", &rt::Executor::drop_returned);
  nb::class_<rt::StateDigest>(m, "StateDigest")
      .def(
          "__eq__", [](const rt::StateDigest& a, const rt::StateDigest& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"));
}

}  // namespace

NB_MODULE(_runtime, m) {
  nb::set_leak_warnings(false);           // a process may end with plans alive
  nb::module_::import_("stowage._core");  // Graph and Plan
  nb::register_exception_translator(&translate);
  m.def("install_allocator", [] {
    watch_generator_sets();
    rt::install_allocator();
  });
  m.def(
      "take_up", [](Address tensor) { rt::take_up(tensor_at(tensor).device()); }, "tensor"_a,
      "Steps are planned on its device from now on.");
  nb::class_<rt::GeneratorState>(m, "GeneratorState",
                                 "Of the default generators, the CPU's and the accelerator's, and of others.")
      .def(
          "__init__",
          [](rt::GeneratorState* self, const nb::list& others) {
            rt::Generators generators;
            for (const nb::handle other : others) {
              const at::Generator generator = generator_of(other);
              const rt::GeneratorPart part = rt::part_of(generator.unsafeGetGeneratorImpl());
              const bool default_one = part == rt::kHostGenerator || part == rt::kDeviceGenerator;
              if (!default_one && rt::why_not_repeatable(generator).empty()) generators[part] = generator;
            }
            new (self) rt::GeneratorState(rt::GeneratorState::current(generators));
          },
          "others"_a = nb::list())
      .def("put_back", [](const rt::GeneratorState& self) { self.restore(); })
      .def(
          "__eq__", [](const rt::GeneratorState& a, const rt::GeneratorState& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"));
  m.def("require_allocator", &rt::require_allocator);
  m.def("available_bytes", &rt::available_bytes, "root"_a = "/",
        "Memory that can be had before the kernel must take it from somebody.");
  m.attr("SHELL_TEXT") = rt::kShellText;
  m.attr("MOST_KERNEL_PARAMETERS") = rt::kMostKernelParameters;
  m.def(
      "unrecorded",
      [](const nb::callable& call) {
        const rt::Unseen unseen;
        return call();
      },
      "call"_a, "What call() returns, whose operators no recorder sees.");
  m.def(
      "with_step_keys",
      [](const nb::callable& call) {
        const rt::WithStepKeys keys;
        return call();
      },
      "call"_a,
      "What call() returns. Tensors have the dispatch keys meanwhile that they have while a step is recorded.");
  m.def("pass_unseen", &rt::pass_unseen, "passes"_a,
        "From true on, until false, no recorder of this thread sees its operators.");
  m.def(
      "add_compiled_kernel", &rt::add_compiled_kernel, "name"_a, "address"_a, "parameters"_a,
      "Makes a C function that torch.compile has generated known to torch.ops.stowage.compiled_kernel. parameters: 'r' "
      "for a tensor that is read, 'w' for one that is written, 'n' for a 64-bit number.");
  m.def(
      "live_bytes", [](const std::string& device) { return rt::live_bytes(c10::Device(device)); }, "device"_a = "cpu");
  m.def(
      "peak_bytes", [](const std::string& device) { return rt::peak_bytes(c10::Device(device)); }, "device"_a = "cpu");
  m.def("reset_peak", [](const std::string& device) { rt::reset_peak(c10::Device(device)); }, "device"_a = "cpu");
  m.def(
      "raise_peak", [](std::int64_t bytes, const std::string& device) { rt::raise_peak(bytes, c10::Device(device)); },
      "bytes"_a, "device"_a = "cpu");
  m.def("in_place_reuse_ops", &rt::in_place_reuse_ops, "Ops whose result may be placed over an input, by overload.");
  m.def("row_slice_ops", &rt::row_slice_ops, "Ops that may run on some rows at a time, by overload.");
  nb::class_<ThreadState>(m, "ThreadState", "As it is now.").def(nb::init<>());
  m.def("uninterrupted", &uninterrupted, "function"_a, "error"_a.none() = nb::none(), "before"_a.none() = nb::none());
  m.def("intercepting", &rt::intercepting);
  m.def("tell_cannot_replay", &rt::tell_cannot_replay, "why"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Where this thread records or matches a step: what that does that no replay can do.");
  m.def(
      "digest",
      [](Address tensor) {
        const at::Tensor t = tensor_at(tensor);
        const rt::Digest d = rt::digest(t.const_data_ptr(), static_cast<std::int64_t>(t.nbytes()), t.device());
        return nb::bytes(reinterpret_cast<const char*>(d.data()), sizeof(d));
      },
      "tensor"_a, "Of the bytes of a contiguous tensor.");
  m.def(
      "end_with_spent_graph",
      [](Address tensor, const std::string& name) { rt::end_with_spent_graph(tensor_at(tensor), name); }, "tensor"_a,
      "name"_a, "It requires grad from now on, and its graph is one that backward has used up.");
  bind_recorder(m);
  bind_node_hooks(m);
  bind_turns(m);
  bind_matcher(m);
  bind_executor(m);
  bind_blocks(m);
  bind_eager(m);
  bind_owners(m);
}
