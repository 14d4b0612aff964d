// Kernels that torch.compile has generated for the CPU, as an operator of the dispatcher.
//
//   generated wrapper   cpp_fused_add_3(buf0, primals_1, buf2)        a C function behind a Python binding: no hook sees it
//   instead             stowage::compiled_kernel("cpp_fused_add_3:cab….so:rrw", reads, writes, numbers)
//
// What the function may write is given as `writes`, and it may read that, too. The rest is `reads`: in the generated
// C++ those are the pointers to const. Its numbers are the sizes of dynamic shapes. stowage/step/record/compiled_regions.py
// puts it in the place of the binding, for threads that record or match a step.
//
// Source: torch/_inductor/codecache.py (CppPythonBindingsCodeCache), codegen/cpp.py (KernelGroup.codegen_group).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

namespace stowage::runtime {

// Most parameters that such a function may have.
inline constexpr std::size_t kMostKernelParameters = 256;

// Makes the C function at `address` known as `name`. `parameters`, one letter for each: 'r' a tensor that is read, 'w'
// one that is written, 'n' a 64-bit number. A name stays what it is for the life of the process. Throws c10::Error on
// other letters, or too many.
void add_compiled_kernel(const std::string& name, std::uintptr_t address, const std::string& parameters);

bool is_compiled_kernel(const c10::OperatorHandle& op);

// What plans and reports call it: "inductor::cpp_fused_add_3".
std::string kernel_title(const c10::IValue& name);

}  // namespace stowage::runtime
