#include "verb.h"

#include <CLI/CLI.hpp>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "stowage/bytes.h"

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

std::string words_and_bytes(std::int64_t bytes) {
  return bytes < 1024 ? in_words(bytes) : in_words(bytes) + " (" + std::to_string(bytes) + " bytes)";
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
