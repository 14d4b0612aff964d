#include "runtime/evict/interlude.h"

#include "runtime/evict/block.h"
#include "runtime/evict/now.h"
#include "runtime/evict/room.h"

namespace stowage::runtime::evict {
namespace {

thread_local int tl_interludes = 0;

}  // namespace

Interlude::Interlude() : kernels_(leave_kernels()), start_ns_(now_ns()), waited_ns_(waited_ns()) { ++tl_interludes; }

Interlude::~Interlude() {
  --tl_interludes;
  enter_kernels(kernels_);
  set_waited_ns(waited_ns_ + now_ns() - start_ns_);
}

bool Interlude::under_way() { return tl_interludes > 0; }

}  // namespace stowage::runtime::evict
