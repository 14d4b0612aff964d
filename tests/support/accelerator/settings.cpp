// Settings and counters, and their face for Python (see settings.h).
#include "settings.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>
#include <iterator>
#include <new>
#include <utility>

namespace standin {
namespace {

std::atomic<bool> g_forked{false};
const int g_at_fork = pthread_atfork(nullptr, nullptr, [] { g_forked = true; });

struct Named {
  const char* name;
  std::atomic<std::int64_t> Counters::* counter;
};
constexpr Named kCounters[] = {
    {"kernels", &Counters::kernels},
    {"graph_launches", &Counters::graph_launches},
    {"graph_kernels", &Counters::graph_kernels},
    {"copies_to_device", &Counters::copies_to_device},
    {"bytes_to_device", &Counters::bytes_to_device},
    {"copies_to_host", &Counters::copies_to_host},
    {"bytes_to_host", &Counters::bytes_to_host},
    {"async_copies", &Counters::async_copies},
    {"draws", &Counters::draws},
    {"refusals", &Counters::refusals},
    {"host_touches", &Counters::host_touches},
    {"races", &Counters::races},
    {"pinned_bytes", &Counters::pinned_bytes},
};

}  // namespace

std::string& not_noted() {
  static auto* const op = new std::string("nothing");
  return *op;
}

bool is_not_noted(const std::string& op) { return not_noted().empty() || not_noted() == op; }

Settings& settings() {
  static auto* const all = new Settings();
  return *all;
}

Counters& counters() {
  static auto* const all = [] {
    void* page =
        mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    return page == MAP_FAILED ? new Counters() : new (page) Counters();
  }();
  return *all;
}

bool forked() { return g_forked; }

}  // namespace standin

STANDIN_FACE void standin_set_limit(std::int64_t bytes) { standin::settings().limit_bytes = bytes; }
STANDIN_FACE void standin_set_link(double to_device_gbps, double to_host_gbps) {
  standin::settings().to_device_gbps = to_device_gbps;
  standin::settings().to_host_gbps = to_host_gbps;
}
STANDIN_FACE void standin_set_poison(int on) { standin::settings().poison = on != 0; }
STANDIN_FACE void standin_set_strict(int on) { standin::settings().strict = on != 0; }
STANDIN_FACE void standin_set_cpu_numbers(int on) { standin::settings().cpu_numbers = on != 0; }
STANDIN_FACE void standin_set_workspace(std::int64_t bytes) { standin::settings().workspace_bytes = bytes; }
// An operator, "" for all, or "nothing". While nothing runs.
STANDIN_FACE void standin_set_not_noted(const char* op) { standin::not_noted() = op; }
STANDIN_FACE void standin_set_captures_take(int on) { standin::settings().captures_take = on != 0; }
STANDIN_FACE void standin_set_wrong_graphs(int on) { standin::settings().wrong_graphs = on != 0; }
STANDIN_FACE int standin_forked() { return standin::forked() ? 1 : 0; }

// The i-th counter's name; nullptr behind the last.
STANDIN_FACE const char* standin_counter(int i) {
  return i < std::ssize(standin::kCounters) ? standin::kCounters[i].name : nullptr;
}
STANDIN_FACE std::int64_t standin_count(int i) { return standin::counters().*standin::kCounters[i].counter; }
STANDIN_FACE void standin_reset_counters() {
  for (const auto& [name, counter] : standin::kCounters) {
    if (counter != &standin::Counters::pinned_bytes) standin::counters().*counter = 0;
  }
}
