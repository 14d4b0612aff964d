// Executing a plan: Executor, what a run reports, and digests of what it has made.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <utility>
#include <vector>

#include "handles.h"
#include "runtime.h"
#include "runtime/memory/arena.h"
#include "runtime/replay/digest.h"
#include "runtime/replay/executor.h"
#include "runtime/replay/matcher.h"
#include "tensors.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

void bind_executor(nb::module_& m) {
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
          "lasting",
          [](const rt::Executor& executor) {
            std::vector<std::vector<Address>> addresses;
            for (const auto& tensors : executor.lasting()) {
              addresses.emplace_back();
              for (const c10::TensorImpl* tensor : tensors)
                addresses.back().push_back(reinterpret_cast<Address>(tensor));
            }
            return addresses;
          },
          "Parameters, states and buffers that the step uses: of each, the tensors in its memory that are still there.")
      .def("residents_died", &rt::Executor::residents_died,
           "A parameter, state or buffer that the step uses is nobody's any more.")
      .def(
          "tenants_unchanged",
          [](rt::Executor& executor, const std::vector<Address>& inputs) {
            return executor.tenants_unchanged(tensors_at(inputs));
          },
          "inputs"_a, "Do tensors in the memory of others lie there as before?")
      .def("tenants_fit", &rt::Executor::tenants_fit)
      .def(
          "accepts",
          [](const rt::Executor& executor, const std::vector<Address>& inputs) {
            return executor.accepts(tensors_at(inputs));
          },
          "inputs"_a)
      .def_prop_ro("learned_something", &rt::Executor::learned_something)
      .def(
          "run",
          [](rt::Executor& executor, const std::vector<Address>& inputs, bool time_ops, bool writes_counted) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return executor.run(in, {.time_ops = time_ops, .writes_counted = writes_counted});
          },
          "inputs"_a, "time_ops"_a = false, "writes_counted"_a = false)
      .def_prop_ro("wants_graphs", &rt::Executor::wants_graphs)
      .def(
          "note_graphs",
          [](rt::Executor& executor, const std::vector<Address>& inputs, const std::vector<std::size_t>& gradients) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            executor.note_graphs(in, gradients);
          },
          "inputs"_a, "gradients"_a,
          "Before run(), which is to follow: the device notes pieces of the plan. Nothing is changed.")
      .def(
          "try_graphs",
          [](rt::Executor& executor, const std::vector<Address>& inputs) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            executor.try_graphs(in);
          },
          "inputs"_a, "After run(): the graphs are used from now on, where both have done the same.")
      .def_prop_ro(
          "graph_ops",
          [](const rt::Executor& e) {
            const rt::NotedGraphs* const graphs = e.graphs();
            return graphs != nullptr && graphs->stage == rt::NotedGraphs::Stage::kUsed ? graphs->ops : 0;
          },
          "Ops of the step that run in graphs.")
      .def_prop_ro("graph_refusal",
                   [](const rt::Executor& e) { return e.graphs() != nullptr ? e.graphs()->refusal : ""; })
      .def(
          "tells_as_recorded",
          [](rt::Executor& executor, const std::vector<std::int32_t>& reads, const std::vector<Address>& inputs) {
            const std::vector<at::Tensor> in = tensors_at(inputs);
            const nb::gil_scoped_release release;
            return executor.tells_as_recorded({reads.begin(), reads.end()}, in);
          },
          "reads"_a, "inputs"_a,
          "Before run(): the step up to the last of these ops of Tape.reads. False where one tells another number than "
          "when it was recorded; then nothing has happened.")
      .def("take_back", &rt::Executor::take_back,
           "What tells_as_recorded() has done since the last run: residents and generator are as before it.")
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
      .def(
          "number",
          [](const rt::Executor& executor, int read) -> nb::object {
            const c10::Scalar number = executor.number(rt::TapeOpId(read)).toScalar();
            if (number.isBoolean()) return nb::bool_(number.toBool());
            if (number.isIntegral(/*includeBool=*/false)) return nb::int_(number.toLong());
            if (number.isFloatingPoint()) return nb::float_(number.toDouble());
            const c10::complex<double> complex = number.toComplexDouble();
            return nb::steal(PyComplex_FromDoubles(complex.real(), complex.imag()));
          },
          "read"_a, "Of the last run: what the op, one of Tape.reads, has told.")
      .def("is_result", &rt::Executor::is_result, "i"_a, "It lies in the arena: neither a resident nor an input.")
      .def_prop_ro("has_staying_results", &rt::Executor::has_staying_results,
                   "Some of what it returns stays in the arena until the next call.")
      .def("drop_results", &rt::Executor::drop_results)
      .def("drop_returned", &rt::Executor::drop_returned);
  nb::class_<rt::StateDigest>(m, "StateDigest")
      .def(
          "__eq__", [](const rt::StateDigest& a, const rt::StateDigest& b) { return a == b; }, nb::is_operator(),
          nb::sig("def __eq__(self, arg: object, /) -> bool"));
  m.def(
      "digest",
      [](Address tensor) {
        const at::Tensor t = tensor_at(tensor);
        const rt::Digest d = rt::digest(t.const_data_ptr(), static_cast<std::int64_t>(t.nbytes()), t.device());
        return nb::bytes(reinterpret_cast<const char*>(d.data()), sizeof(d));
      },
      "tensor"_a, "Of the bytes of a contiguous tensor.");
}
