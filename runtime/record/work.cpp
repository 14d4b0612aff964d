#include "runtime/record/work.h"

namespace stowage::runtime {

Work work_from(const Tape& tape, std::size_t op) {
  Work work;
  for (std::size_t i = op; i < tape.ops.size(); ++i) {
    const TapeOp& each = tape.ops[i];
    work.lasts = work.lasts || each.section >= 0;
    if (each.role != TapeOp::Role::kKernel) continue;
    ++work.kernels;
    work.lasts = work.lasts || each.backward || each.draws();
    for (const std::int64_t bytes : each.allocations) work.made_bytes += bytes;
    for_each_access(tape, each, [&](BlockId id, Access access) {
      const Block& block = tape.blocks[id.index()];
      work.bytes += block.bytes;
      work.lasts = work.lasts || (access == Access::kWrite && block.external);
    });
  }
  return work;
}

}  // namespace stowage::runtime
