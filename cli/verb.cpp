#include "verb.h"

#include <CLI/CLI.hpp>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "stowage/io.h"

namespace stowage::cli {

Verb in_python(CLI::App& app, const std::string& name, const std::string& what, const std::string& arguments) {
  CLI::App* command = app.add_subcommand(name, what + " (of the Python package: python -m stowage " + name + ")");
  command->prefix_command();
  return {command, [name, arguments]() -> int {
            throw UsageError(name + " is part of the Python package: python -m stowage " + name + " " + arguments);
          }};
}

void add_bytes_option(CLI::App& command, const std::string& name, std::function<void(std::int64_t)> set,
                      const std::string& description) {
  const auto read = [set = std::move(set)](const std::string& text) {
    try {
      set(parse_bytes(text));
    } catch (const Error& error) {
      throw CLI::ValidationError(error.what());
    }
  };
  command.add_option_function<std::string>(name, read, description)->type_name("BYTES");
}

std::string human_bytes(std::int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 64> text;
  if (unit == 0) {
    std::snprintf(text.data(), text.size(), "%lld bytes", static_cast<long long>(bytes));
  } else {
    std::snprintf(text.data(), text.size(), "%.2f %s (%lld bytes)", value, units[unit], static_cast<long long>(bytes));
  }
  return text.data();
}

void print_result(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (!written) throw WriteFailed("stdout: cannot be written: " + std::generic_category().message(errno));
}

void refuse_overwriting(std::initializer_list<std::string> inputs, const std::string& output) {
  namespace fs = std::filesystem;
  std::error_code error;  // what does not exist is the same as nothing
  if (output.empty() || output == "-" || !fs::is_regular_file(output, error)) return;
  for (const std::string& input : inputs) {
    if (input.empty() || input == "-" || !fs::equivalent(input, output, error)) continue;
    throw UsageError(output + " is an input: it would be overwritten by the output (-o names another file)");
  }
}

}  // namespace stowage::cli
