#include "solver/highs_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>
#include <vector>

#include "base/concat.h"
#include "solver/milp.h"

namespace stowage {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libhighs.so.1";
constexpr const char* kAdvice =
    "install it with `pip install 'highspy>=1.15,<2'`, or name libhighs.so.1 in STOWAGE_HIGHS";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// PREFIX/lib/python3.*/site-packages/highspy/libhighs.so.1, by name.
void add_from_prefix(const fs::path& prefix, std::vector<std::string>& to) {
  std::error_code ignored;
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", ignored)) {
    if (!entry.path().filename().string().starts_with("python3")) continue;
    const fs::path file = entry.path() / "site-packages" / "highspy" / kFile;
    if (fs::exists(file, ignored)) found.push_back(file.string());
  }
  std::sort(found.begin(), found.end());
  to.insert(to.end(), found.begin(), found.end());
}

std::vector<std::string> places() {
  std::vector<std::string> result;
#ifdef STOWAGE_BUILD_HIGHSPY
  result.push_back(STOWAGE_BUILD_HIGHSPY "/libhighs.so.1");
#endif
  if (const std::string prefix = environment("VIRTUAL_ENV"); !prefix.empty()) add_from_prefix(prefix, result);
  std::error_code ignored;
  const fs::path self = fs::read_symlink("/proc/self/exe", ignored);
  if (!self.empty()) add_from_prefix(self.parent_path().parent_path(), result);
  std::istringstream path(environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (!folder.empty() && fs::exists(fs::path(folder) / "python3", ignored))
      add_from_prefix(fs::path(folder).parent_path(), result);
  result.emplace_back(kFile);
  return result;
}

template <class Function>
void bind(void* handle, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr && missing.empty()) missing = name;
}

// Nothing when the file cannot be loaded or is of another kind; `why` then says so.
std::optional<HighsLibrary> try_load(const std::string& file, std::string& why) {
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    why = dlerror();
    return std::nullopt;
  }
  HighsLibrary library;
  std::string missing;
#define STOWAGE_HIGHS_BIND(name, result, arguments) bind(handle, "Highs_" #name, library.name, missing);
  STOWAGE_HIGHS_FUNCTIONS(STOWAGE_HIGHS_BIND)
#undef STOWAGE_HIGHS_BIND
  if (!missing.empty()) {
    why = concat(file, " has no ", missing);
    return std::nullopt;
  }
  void* highs = library.create();
  const HighsInt size = library.getSizeofHighsInt(highs);
  library.destroy(highs);
  if (size == static_cast<HighsInt>(sizeof(HighsInt))) return library;
  why = concat(file, " was built with integers of ", size, " bytes");
  return std::nullopt;
}

HighsLibrary load_exactly(const std::string& file, const char* source) {
  std::string why;
  if (const auto library = try_load(file, why)) return *library;
  throw SolverMissing(concat("HiGHS cannot be loaded from ", source, ": ", why, "; ", kAdvice));
}

}  // namespace

HighsLibrary load_highs(const std::string& path) {
  if (!path.empty()) return load_exactly(path, "the path given");
  if (const std::string named = environment("STOWAGE_HIGHS"); !named.empty())
    return load_exactly(named, "STOWAGE_HIGHS");
  std::string why;
  for (const std::string& place : places())
    if (const auto library = try_load(place, why)) return *library;
  throw SolverMissing(concat("HiGHS was not found: ", kAdvice));
}

}  // namespace stowage
