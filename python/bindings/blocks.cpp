// A with block of Python whose beginning and end are C++, where no signal handler runs: wherever an interrupt comes,
// _end() comes to its end.
//
//   _may_begin()   may raise; nothing has begun
//   _begin()       where it raises, _end() follows
//   _end()         takes back what _begin() did, all or a part of it; called again where it is interrupted
//   _ended(error)  may raise another error in its place
#include "blocks.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

class Block {};

}  // namespace

std::exception_ptr to_its_end(const nb::object& function) {
  // More than a person can interrupt; a function that always raises is no better after them
  constexpr int kMostCalls = 100;
  std::exception_ptr first;
  for (int call = 0; call < kMostCalls; ++call) {
    try {
      function();
      break;
    } catch (nb::python_error&) {
      if (!first) first = std::current_exception();
    }
  }
  return first;
}

namespace {

nb::object begin_block(nb::handle block) {
  block.attr("_may_begin")();
  try {
    block.attr("_begin")();
  } catch (...) {
    to_its_end(block.attr("_end"));
    throw;
  }
  return nb::borrow(block);
}

void end_block(nb::handle block, nb::handle error) {
  const std::exception_ptr interrupt = to_its_end(block.attr("_end"));
  block.attr("_ended")(error);
  if (interrupt) std::rethrow_exception(interrupt);
}

}  // namespace

void bind_blocks(nb::module_& m) {
  nb::class_<Block>(m, "Block",
                    "A with block whose end no interrupt can keep away. Classes that derive have _may_begin(), "
                    "_begin(), _end(), _ended(error).")
      .def(nb::init<>())
      .def(
          "__enter__", [](nb::handle block) { return begin_block(block); },
          nb::sig("def __enter__(self) -> typing.Self"))
      .def(
          "__exit__", [](nb::handle block, nb::handle, nb::handle error, nb::handle) { end_block(block, error); },
          "kind"_a.none(), "error"_a.none(), "traceback"_a.none());
}
