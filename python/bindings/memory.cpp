// Memory that the runtime has: its allocator, the arena that a plan lies in, and the host where swapped buffers wait.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "generator_sets.h"
#include "runtime.h"
#include "runtime/memory/allocator.h"
#include "runtime/memory/arena.h"
#include "runtime/memory/available.h"
#include "runtime/memory/free_pages.h"
#include "runtime/memory/host.h"
#include "runtime/memory/host_store.h"
#include "runtime/memory/kept_content.h"
#include "runtime/memory/link.h"
#include "runtime/record/recorder.h"
#include "tensors.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

}  // namespace

void bind_memory(nb::module_& m) {
  m.def("install_allocator", [] {
    watch_generator_sets();
    rt::install_allocator();
  });
  m.def(
      "take_up", [](Address tensor) { rt::take_up(tensor_at(tensor).device()); }, "tensor"_a,
      "Steps are planned on its device from now on. What is alive there unseen is counted as it is now.");
  m.def("require_allocator", &rt::require_allocator);
  m.def("available_bytes", &rt::available_bytes, "root"_a = "/",
        "Memory that can be had before the kernel must take it from somebody.");
  m.def(
      "storages",
      [](const std::vector<Address>& of) {
        std::vector<Address> found;
        for (const Address address : of) {
          const at::Tensor tensor = tensor_at(address);
          found.push_back(tensor.has_storage() ? reinterpret_cast<Address>(tensor.storage().unsafeGetStorageImpl())
                                               : 0);
        }
        return found;
      },
      "tensors"_a,
      "Of each the address of its storage, 0 where it has none. Python does not come to hold the storages by asking.");
  m.def(
      "lies_over_foreign",
      [](Address of) {
        const at::Tensor tensor = tensor_at(of);
        if (!tensor.has_storage() || !tensor.is_cpu()) return false;
        const c10::DataPtr& data = tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
        return data && rt::block_origin(data.get(), data.get_deleter()) == rt::BlockOrigin::kForeign;
      },
      "tensor"_a, "Is its memory another library's, such as an array's?");
  m.def(
      "live_bytes", [](const std::string& device) { return rt::live_bytes(c10::Device(device)); }, "device"_a = "cpu");
  m.def(
      "peak_bytes", [](const std::string& device) { return rt::peak_bytes(c10::Device(device)); }, "device"_a = "cpu");
  m.def("reset_peak", [](const std::string& device) { rt::reset_peak(c10::Device(device)); }, "device"_a = "cpu");
  m.def(
      "raise_peak", [](std::int64_t bytes, const std::string& device) { rt::raise_peak(bytes, c10::Device(device)); },
      "bytes"_a, "device"_a = "cpu");
  m.def("give_free_pages_back", &rt::give_free_pages_back, nb::call_guard<nb::gil_scoped_release>(),
        "What the host's allocator keeps of freed memory goes back to the system.");
  nb::class_<rt::Arena>(m, "Arena")
      .def(nb::init<>())
      .def("fill", &rt::Arena::fill, "value"_a)
      .def(
          "reserve", [](rt::Arena& arena, std::int64_t bytes) { arena.reserve(bytes); }, "bytes"_a)
      .def("release", &rt::Arena::release)
      .def(
          "holds",
          [](const rt::Arena& arena, std::uintptr_t address) { return arena.holds(reinterpret_cast<void*>(address)); },
          "address"_a)
      .def_prop_ro("results_outlive", &rt::Arena::results_outlive,
                   "A planned step has found results of the one before in it, which somebody still had.")
      .def_prop_ro("bytes", &rt::Arena::bytes);
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
          "part_from_children", [](const rt::Hosts& hosts) { hosts.homes()->part_from_children(); },
          nb::call_guard<nb::gil_scoped_release>(),
          "What is written through the mappings of residents from now on is not seen by children made by fork().")
      .def_prop_ro(
          "homes_are_a_parent_s", [](const rt::Hosts& hosts) { return hosts.homes()->are_a_parent_s(); },
          "Residents wait where the process that has forked this one has them.")
      .def(
          "measure_gbps",
          [](rt::Hosts& hosts, const std::string& device, std::int64_t room_bytes) {
            const c10::Device where(device);
            const rt::Host host = hosts.at(where);
            return rt::measure_gbps(*host.store, *host.link, rt::device_at(where), room_bytes);
          },
          "device"_a = "cpu", "room_bytes"_a = rt::kTrialBytes, nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "at_home", [](Address tensor) { return rt::at_home(*tensor_at(tensor).storage().unsafeGetStorageImpl()); },
      "tensor"_a, "Its memory is a region of a host's file, or of what stands for one.");
  nb::class_<rt::KeptContent>(m, "KeptContent", "Bytes of storages, kept on the host to be put back.")
      .def(
          "__init__",
          [](rt::KeptContent* self, const std::vector<std::tuple<Address, std::int64_t, std::int64_t>>& ranges) {
            std::vector<rt::KeptContent::Range> kept;
            kept.reserve(ranges.size());
            for (const auto& [tensor, start_bytes, end_bytes] : ranges) {
              kept.push_back({tensor_at(tensor).storage(), start_bytes, end_bytes});
            }
            const nb::gil_scoped_release released;
            new (self) rt::KeptContent(std::move(kept));
          },
          "ranges"_a, "Tensors, and from which byte of their storages to which.")
      .def("put_back", &rt::KeptContent::put_back, nb::call_guard<nb::gil_scoped_release>());
  m.def("end_copy_thread", &rt::end_copy_thread, "after_parts"_a, "no_more"_a = false,
        "For tests: a copy thread ends once they have moved so many parts (of a MiB) from now; negative: none. Returns "
        "what was left.");
}
