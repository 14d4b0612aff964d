#include "runtime/memory/available.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>

namespace stowage::runtime {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

// Nothing where there is no such file, or it says "max".
std::optional<std::int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

// Lines of "key number" or "key: number".
std::map<std::string, std::int64_t> numbers_in(const std::string& path) {
  std::ifstream file(path);
  std::map<std::string, std::int64_t> numbers;
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string key;
    std::int64_t value = 0;
    if (!(fields >> key >> value)) continue;
    if (key.ends_with(':')) key.pop_back();
    numbers[key] = value;
  }
  return numbers;
}

std::int64_t of_machine(const std::string& root) {
  const auto numbers = numbers_in(root + "proc/meminfo");
  const auto available = numbers.find("MemAvailable");
  return available == numbers.end() ? kUnlimited : available->second * 1024;
}

struct GroupFiles {
  const char* limit;
  const char* used;
  const char* prefix;  // of the keys of memory.stat that count the groups below, too
};
constexpr GroupFiles kVersion2{"memory.max", "memory.current", ""};
constexpr GroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_"};

std::int64_t of_group(const std::string& folder, const GroupFiles& names) {
  const auto limit = number_in(folder + names.limit);
  const auto used = number_in(folder + names.used);
  if (!limit || !used) return kUnlimited;
  const auto numbers = numbers_in(folder + "memory.stat");
  const auto number = [&](const std::string& key) {
    const auto it = numbers.find(names.prefix + key);
    return it == numbers.end() ? std::int64_t{0} : it->second;
  };
  const bool two = *names.prefix == 0;
  const std::int64_t unwritten =
      two ? number("file_dirty") + number("file_writeback") : number("dirty") + number("writeback");
  const std::int64_t cache = number("inactive_file") + number("active_file") - unwritten;
  return std::max<std::int64_t>(*limit - *used + std::clamp<std::int64_t>(cache, 0, *used), 0);
}

// The group at `path` below `mount`, and those above it. Within a container the path may be one of the host's: then the
// mount itself counts.
std::int64_t of_groups(const std::string& mount, std::string path, const GroupFiles& names) {
  std::int64_t least = of_group(mount + "/", names);
  while (path.size() > 1) {
    least = std::min(least, of_group(mount + path + "/", names));
    path.resize(path.rfind('/'));
  }
  return least;
}

}  // namespace

std::int64_t available_bytes(const std::string& root) {
  std::int64_t least = of_machine(root);
  std::ifstream groups(root + "proc/self/cgroup");  // lines of "number:controllers:path"
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (const char* mount : {"sys/fs/cgroup", "sys/fs/cgroup/unified"})
        least = std::min(least, of_groups(root + mount, path, kVersion2));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      least = std::min(least, of_groups(root + "sys/fs/cgroup/memory", path, kVersion1));
    }
  }
  return least;
}

}  // namespace stowage::runtime
