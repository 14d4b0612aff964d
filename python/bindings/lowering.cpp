// From a tape to a graph that can be planned, and which kernels may run in slices or tiles.
#include <nanobind/nanobind.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "handles.h"
#include "runtime.h"
#include "runtime/replay/in_place_reuse.h"
#include "runtime/replay/kernel_table.h"
#include "runtime/replay/lower.h"
#include "runtime/replay/row_slices.h"
#include "stowage/io.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

void bind_lowering(nb::module_& m) {
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
  nb::class_<rt::TileOptions>(m, "TileOptions", "What is done some rows at a time: loss heads, MLP blocks.")
      .def(
          "__init__",
          [](rt::TileOptions* self, bool loss, bool mlp, std::int64_t tile_bytes, std::int64_t least_bytes,
             bool wrong) { new (self) rt::TileOptions{loss, mlp, tile_bytes, least_bytes, wrong}; },
          "loss"_a = false, "mlp"_a = false, "tile_bytes"_a = rt::TileOptions().tile_bytes,
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
          "Why not all is tiled that was to be, where that is asked for.")
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
         const rt::TileOptions& tiles, const std::set<std::string>& once, bool in_results, bool stay) {
        const rt::LowerOptions options{slicing, tiles, leaving, once, in_results, stay};
        LoweredHandle handle{std::make_shared<rt::Lowered>(rt::lower(*tape.tape, name, options))};
        rt::fix_numbers(*tape.tape, handle.lowered->chains);
        return handle;
      },
      "tape"_a, "name"_a, "slicing"_a, "leaving"_a = false, "tiles"_a = rt::TileOptions(),
      "once"_a = std::set<std::string>(), "in_results"_a = false, "stay"_a = false,
      nb::sig("def lower(tape: Tape, name: str, slicing: RowSlicing, leaving: bool = False, tiles: TileOptions = ..., "
              "once: set[str] = ..., in_results: bool = False, stay: bool = False) -> Lowered"),
      "leaving: residents are marked that may wait on the host. once: kinds of ops that must not be made again. "
      "in_results: what the step returns is made in the memory of its result, where that can be. stay: what its next "
      "call lets go of unread is not: it stays in the arena.");
  m.def("in_place_reuse_ops", &rt::in_place_reuse_ops, "Ops whose result may be placed over an input, by overload.");
  m.def("row_slice_ops", &rt::row_slice_ops, "Ops that may run on some rows at a time, by overload.");
}
