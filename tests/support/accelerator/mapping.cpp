// One memfd mapped twice, and the handler of faults in the view that nobody may touch (see mapping.h).
#include "mapping.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>

#include "settings.h"

namespace standin {
namespace {

struct Mapping {
  int fd = -1;
  char* device = nullptr;
  char* kernels = nullptr;
};

struct sigaction g_before;

char* put_hex(char* to, std::uintptr_t value) {
  *to++ = '0', *to++ = 'x';
  for (int shift = 44; shift >= 0; shift -= 4) *to++ = "0123456789abcdef"[(value >> shift) & 15];
  return to;
}

// Only what is safe in a handler. Returning repeats the access, which then meets whoever handled faults before.
void on_fault(int, siginfo_t* info, void*) {
  if (on_device(info->si_addr)) {
    counters().host_touches.fetch_add(1);
    char text[96] = "stand-in: the host touched device memory at ";
    char* end = text;
    while (*end != '\0') ++end;
    end = put_hex(end, reinterpret_cast<std::uintptr_t>(info->si_addr));
    *end++ = '\n';
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text, static_cast<std::size_t>(end - text));
  }
  sigaction(SIGSEGV, &g_before, nullptr);
}

Mapping map_twice() {
  Mapping m;
  m.fd = memfd_create("standin", MFD_CLOEXEC);
  TORCH_CHECK(m.fd >= 0 && ftruncate(m.fd, static_cast<off_t>(kSpanBytes)) == 0, "stand-in: no memory");
  void* device = mmap(nullptr, kSpanBytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, m.fd, 0);
  void* kernels = mmap(nullptr, kSpanBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, m.fd, 0);
  TORCH_CHECK(device != MAP_FAILED && kernels != MAP_FAILED, "stand-in: no room for 2 views of ", kSpanBytes, " bytes");
  m.device = static_cast<char*>(device);
  m.kernels = static_cast<char*>(kernels);
  return m;
}

const Mapping& mapping() {
  static const Mapping m = map_twice();
  return m;
}

bool within(const char* base, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address), from = reinterpret_cast<std::uintptr_t>(base);
  return at >= from && at - from < kSpanBytes;
}

// Before any fault: the handler must find the mapping made.
const bool g_handles = [] {
  (void)mapping();
  struct sigaction action = {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  return sigaction(SIGSEGV, &action, &g_before) == 0;
}();

}  // namespace

char* device_base() { return mapping().device; }
bool on_device(const void* address) { return within(mapping().device, address); }
bool in_kernels_view(const void* address) { return within(mapping().kernels, address); }

void* kernels_view(const void* address) {
  return address == nullptr ? nullptr : mapping().kernels + (static_cast<const char*>(address) - mapping().device);
}

void* device_view(const void* address) {
  return mapping().device + (static_cast<const char*>(address) - mapping().kernels);
}

void give_back_pages(std::size_t offset, std::size_t bytes) {
  fallocate(mapping().fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

}  // namespace standin
