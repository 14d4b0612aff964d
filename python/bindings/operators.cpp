// What recorders and matchers see of operators: which calls are hidden from them, and what they are told beside.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <string>

#include "runtime.h"
#include "runtime/torch/compiled_kernel.h"
#include "runtime/torch/hook.h"
#include "runtime/torch/kernel_settings.h"
#include "runtime/torch/kernel_threads.h"
#include "runtime/torch/spent_graph.h"
#include "runtime/torch/tensors.h"
#include "tensors.h"

namespace nb = nanobind;
namespace rt = stowage::runtime;
using namespace nb::literals;

void bind_operators(nb::module_& m) {
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
      [](const nb::callable& call, bool limited) {
        const rt::WithStepKeys keys(limited);
        return call();
      },
      "call"_a, "limited"_a,
      "What call() returns. Tensors have the dispatch keys meanwhile that they have while a step is recorded, within a "
      "budget or not.");
  m.def("keep_attached_key", &rt::keep_attached_key, "kept"_a,
        "From true on, until false, the thread's tensors have the dispatch key that a budget watches by.");
  m.def("pass_unseen", &rt::pass_unseen, "passes"_a,
        "From true on, until false, no recorder of this thread sees its operators.");
  m.def(
      "add_compiled_kernel", &rt::add_compiled_kernel, "name"_a, "address"_a, "parameters"_a,
      "Makes a C function that torch.compile has generated known to torch.ops.stowage.compiled_kernel. parameters: 'r' "
      "for a tensor that is read, 'w' for one that is written, 'n' for a 64-bit number.");
  m.def("intercepting", &rt::intercepting);
  m.def("inside_operator", &rt::inside_operator, "Does this thread run the kernel of an operator of a recorded step?");
  m.def(
      "kernel_threads",
      [] {
        const rt::KernelThreads found = rt::kernel_threads();
        return std::tuple(found.mkl, found.openmp, found.set);
      },
      "(MKL's, OpenMP's, whether they are set) numbers of threads of kernels in the calling thread. Unlike "
      "torch.get_num_threads(), asking sets nothing.");
  m.def("flushes_denormals", &rt::flushes_denormals, "As torch.set_flush_denormal() has told the calling thread.");
  m.def("eager_kernels_come_first", &rt::eager_kernels_come_first,
        "True where the numbers of threads are not set, until eager_kernels_have_run().");
  m.def("eager_kernels_have_run", &rt::eager_kernels_have_run);
  m.def("tell_cannot_replay", &rt::tell_cannot_replay, "why"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Where this thread records or matches a step: what that does that no replay can do.");
  m.def(
      "end_with_spent_graph",
      [](Address tensor, const std::string& name) { rt::end_with_spent_graph(tensor_at(tensor), name); }, "tensor"_a,
      "name"_a, "It requires grad from now on, and its graph is one that backward has used up.");
}
