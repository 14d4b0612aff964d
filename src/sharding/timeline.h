// How long a step takes where collectives run beside kernels.
//
//   kernels  ▒ 0 ▒ ▒ 1 ▒      ▒ 2 ▒ ▒▒▒ 3 ▒▒▒        0, 1, 2, 3: kernels in the order of the program
//   axis 0    ██ for 1 ██ ██ of 1 ██ ██ for 3 ██      "for 2": an input of kernel 2 is brought where that needs it, ahead of it
//   axis 1        ██████ for 2 ██████                 "of 1": what kernel 1 leaves is brought where it lives, beside kernel 2
//
// Kernels run one at a time, in program order. A view is no kernel, and takes no turn. Each axis has a link of its own (as
// each process group has a stream of its own), which carries one collective at a time, in the order of their issue. A
// redistribution is its hops, one after the other; it begins when what it brings is there. A kernel begins when the one
// before has ended and its inputs have come.
//
//   ahead      Inputs of later kernels that are there already go in buckets of at most `bucket` bytes, in program order. A
//              bucket is issued when the first kernel that needs the one before it is next: one bucket ahead.
//   deferred   What kernels leave elsewhere than it lives is collected in a bucket, too. It is launched when the next result
//              would not fit in, or when something needs what is in it; by then the one before must have arrived.
//   alone      What is needed a few kernels after it is made is brought at once, by itself. What is larger than a bucket goes by
//              itself, too, just before it is needed or just after it is made, and kernels wait for it.
//
// The hops of one bucket on one axis are one collective: they share its latency. Both kinds count by the order alone, never
// by times, so that what is alive at each kernel is known for sure (OverlapTimeline::beside), and belongs to the peak: at most two
// buckets either way, and what is alone. As FSDP does it (Zhao et al., PVLDB 16, 2023), with bytes instead of modules. The ledger tries some
// sizes, and takes the fastest whose peak keeps the limit.
//
// What it leaves out: kernels and collectives slow each other down on real devices; the end of a step beside the start of
// the next one; copying into buckets. O(turns + redistributions).
#pragma once

#include <cstdint>
#include <vector>

namespace stowage {

struct Leg {  // of a redistribution, on one axis
  std::size_t axis = 0;
  double latency_ns = 0, bytes_ns = 0;
};

struct Bringing {
  std::size_t tensor = 0;
  std::int64_t bytes = 0;  // of the copy
  std::vector<Leg> legs = {};
};

struct KernelTurn {    // of a unit
  bool still = false;  // a view
  double ns = 0;       // of the kernel
  std::vector<Bringing> before = {}, after = {};
  std::vector<std::size_t> reads = {}, writes = {}, makes = {};  // tensors: read where they live; changed; new
};

struct OverlapTimeline {
  double ns = 0;
  std::vector<double> links;         // per axis: how long it carries something
  std::vector<double> waited;        // per turn: from the end of the kernel before to the start of this one
  std::vector<std::int64_t> beside;  // per turn: bytes of copies for later turns, and of earlier ones, beside it
};

// `roots`: per tensor, the one whose storage it lies in.
OverlapTimeline make_timeline(const std::vector<KernelTurn>& turns, const std::vector<std::size_t>& roots,
                              std::size_t axes, std::int64_t bucket);

// The most that one turn copies, before or after its kernel.
std::int64_t largest_copies(const std::vector<KernelTurn>& turns);

}  // namespace stowage
