// How many threads the kernels of the calling thread use, without setting it.
//
// torch.set_num_threads() counts for the thread that calls it. Any other thread gets that number late: at its first
// kernel that ATen splits, or as soon as someone asks at::get_num_threads(). Until then its matrix products use MKL's
// own number, and may sum in another order:
//
//   a new thread  ── mm, by MKL's number ── mm ── add of 10^6 numbers: now by ATen's ── mm, by ATen's ──▶
//
// So asking changes the user's numbers. kernel_threads() only looks.
#pragma once

namespace stowage::runtime {

struct KernelThreads {
  int mkl = 0;  // 0: there is no MKL
  int openmp = 0;
  bool set = true;  // as ATen sets them; else this thread has those of its birth, and may get others in mid-step

  bool operator==(const KernelThreads&) const = default;
};

KernelThreads kernel_threads();
// Of the calling thread alone: new threads still get what torch.set_num_threads() was told.
void set_kernel_threads(const KernelThreads& threads);

// Numbers that are not set stay so until eager would set them: before anything else of ours, a call has to run as eager
// would run it. eager_kernels_have_run(): one has, in the calling thread.
bool eager_kernels_come_first();
void eager_kernels_have_run();

}  // namespace stowage::runtime
