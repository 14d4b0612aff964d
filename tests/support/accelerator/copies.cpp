// Copies over the link (see copies.h).
#include "copies.h"

#include <torch/library.h>

#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "graphs.h"
#include "kernels.h"
#include "mapping.h"
#include "memory.h"
#include "order.h"
#include "pinned.h"
#include "settings.h"
#include "streams.h"

namespace standin {
namespace {

struct Link {
  std::mutex busy;
  std::atomic<double>& gbps;  // bytes in a nanosecond
  std::atomic<std::int64_t>&copies, &bytes;

  void count(std::size_t n) {
    copies.fetch_add(1);
    bytes.fetch_add(static_cast<std::int64_t>(n));
  }
  void take_time(std::size_t n) const {
    const double speed = gbps;
    if (speed > 0)
      std::this_thread::sleep_for(std::chrono::duration<double, std::nano>(static_cast<double>(n) / speed));
  }
  void carry(char* to, const char* from, std::size_t n) {
    const std::lock_guard lock(busy);
    const std::size_t half = n / 2;
    std::memcpy(to, from, half);
    take_time(n);
    std::memcpy(to + half, from + half, n - half);
  }
};

Link& link(bool to_device) {
  static auto* const up =
      new Link{{}, settings().to_device_gbps, counters().copies_to_device, counters().bytes_to_device};
  static auto* const down = new Link{{}, settings().to_host_gbps, counters().copies_to_host, counters().bytes_to_host};
  return to_device ? *up : *down;
}

bool of_device(const at::Tensor& t) { return t.device().type() == kType; }

bool same_bytes(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.strides() == b.strides() &&
         a.is_non_overlapping_and_dense() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

void carry(Link& link, const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  char* const target = static_cast<char*>(to.mutable_data_ptr());
  const char* const source = static_cast<const char*>(from.const_data_ptr());
  const std::size_t n = to.nbytes();
  const void* const on_host = of_device(to) ? source : target;
  char* const writes = of_device(to) ? static_cast<char*>(kernels_view(target)) : target;
  const char* const reads = of_device(to) ? source : static_cast<const char*>(kernels_view(source));
  Queue& stream = queue(current_stream());
  order::begin_operation("a copy");
  order::reads(from);
  order::writes(to);
  if (non_blocking && n > 0 && begin_use(on_host)) {
    counters().async_copies.fetch_add(1);
    stream.push([&link, writes, reads, n, on_host] {
      link.carry(writes, reads, n);
      end_use(on_host);
    });
  } else {
    stream.wait();
    link.carry(writes, reads, n);
    order::host_waits(order::given_to(current_stream()));
  }
}

}  // namespace

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (to.is_same(from)) return to;
  if (of_device(to) != of_device(from)) {
    refuse_while_capturing("a copy over the link");
    Link& way = link(of_device(to));
    way.count(from.nbytes());
    if (same_bytes(to, from)) {
      carry(way, to, from, non_blocking);
      return to;
    }
    way.take_time(from.nbytes());
  }
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  torch::jit::Stack stack{to, from, false};
  run_kernel(op, &stack);
  if (of_device(to) != of_device(from)) order::host_waits(order::given_to(current_stream()));
  return to;
}

}  // namespace standin

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("copy_", &standin::copy);
  m.impl("record_stream",
         [](at::Tensor& tensor, c10::Stream stream) { standin::used_on(tensor.storage().data(), stream.id()); });
}
