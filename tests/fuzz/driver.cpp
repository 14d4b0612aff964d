// Feeds a fuzz target without libFuzzer, so that every compiler and every test run can:
//
//   fuzz_TARGET [FILE or FOLDER]...     first each file as it stands, then random changes of them
//
//   STOWAGE_FUZZ_RUNS   executions with random changes; default: as many as fit into one second
//   STOWAGE_SEED        of the changes; default 1
//   STOWAGE_FUZZ_LIMIT  seconds of processor time that an execution may take; default 5, as machines differ. What one takes
//                       is printed; bench/fuzz.py writes it down
//
// An execution that crashes, takes longer, or makes the process take more than a GiB (3 under sanitizers) ends it; its
// input is then in TARGET.input of the working directory.
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fuzz/mutate_bytes.h"
#include "fuzz/target.h"

extern "C" void __sanitizer_set_death_callback(void (*callback)()) __attribute__((weak));
extern "C" const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }

namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr long kMostKib = 3 << 20;
#else
constexpr long kMostKib = 1 << 20;
#endif
constexpr std::uint64_t kMostSeconds = 5;

std::string g_input;      // of the execution that runs
std::string g_keep_name;  // where it is written when the process ends in it
itimerval g_limit{};      // of one execution
double g_started = 0;     // the one that runs

double seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Only what a signal handler may call.
void keep_input() {
  std::FILE* file = std::fopen(g_keep_name.c_str(), "wb");
  if (file == nullptr) return;
  std::fwrite(g_input.data(), 1, g_input.size(), file);
  std::fclose(file);
  std::fprintf(stderr, "input of %zu bytes kept in %s\n", g_input.size(), g_keep_name.c_str());
}

[[noreturn]] void find(const char* what) {
  std::fprintf(stderr, "%s\n", what);
  keep_input();
  std::_Exit(1);
}

void on_signal(int number) {
  if (number == SIGPROF) {
    // Some systems' timers count in ticks and strike early.
    if (seconds() - g_started >= 0.9 * static_cast<double>(g_limit.it_value.tv_sec)) find("an execution took too long");
    ::setitimer(ITIMER_PROF, &g_limit, nullptr);
    return;
  }
  std::signal(number, SIG_DFL);
  keep_input();
  std::raise(number);
}

void watch() {
  for (const int number : {SIGABRT, SIGFPE, SIGILL, SIGPROF}) std::signal(number, on_signal);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(keep_input);
  } else {
    std::signal(SIGSEGV, on_signal);
    std::signal(SIGBUS, on_signal);
  }
}

void execute(std::string input) {
  g_input = std::move(input);
  g_started = seconds();
  ::setitimer(ITIMER_PROF, &g_limit, nullptr);
  // No byte more, so that sanitizers see who reads on
  const auto exact = std::make_unique<std::uint8_t[]>(g_input.size());
  std::copy(g_input.begin(), g_input.end(), exact.get());
  LLVMFuzzerTestOneInput(exact.get(), g_input.size());
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  if (used.ru_maxrss > kMostKib) find("an execution took too much memory");
}

std::vector<std::string> files_of(int count, char** paths) {
  std::vector<std::filesystem::path> names;
  for (int i = 1; i < count; ++i) {
    const std::filesystem::path path = paths[i];
    if (std::filesystem::is_regular_file(path)) names.push_back(path);
    if (!std::filesystem::is_directory(path)) continue;
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path)) inside.push_back(entry.path());
    std::sort(inside.begin(), inside.end());
    names.insert(names.end(), inside.begin(), inside.end());
  }
  std::vector<std::string> texts;
  for (const auto& name : names) {
    std::ifstream file(name, std::ios::binary);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

std::uint64_t number_in(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string target = std::filesystem::path(argv[0]).filename().string();
  g_keep_name = target + ".input";
  const std::uint64_t seed = number_in("STOWAGE_SEED", 1), runs = number_in("STOWAGE_FUZZ_RUNS", 0);
  g_limit.it_value.tv_sec = static_cast<time_t>(number_in("STOWAGE_FUZZ_LIMIT", kMostSeconds));
  std::printf("%s: STOWAGE_SEED=%llu\n", target.c_str(), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  watch();
  std::vector<std::string> pool = files_of(argc, argv);
  for (const std::string& text : pool) execute(text);
  const std::size_t files = pool.size();
  pool.emplace_back();
  std::mt19937_64 random(seed);
  std::uint64_t done = 0;
  double slowest = 0, last = seconds();
  const double started = last;
  while (runs > 0 ? done < runs : last < started + 1) {
    execute(stowage::fuzz::mutated(pool, random));
    ++done;
    const double now = seconds();
    slowest = std::max(slowest, now - last);
    last = now;
  }
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  std::printf("%s: %zu files, then %llu executions in %.1f s; the slowest %.3f s, at most %ld MiB\n", target.c_str(),
              files, static_cast<unsigned long long>(done), last - started, slowest, used.ru_maxrss >> 10);
  return 0;
}
