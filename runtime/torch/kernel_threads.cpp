#include "runtime/torch/kernel_threads.h"

#include <ATen/Parallel.h>

#include <thread>

// Of the libraries that libtorch brings, where they are there.
extern "C" {
__attribute__((weak)) int MKL_Get_Max_Threads();
__attribute__((weak)) int MKL_Set_Num_Threads_Local(int count);
__attribute__((weak)) int omp_get_max_threads();
__attribute__((weak)) void omp_set_num_threads(int count);
}

namespace stowage::runtime {
namespace {

enum class Known { kNot, kUnset, kSet };
thread_local Known tl_known = Known::kNot;
thread_local KernelThreads tl_at_birth;
thread_local bool tl_eager_has_run = false;

KernelThreads read() {
  return {MKL_Get_Max_Threads != nullptr ? MKL_Get_Max_Threads() : 0,
          omp_get_max_threads != nullptr ? omp_get_max_threads() : 0};
}

bool same(const KernelThreads& a, const KernelThreads& b) { return a.mkl == b.mkl && a.openmp == b.openmp; }

// In a thread of its own, whose numbers nobody minds.
KernelThreads as_aten_sets_them() {
  KernelThreads found;
  std::thread([&] {
    at::get_num_threads();
    found = read();
  }).join();
  return found;
}

}  // namespace

KernelThreads kernel_threads() {
  KernelThreads now = read();
  if (tl_known == Known::kNot) {
    tl_at_birth = now;
    tl_known = same(now, as_aten_sets_them()) ? Known::kSet : Known::kUnset;
  } else if (tl_known == Known::kUnset && !same(now, tl_at_birth)) {
    tl_known = Known::kSet;
  }
  now.set = tl_known == Known::kSet;
  return now;
}

void set_kernel_threads(const KernelThreads& threads) {
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(threads.mkl);
  if (omp_set_num_threads != nullptr) omp_set_num_threads(threads.openmp);
  if (!threads.set) tl_known = Known::kUnset;  // as before a kernel that ran on others
}

bool eager_kernels_come_first() { return !tl_eager_has_run && !kernel_threads().set; }

void eager_kernels_have_run() { tl_eager_has_run = true; }

}  // namespace stowage::runtime
