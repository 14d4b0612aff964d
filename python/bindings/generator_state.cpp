// States of PyTorch's random generators, kept to be put back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "generator_sets.h"
#include "runtime.h"
#include "runtime/torch/generator.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

void bind_generators(nb::module_& m) {
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
}
