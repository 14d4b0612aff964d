// stowage._runtime: recording and replaying. Tensors come as addresses; those that go out are made by Python and filled here.
#include <c10/util/Exception.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "eager.h"
#include "runtime/allocator.h"
#include "runtime/arena.h"
#include "runtime/available.h"
#include "runtime/cost_key.h"
#include "runtime/data_guards.h"
#include "runtime/executor.h"
#include "runtime/lower.h"
#include "runtime/matcher.h"
#include "runtime/recorder.h"
#include "runtime/takeover.h"
#include "source_line.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "tensors.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

namespace {

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

struct LoweredHandle {
  std::shared_ptr<rt::Lowered> lowered;
};

void bind_recorder(nb::module_& m) {
  nb::class_<TapeHandle>(m, "Tape")
      .def_prop_ro("refusal", [](const TapeHandle& t) { return t.tape->refusal; })
      .def_prop_ro("sections", [](const TapeHandle& t) { return t.tape->sections.size(); })
      .def_prop_ro("ops", [](const TapeHandle& t) { return t.tape->ops.size(); })
      .def_prop_ro("reads", [](const TapeHandle& t) { return t.tape->reads.size(); }, "Numbers that the step makes and its Python asks for.")
      .def_prop_ro("wall_ns", [](const TapeHandle& t) { return t.tape->wall_ns; })
      .def("cost_keys", [](const TapeHandle& t) {
        std::vector<std::string> keys;
        for (const rt::TapeOp& op : t.tape->ops) {
          keys.push_back(op.role == rt::TapeOp::Role::kKernel ? rt::cost_key(*t.tape, op) : std::string());
        }
        return keys;
      }, "What each op's run time depends on; \"\" for those that are not replayed.")
      .def_prop_rw("costs_ns", [](const TapeHandle& t) {
        std::vector<std::int64_t> costs;
        for (const rt::TapeOp& op : t.tape->ops) costs.push_back(op.cost_ns);
        return costs;
      }, [](const TapeHandle& t, const std::vector<std::int64_t>& costs) {
        for (std::size_t i = 0; i < t.tape->ops.size(); ++i) t.tape->ops[i].cost_ns = costs.at(i);
      })
      .def("held_storages", &held_storages, "(address, bytes) of what it keeps alive: residents of the step, and numbers that its Python made.")
      .def("changed_decision", [](const TapeHandle& t, const std::vector<Address>& inputs) {
        const std::vector<at::Tensor> in = tensors_at(inputs);
        const nb::gil_scoped_release release;
        return rt::changed_decision(*t.tape, in);
      }, "inputs"_a, "Empty when the step's Python would decide for these arguments as it did when recorded.")
      .def("same_program", [](const TapeHandle& a, const TapeHandle& b) { return rt::difference(*a.tape, *b.tape); }, "other"_a,
           "Empty when both tapes hold the same ops on the same tensors with the same numbers, else what differs first.");

  nb::class_<rt::Recorder>(m, "Recorder")
      .def("__init__", [](rt::Recorder* self, bool fake, std::vector<std::string> hidden, bool distributed) {
        rt::RecordOptions options;
        options.fake = fake;
        options.distributed = distributed;
        options.source = [hidden = std::move(hidden)] { return source_line(hidden); };
        new (self) rt::Recorder(std::move(options));
      }, "fake"_a, "hidden"_a, "distributed"_a = false)
      .def("declare", [](rt::Recorder& r, Address tensor, const std::string& kind, std::string name) {
        r.declare(tensor_at(tensor), kind_named(kind), std::move(name));
      }, "tensor"_a, "kind"_a, "name"_a)
      .def("declare_input", [](rt::Recorder& r, Address tensor, const std::string& kind, std::string name, int input, std::int64_t start_bytes,
                               std::int64_t end_bytes) {
        r.declare_input(tensor_at(tensor), kind_named(kind), std::move(name), input, start_bytes, end_bytes);
      }, "tensor"_a, "kind"_a, "name"_a, "input"_a, "start_bytes"_a, "end_bytes"_a)
      .def("start", &rt::Recorder::start)
      .def("stop", &rt::Recorder::stop)
      .def("close", &rt::Recorder::close)
      .def("refuse", &rt::Recorder::refuse, "reason"_a)
      .def("reads_on_host", [](rt::Recorder& r, Address tensor, const std::string& what) { r.reads_on_host(tensor_at(tensor), what); },
           "tensor"_a, "what"_a)
      .def_prop_ro("refusal", [](const rt::Recorder& r) { return r.refusal(); })
      .def("begin_section", [](rt::Recorder& r, const std::vector<Address>& gradients) { r.begin_section(tensors_at(gradients)); })
      .def("end_section", &rt::Recorder::end_section)
      .def("slot_of", [](rt::Recorder& r, Address tensor) { return r.slot_of(tensor_at(tensor)).value; })
      .def("made_in_step", [](const rt::Recorder& r, Address tensor) { return r.made_in_step(tensor_at(tensor)); })
      .def("touched_inputs", [](const rt::Recorder& r) {
        const std::set<int> touched = r.touched_inputs();
        return std::vector<int>(touched.begin(), touched.end());
      })
      .def("survivors", [](const rt::Recorder& r, const std::vector<Address>& allowed) { return r.survivors(tensors_at(allowed)); })
      .def("finish", [](rt::Recorder& r, const std::vector<Address>& returned, bool keep) {
        return TapeHandle{r.finish(tensors_at(returned), keep)};
      }, "returned"_a, "keep"_a = false);
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

// A Python function that is given something to call; none where there is none.
std::function<void(std::function<void()>)> called_with_work(const nb::object& function) {
  if (function.is_none()) return {};
  return [held = std::make_shared<HeldObject>(function)](const std::function<void()>& work) {
    const nb::gil_scoped_acquire acquire;
    held->object(nb::cpp_function(work));
  };
}

void bind_matcher(nb::module_& m) {
  nb::class_<rt::Matcher>(m, "Matcher")
      .def("__init__", [](rt::Matcher* self, const TapeHandle& tape) { new (self) rt::Matcher(tape.tape); })
      .def("adopt_shell", [](rt::Matcher& matcher, Address tensor, int slot) {
        matcher.adopt_shell(tensor_at(tensor), rt::SlotId(slot));
      }, "tensor"_a, "slot"_a)
      .def("bind", [](rt::Matcher& matcher, const std::vector<Address>& inputs) { matcher.bind(tensors_at(inputs)); }, "inputs"_a)
      .def("begin", &rt::Matcher::begin, "section"_a)
      .def("end", &rt::Matcher::end)
      .def("begin_step", [](rt::Matcher& matcher, const std::vector<Address>& inputs, const std::vector<TapeHandle>& others,
                            const nb::object& before_leaving, bool copies, const std::vector<rt::Executor*>& executors, const nb::object& around) {
        std::vector<std::shared_ptr<rt::Tape>> tapes;
        for (const TapeHandle& other : others) tapes.push_back(other.tape);
        const std::function<void(std::function<void()>)> run_within = called_with_work(around);
        std::vector<std::unique_ptr<rt::NumberSource>> numbers;
        for (std::size_t i = 0; i <= tapes.size(); ++i) {
          if (executors.at(i) != nullptr) {
            numbers.push_back(std::make_unique<rt::PlannedNumbers>(*executors[i], tensors_at(inputs)));
          } else {
            numbers.push_back(std::make_unique<rt::PlainNumbers>(i == 0 ? matcher.own_tape() : *tapes[i - 1], tensors_at(inputs), run_within));
          }
        }
        std::function<void()> call;
        if (!before_leaving.is_none()) {
          call = [before_leaving = std::make_shared<HeldObject>(before_leaving)] {
            const nb::gil_scoped_acquire acquire;
            before_leaving->object();
          };
        }
        matcher.begin_step(tensors_at(inputs), std::move(tapes), std::move(call), copies, std::move(numbers));
      }, "inputs"_a, "others"_a, "before_leaving"_a.none(), "copies"_a, "executors"_a, "around"_a.none(),
         "executors: of the trusted plans, this tape's first, else None. around(run) calls run() where memory is limited.")
      .def("end_step", &rt::Matcher::end_step, nb::call_guard<nb::gil_scoped_release>())
      .def("abandon_step", &rt::Matcher::abandon_step, "error"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("returns", [](const rt::Matcher& matcher, const std::vector<Address>& tensors) { return matcher.returns(tensors_at(tensors)); }, "tensors"_a)
      .def("run_plainly", nb::overload_cast<>(&rt::Matcher::run_plainly), nb::call_guard<nb::gil_scoped_release>())
      .def("take_kept", [](rt::Matcher& matcher, rt::Executor& executor) { matcher.take_kept(executor.kept()); }, "executor"_a)
      .def("kept_agree", [](const rt::Matcher& matcher, rt::Executor& executor) { return matcher.kept_agree(executor.kept()); }, "executor"_a)
      .def("forget_step", &rt::Matcher::forget_step, nb::call_guard<nb::gil_scoped_release>())
      .def("leave", &rt::Matcher::leave, "why"_a, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("chosen", &rt::Matcher::chosen)
      .def_prop_ro("refreshed", &rt::Matcher::refreshed)
      .def_prop_ro("left_in_section", &rt::Matcher::left_in_section)
      .def_static("fill", [](Address shell, Address content) { rt::Matcher::fill(tensor_at(shell), tensor_at(content)); }, "shell"_a, "content"_a)
      .def("remember", &rt::Matcher::remember)
      .def("roll_back", &rt::Matcher::roll_back);
}

void bind_executor(nb::module_& m) {
  nb::class_<rt::Arena>(m, "Arena")
      .def(nb::init<>())
      .def("fill", &rt::Arena::fill, "value"_a)
      .def("reserve", &rt::Arena::reserve, "bytes"_a)
      .def("release", &rt::Arena::release)
      .def_prop_ro("bytes", &rt::Arena::bytes);
  nb::class_<LoweredHandle>(m, "Lowered").def_prop_ro("graph", [](const LoweredHandle& l) { return l.lowered->graph; })
      .def("set_costs_ns", [](const LoweredHandle& l, const std::vector<std::int64_t>& costs) {
        for (std::size_t i = 0; i < l.lowered->graph.ops.size(); ++i) l.lowered->graph.ops[i].cost_ns = costs.at(i);
        stowage::seal(l.lowered->graph);
      }, "costs"_a, "Of the graph's ops.");
  m.def("lower", [](const TapeHandle& tape, const std::string& name) {
    return LoweredHandle{std::make_shared<rt::Lowered>(rt::lower(*tape.tape, name))};
  }, "tape"_a, "name"_a);
  nb::class_<rt::Host>(m, "Host", "Where swapped buffers wait, and the link that leads there.")
      .def("__init__", [](rt::Host* self, std::string directory, std::int64_t limit_bytes, double gbps, std::int64_t good_writes,
                          std::int64_t good_reads) {
        auto store = directory.empty() ? rt::memory_store(limit_bytes) : rt::file_store(std::move(directory), limit_bytes);
        if (good_writes >= 0 || good_reads >= 0) store = rt::failing_store(std::move(store), good_writes, good_reads);
        new (self) rt::Host{std::move(store), nullptr};
        self->link = rt::threaded_link(self->store, gbps);
      }, "directory"_a = "", "limit_bytes"_a = 0, "gbps"_a = 0.0, "good_writes"_a = -1, "good_reads"_a = -1)
      .def_prop_ro("bytes", [](const rt::Host& host) { return host.store->bytes(); })
      .def("reserve", [](const rt::Host& host, std::int64_t bytes) { host.store->reserve(bytes); }, "bytes"_a)
      .def("release", [](const rt::Host& host) { host.store->release(); })
      .def("measure_gbps", [](const rt::Host& host) { return rt::measure_gbps(*host.store, *host.link); },
           nb::call_guard<nb::gil_scoped_release>());
  nb::class_<rt::RunStats>(m, "RunStats")
      .def_ro("misses", &rt::RunStats::misses)
      .def_ro("skipped", &rt::RunStats::skipped)
      .def_ro("peak_bytes", &rt::RunStats::peak_bytes)
      .def_ro("escaped_blocks", &rt::RunStats::escaped_blocks)
      .def_ro("stall_ns", &rt::RunStats::stall_ns)
      .def_ro("rescued_bytes", &rt::RunStats::rescued_bytes)
      .def_ro("wall_ns", &rt::RunStats::wall_ns);
  nb::class_<rt::Executor>(m, "Executor")
      .def("__init__", [](rt::Executor* self, const TapeHandle& tape, const LoweredHandle& lowered, const stowage::Plan& plan,
                          std::shared_ptr<rt::Arena> arena, const rt::Host& host) {
        new (self) rt::Executor(tape.tape, *lowered.lowered, plan, std::move(arena), host);
      }, "tape"_a, "lowered"_a, "plan"_a, "arena"_a, "host"_a)
      .def("reserve", &rt::Executor::reserve)
      .def_prop_ro("host_bytes", [](const rt::Executor& executor) { return executor.swaps().host_bytes; })
      .def("op_times", [](const rt::Executor& executor) {
        std::vector<std::pair<int, std::int64_t>> times;
        for (const auto& [op, ns] : executor.op_times()) times.emplace_back(op.value, ns);
        return times;
      }, "Of the last timed run: (op of the tape, ns), one entry for each time an op ran.")
      .def_prop_ro("swapped_bytes", [](const rt::Executor& executor) { return executor.swaps().swapped_bytes; })
      .def_prop_ro("runs", &rt::Executor::runs)
      .def("residents_unchanged", &rt::Executor::residents_unchanged)
      .def("accepts", [](const rt::Executor& executor, const std::vector<Address>& inputs) { return executor.accepts(tensors_at(inputs)); },
           "inputs"_a)
      .def_prop_ro("learned_something", &rt::Executor::learned_something)
      .def("run", [](rt::Executor& executor, const std::vector<Address>& inputs, const std::vector<Address>& outputs, bool time_ops) {
        const std::vector<at::Tensor> in = tensors_at(inputs);
        const std::vector<at::Tensor> out = tensors_at(outputs);
        const nb::gil_scoped_release release;
        return executor.run(in, out, {.time_ops = time_ops});
      }, "inputs"_a, "outputs"_a, "time_ops"_a = false)
      .def("rehearse", [](rt::Executor& executor, const std::vector<Address>& inputs, const std::vector<Address>& outputs,
                          const rt::Matcher& matcher) {
        const std::vector<at::Tensor> in = tensors_at(inputs);
        const std::vector<at::Tensor> out = tensors_at(outputs);
        const nb::gil_scoped_release release;
        return executor.rehearse(in, out, matcher.host_written());
      }, "inputs"_a, "outputs"_a, "matcher"_a)
      .def("state", [](const rt::Executor& executor, const std::vector<Address>& inputs, const rt::Matcher& matcher) {
        const std::vector<at::Tensor> in = tensors_at(inputs);
        const nb::gil_scoped_release release;
        return executor.state(in, matcher.host_written());
      }, "inputs"_a, "matcher"_a)
      .def("fill_external_output", [](const rt::Executor& executor, std::size_t i, const std::vector<Address>& inputs, Address into) {
        const at::Tensor value = executor.external_output(i, tensors_at(inputs));
        if (value.defined()) tensor_at(into).unsafeGetTensorImpl()->shallow_copy_from(value.getIntrusivePtr());
        return value.defined();
      }, "i"_a, "inputs"_a, "into"_a);
  nb::class_<rt::StateDigest>(m, "StateDigest")
      .def("__eq__", [](const rt::StateDigest& a, const rt::StateDigest& b) { return a == b; });
}

}  // namespace

NB_MODULE(_runtime, m) {
  nb::set_leak_warnings(false);  // a process may end with plans alive
  nb::module_::import_("stowage._core");  // Graph and Plan
  nb::register_exception_translator(&translate);
  m.def("install_allocator", &rt::install_allocator);
  m.def("available_bytes", &rt::available_bytes, "root"_a = "/", "Memory that can be had before the kernel must take it from somebody.");
  m.def("live_bytes", &rt::live_bytes);
  m.def("peak_bytes", &rt::peak_bytes);
  m.def("reset_peak", &rt::reset_peak);
  m.def("raise_peak", &rt::raise_peak, "bytes"_a);
  m.def("takeover_ops", &rt::takeover_ops, "Ops whose result may be placed over an input, by overload.");
  m.def("intercepting", &rt::intercepting);
  m.def("tell_cannot_replay", &rt::tell_cannot_replay, "why"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Where this thread records or matches a step: what that does that no replay can do.");
  m.def("digest", [](Address tensor) {
    const at::Tensor t = tensor_at(tensor);
    const rt::Digest d = rt::digest(t.const_data_ptr(), static_cast<std::int64_t>(t.nbytes()));
    return nb::bytes(reinterpret_cast<const char*>(d.data()), sizeof(d));
  }, "tensor"_a, "Of the bytes of a contiguous tensor.");
  bind_recorder(m);
  bind_matcher(m);
  bind_executor(m);
  bind_eager(m);
}
