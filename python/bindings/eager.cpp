// stowage._runtime, the eager budget. What may wait for another thread, or run kernels, gives up the GIL meanwhile.
#include "runtime.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <utility>

#include "lines.h"
#include "runtime/evict/budget.h"
#include "runtime/evict/interlude.h"
#include "runtime/memory/host.h"
#include "stowage/error.h"
#include "tensors.h"

namespace nb = nanobind;
namespace evict = stowage::runtime::evict;
using namespace nb::literals;

namespace {

stowage::eager::Release release_named(const std::string& name) {
  if (name == "both") return stowage::eager::Release::kBoth;
  if (name == "recompute") return stowage::eager::Release::kDropOnly;
  if (name == "swap") return stowage::eager::Release::kSwapOnly;
  throw stowage::Error("release must be 'both', 'recompute' or 'swap', not '" + name + "'");
}

nb::dict stats_dict(const evict::Budget& budget) {
  const evict::BudgetStats s = budget.stats();
  nb::dict d;
  d["peak_bytes"] = s.peak_bytes;
  d["evictions"] = s.drops + s.swaps_out;
  d["recomputed_ops"] = s.recomputed_ops;
  d["recompute_ns"] = s.recompute_ns;
  d["swapped_bytes"] = s.swapped_bytes;
  d["stall_ns"] = s.stall_ns;
  d["ops"] = s.ops;
  d["dropped"] = s.drops;
  d["swapped_out"] = s.swaps_out;
  d["swapped_in"] = s.swaps_in;
  d["swapped_in_bytes"] = s.swapped_in_bytes;
  d["evict_ns"] = s.evict_ns;
  d["snapshots"] = s.snapshots;
  d["lost_recipes"] = s.lost_recipes;
  d["split_ops"] = s.split_ops;
  d["out_of_memory"] = s.out_of_memory;
  d["short_bytes"] = s.short_bytes;
  d["deepest_recompute"] = s.deepest_recompute;
  d["notes_lost"] = s.notes_lost;
  const evict::BudgetHoldings holdings = budget.holdings();
  d["host_bytes"] = holdings.host_bytes;
  d["host_peak_bytes"] = holdings.host_peak_bytes;
  return d;
}

nb::dict counters_dict(const stowage::eager::Counters& c) {
  nb::dict d;
  d["drops"] = c.drops;
  d["swap_outs"] = c.swap_outs;
  d["clean_releases"] = c.clean_releases;
  d["recomputes"] = c.recomputes;
  d["swap_ins"] = c.swap_ins;
  d["early_copies"] = c.early_copies;
  d["early_releases"] = c.early_releases;
  d["fetches"] = c.fetches;
  d["cancelled_fetches"] = c.cancelled_fetches;
  d["picks"] = c.picks;
  d["looks"] = c.looks;
  d["foreseen_ops"] = c.foreseen_ops;
  d["unforeseen_ops"] = c.unforeseen_ops;
  return d;
}

nb::dict alive_dict(const evict::Budget& budget) {
  const evict::BudgetHoldings holdings = budget.holdings();
  nb::dict d;
  d["values"] = holdings.values;
  d["recipes"] = holdings.recipes;
  d["keeper_values"] = holdings.keeper_values;
  d["host_bytes"] = holdings.host_bytes;
  return d;
}

nb::list timeline_list(const evict::Budget& budget) {
  nb::list events;
  for (const evict::Event& event : budget.timeline()) {
    nb::dict d;
    d["t_ns"] = event.at_ns;
    d["event"] = evict::to_string(event.kind);
    d["bytes"] = event.bytes;
    d["op"] = event.op != nullptr ? event.op->name : std::string();
    events.append(d);
  }
  return events;
}

// Stands for a function that reads a tensor's memory past the dispatcher: the tensor is brought back first. Not written in
// Python, as the user's tracebacks would show its frame.
struct Reader {
  nb::object original, before, after;
  std::size_t argument;

  nb::object call(const nb::args& args, const nb::kwargs& kwargs) const {
    const nb::object held = before(args.size() > argument ? nb::object(args[argument]) : nb::none());
    nb::object result = nb::steal(PyObject_Call(original.ptr(), args.ptr(), kwargs.ptr()));
    std::optional<nb::python_error> raised;
    if (!result.is_valid()) raised.emplace();
    if (nb::cast<bool>(nb::bool_(held))) after(held);
    if (raised) throw std::move(*raised);
    return result;
  }
};

// Stands for a hook of saved tensors.
struct Packer {
  nb::object original;

  nb::object call(const nb::args& args) const {
    const evict::Interlude interlude;
    nb::object result = nb::steal(PyObject_Call(original.ptr(), args.ptr(), nullptr));
    if (!result.is_valid()) throw nb::python_error();
    return result;
  }
};

}  // namespace

void bind_eager(nb::module_& m) {
  nb::class_<Reader>(
      m, "Reader", nb::dynamic_attr(),
      "A function: before(that argument, or None) is called first; after() with what that gave, if anything.")
      .def(nb::init<nb::object, nb::object, nb::object, std::size_t>(), "original"_a, "before"_a, "after"_a,
           "argument"_a = 0)
      .def("__call__", &Reader::call)
      .def(
          "__get__",
          [](nb::handle self, nb::handle of, nb::handle) {
            return of.is_none() ? nb::borrow(self) : nb::steal(PyMethod_New(self.ptr(), of.ptr()));
          },
          "of"_a.none(), "kind"_a = nb::none());
  nb::class_<Packer>(m, "Packer", "A hook of saved tensors: budgets see what it does inside the operator that saves.")
      .def(nb::init<nb::object>(), "original"_a)
      .def_ro("original", &Packer::original)
      .def("__call__", &Packer::call);
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<evict::Budget>(m, "Budget")
      .def(
          "__init__",
          [](evict::Budget* self, std::int64_t limit_bytes, const std::string& policy, const std::string& release,
             double link_gbps, bool prefetch, bool poison, bool replay_generator, std::int64_t host_limit_bytes,
             std::uint64_t seed, const std::string& device, const stowage::runtime::Hosts* host, bool soft) {
            evict::BudgetOptions options;
            options.where = c10::Device(device);
            options.limit_bytes = limit_bytes;
            options.policy = policy;
            options.release = release_named(release);
            options.link_gbps = link_gbps;
            options.prefetch = prefetch;
            options.poison = poison;
            options.replay_generator = replay_generator;
            options.host_limit_bytes = host_limit_bytes;
            options.seed = seed;
            options.lines = lines();
            options.homes = host != nullptr ? host->homes() : nullptr;
            options.soft = soft;
            new (self) evict::Budget(options);
          },
          "limit_bytes"_a, "policy"_a, "release"_a, "link_gbps"_a, "prefetch"_a, "poison"_a, "replay_generator"_a,
          "host_limit_bytes"_a, "seed"_a, "device"_a = "cpu", "host"_a.none() = nb::none(), "soft"_a = false)
      .def("enter", &evict::Budget::enter, "limit_bytes"_a)
      .def("adopt", [](evict::Budget& b, Address tensor) { b.adopt(tensor_at(tensor)); })
      .def("shrink", &evict::Budget::shrink, unlocked)
      .def(
          "leave",
          [](evict::Budget& b, const std::vector<Address>& may_stay) {
            std::vector<at::Tensor> tensors;
            for (const Address tensor : may_stay) tensors.push_back(tensor_at(tensor));
            const nb::gil_scoped_release unlocked_here;
            return b.leave(tensors);
          },
          "may_stay"_a = std::vector<Address>())
      .def(
          "begin_update", [](evict::Budget& b, std::uint64_t optimizer) { b.updates().begin(optimizer); },
          "optimizer"_a, unlocked)
      .def(
          "end_update", [](evict::Budget& b, std::uint64_t optimizer) { b.updates().end(optimizer); }, "optimizer"_a,
          unlocked)
      .def("attach", &evict::Budget::attach_this_thread)
      .def_static("detach", &evict::Budget::detach_this_thread)
      .def_static("expect_thread", &evict::Budget::expect_this_thread,
                  "The calling thread is attached when it runs its first operator.")
      .def(
          "restore", [](evict::Budget& b, Address tensor) { b.outside().restore(tensor_at(tensor)); }, "tensor"_a,
          unlocked)
      .def(
          "hold", [](evict::Budget& b, Address tensor) { return b.outside().hold(tensor_at(tensor)); }, "tensor"_a,
          unlocked)
      .def(
          "hold_storage",
          [](evict::Budget& b, Address storage) {
            return b.outside().hold(reinterpret_cast<c10::StorageImpl*>(storage));
          },
          "storage"_a, unlocked)
      .def(
          "release", [](evict::Budget& b, std::int64_t number) { b.outside().release(number); }, "number"_a, unlocked)
      .def(
          "evict",
          [](evict::Budget& b, Address tensor, bool drop) {
            return b.outside().evict(tensor_at(tensor), drop ? stowage::eager::How::kDrop : stowage::eager::How::kSwap);
          },
          "tensor"_a, "drop"_a, unlocked)
      .def("describe", [](evict::Budget& b, Address tensor) { return b.outside().describe(tensor_at(tensor)); })
      .def_prop_ro("active", &evict::Budget::active)
      .def(
          "live_on", [](nb::handle self) { self.inc_ref(); },
          "It is never destroyed: what is away when the process ends need not come back.")
      .def("stats", &stats_dict)
      .def("counters", [](const evict::Budget& b) { return counters_dict(b.counters()); })
      .def("alive", &alive_dict)
      .def("timeline", &timeline_list);
  m.def(
      "of_types",
      [](const nb::list& objects, const nb::tuple& types) {
        nb::list found;
        for (const nb::handle object : objects) {
          for (const nb::handle type : types)
            if (object.type().is(type)) found.append(object);
        }
        return found;
      },
      "objects"_a, "types"_a, "Those whose type is one of them, none that derives from it.");
  m.def("thread_attached", &stowage::runtime::thread_attached);
  m.def("budget_active", [] { return evict::active_budget() != nullptr; });
  m.def(
      "as_allocated",
      [](Address tensor) {
        c10::StorageImpl* storage = tensor_at(tensor).storage().unsafeGetStorageImpl();
        c10::Allocator* allocator = c10::GetAllocator(c10::DeviceType::CPU);
        if (storage->allocator() != nullptr || storage->resizable() || storage->device_type() != c10::DeviceType::CPU ||
            storage->_mutable_data_ptr_no_checks().get_deleter() != allocator->raw_deleter())
          return;
        storage->set_allocator(allocator);
        storage->set_resizable(true);
      },
      "tensor"_a,
      "A storage that PyTorch has read from a file into memory of the CPU's allocator is as one that it has allocated: "
      "resizable, until an array is made of it.");
  m.def("budget_policies", [] {
    std::vector<std::string> names;
    for (const char* name : stowage::eager::policy_names()) names.emplace_back(name);
    return names;
  });
}
