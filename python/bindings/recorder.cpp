// Recording a step: Recorder, and Tape, which it gives.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "generator_sets.h"
#include "handles.h"
#include "held_object.h"
#include "runtime.h"
#include "runtime/record/cost_key.h"
#include "runtime/record/recorder.h"
#include "runtime/record/work.h"
#include "runtime/replay/data_guards.h"
#include "runtime/replay/matcher.h"
#include "runtime/torch/sparse.h"
#include "source_line.h"
#include "stowage/error.h"
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
      if (rt::is_sparse(argument)) {
        for (const at::Tensor& part : rt::parts_of_sparse(argument.toTensor())) add(part);
      } else if (argument.isTensor()) {
        add(argument.toTensor());
      }
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
  for (const rt::TapeOp& op : tape.ops) {
    for (const c10::IValue& argument : op.arguments) {
      if (!rt::is_sparse(argument)) continue;
      for (const at::Tensor& part : rt::parts_of_sparse(argument.toTensor())) {
        const auto begin = reinterpret_cast<Address>(part.const_data_ptr());
        if (begin != 0) found.emplace_back(begin, begin + part.nbytes(), false, "a sparse tensor");
      }
    }
  }
  return found;
}

}  // namespace

void bind_recorder(nb::module_& m) {
  nb::class_<rt::Work>(m, "Work")
      .def_ro("kernels", &rt::Work::kernels)
      .def_ro("bytes", &rt::Work::bytes, "Of what they read and write.")
      .def_ro("made_bytes", &rt::Work::made_bytes, "That they allocate.")
      .def_ro(
          "lasts", &rt::Work::lasts,
          "They write what was there before the step, draw, or belong to a backward pass or to an optimizer's step.");
  nb::class_<TapeHandle>(m, "Tape")
      .def_prop_ro("refusal", [](const TapeHandle& t) { return t.tape->refusal; })
      .def_prop_ro("sections", [](const TapeHandle& t) { return t.tape->sections.size(); })
      .def_prop_ro("ops", [](const TapeHandle& t) { return t.tape->ops.size(); })
      .def_prop_ro(
          "reads",
          [](const TapeHandle& t) {
            std::vector<std::int32_t> ops;
            for (const rt::TapeOpId read : t.tape->reads) ops.push_back(static_cast<std::int32_t>(read.index()));
            return ops;
          },
          "The ops that tell numbers which the step makes and its Python asks for.")
      .def_prop_ro(
          "takes_sparse",
          [](const TapeHandle& t) {
            return std::ranges::any_of(t.tape->ops, [](const rt::TapeOp& op) { return rt::any_sparse(op.arguments); });
          },
          "Kernels read sparse tensors, which each call gives them anew.")
      .def_prop_ro(
          "foreign", [](const TapeHandle& t) { return t.tape->foreign; },
          "It has kernels that are not PyTorch's, and may be in Python.")
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
          "outdated",
          [](const TapeHandle& t) {
            return std::ranges::any_of(t.tape->blocks, [](const rt::Block& b) { return b.replaced || b.scattered; });
          },
          "A later call came by another tensor than one that it holds.")
      .def("held_storages", &held_storages,
           "(address, bytes) of what it keeps alive: residents of the step, and numbers that its Python made.")
      .def("memory", &memory_of, "inputs"_a,
           "Of a recording that has just been made: (first byte, end, written, name) of what it finds and touches.")
      .def(
          "work_from", [](const TapeHandle& t, std::size_t op) { return rt::work_from(*t.tape, op); }, "op"_a,
          "What its kernels do from this op on.")
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
          [](rt::Recorder* self, bool fake, std::vector<std::string> hidden, bool distributed, const nb::object& around,
             const nb::object& until, const nb::object& declares_form) {
            rt::RecordOptions options;
            options.fake = fake;
            options.distributed = distributed;
            options.source = [hidden = std::move(hidden)] { return source_line(hidden); };
            if (!around.is_none()) {
              options.may_raise = [list = std::make_shared<HeldObject>(around),
                                   last = std::make_shared<HeldObject>(until)](bool anything) {
                const nb::gil_scoped_acquire gil;
                nb::set codes;
                note_running_codes(codes, last->object);
                if (anything) codes.add(nb::none());
                auto all = nb::borrow<nb::list>(list->object);
                all.append(codes);
                return static_cast<std::int32_t>(nb::len(all)) - 1;
              };
            }
            if (!declares_form.is_none()) {
              options.declares_form = [says = std::make_shared<HeldObject>(declares_form)](const std::string& name) {
                const nb::gil_scoped_acquire gil;
                return nb::cast<bool>(says->object(name));
              };
            }
            new (self) rt::Recorder(std::move(options));
          },
          "fake"_a, "hidden"_a, "distributed"_a = false, "around"_a = nb::none(), "until"_a = nb::none(),
          "declares_form"_a = nb::none(),
          "around: a list, for a set of the codes that run when an op may raise because of what tensors hold, up to "
          "the code ``until``; with None, where it is an operator of others, which may raise anything. "
          "declares_form: of an operator's name, if that is not PyTorch's; tells whether it declares what "
          "its results look like.")
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
      .def("declare_gradient",
           [](rt::Recorder& r, Address parameter, int input) { r.declare_gradient(tensor_at(parameter), input); })
      .def("let_go", &rt::Recorder::let_go)
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
      .def_prop_ro("ops", &rt::Recorder::ops)
      .def("begin_section",
           [](rt::Recorder& r, const std::vector<Address>& gradients) { r.begin_section(tensors_at(gradients)); })
      .def("end_section", &rt::Recorder::end_section)
      .def("slot_of", [](rt::Recorder& r, Address tensor) { return r.slot_of(tensor_at(tensor)).value; })
      .def("latest_op", &rt::Recorder::latest_op)
      .def("array_gone", &rt::Recorder::array_gone, nb::arg("teller"))
      .def("made_in_step", [](const rt::Recorder& r, Address tensor) { return r.made_in_step(tensor_at(tensor)); })
      .def("touched_inputs",
           [](const rt::Recorder& r) {
             const std::set<int> touched = r.touched_inputs();
             return std::vector<int>(touched.begin(), touched.end());
           })
      .def("lasts", [](const rt::Recorder& r, Address tensor) { return r.lasts(tensor_at(tensor)); })
      .def("touches", [](const rt::Recorder& r, Address tensor) { return r.touches(tensor_at(tensor)); })
      .def("writes", [](const rt::Recorder& r, Address tensor) { return r.writes(tensor_at(tensor)); })
      .def("fills", &rt::Recorder::fills, "inside"_a,
           "Within a function of PyTorch's that fills tensors on the host, by what it has read there.")
      .def("survivors",
           [](const rt::Recorder& r, const std::vector<Address>& allowed) { return r.survivors(tensors_at(allowed)); })
      .def(
          "finish",
          [](rt::Recorder& r, const std::vector<Address>& returned, bool keep, const std::vector<Address>& replaced,
             const std::vector<int>& dropped, const std::vector<TapeHandle>& earlier,
             const std::vector<std::int32_t>& returned_numbers, const std::vector<int>& until_next) {
            std::vector<std::shared_ptr<rt::Tape>> tapes;
            for (const TapeHandle& tape : earlier) tapes.push_back(tape.tape);
            std::set<rt::TapeOpId> numbers;
            for (const std::int32_t op : returned_numbers) numbers.insert(rt::TapeOpId(op));
            return TapeHandle{r.finish(tensors_at(returned), keep, tensors_at(replaced),
                                       {dropped.begin(), dropped.end()}, tapes, numbers,
                                       {until_next.begin(), until_next.end()})};
          },
          "returned"_a, "keep"_a = false, "replaced"_a = std::vector<Address>(), "dropped"_a = std::vector<int>(),
          "earlier"_a = std::vector<TapeHandle>(), "returned_numbers"_a = std::vector<std::int32_t>(),
          "until_next"_a = std::vector<int>(),
          "replaced: lasting tensors that the step has read, and put others in their places. dropped: "
          "positions of inputs that are gone before a planned call runs. earlier: recordings of the same "
          "step. returned_numbers: ops that tell a number of which the step makes nothing but what it "
          "returns. until_next: positions in returned, of what is gone before any part of the next planned "
          "call runs.");
}
