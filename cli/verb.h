// What the verbs share: exit codes, reading input, printing.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "stowage/error.h"

namespace CLI {
class App;
}

namespace stowage::cli {

enum ExitCode : int {
  kDone = 0,
  kInternal = 1,
  kUsage = 2,
  kBadInput = 3,
  kInfeasible = 4,
  kStopped = 5,
  kInvalidPlan = 6,
};

class BadInput : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class UsageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A subcommand and what it does once its options are parsed; run() returns the exit code.
struct Verb {
  CLI::App* command;
  std::function<int()> run;
};

Verb add_plan(CLI::App& app);
Verb add_check(CLI::App& app);
Verb add_bound(CLI::App& app);
Verb add_layout(CLI::App& app);
Verb add_info(CLI::App& app);
Verb add_fit(CLI::App& app);
Verb add_strategy(CLI::App& app);
Verb add_explain(CLI::App& app);
Verb add_report(CLI::App& app);
Verb add_run(CLI::App& app);
Verb add_shard(CLI::App& app);
Verb add_why(CLI::App& app);

// A verb of the Python package, which its command `stowage` takes for itself (stowage/command.py): named here, to say where it is.
Verb in_python(CLI::App& app, const std::string& name, const std::string& what, const std::string& arguments);

// Adds an option whose value is a number of bytes, as parse_bytes reads it.
void add_bytes_option(CLI::App& command, const std::string& name, std::function<void(std::int64_t)> set,
                      const std::string& description);

// Runs a loader; what it throws is the fault of the input, unless the output could not be written.
template <class Load>
auto read_input(Load load) {
  try {
    return load();
  } catch (const WriteFailed&) {
    throw;
  } catch (const Error& error) {
    throw BadInput(error.what());
  }
}

// Throws UsageError when the output would replace one of the files that are read. Names that are empty or "-" are none.
void refuse_overwriting(std::initializer_list<std::string> inputs, const std::string& output);

// "1.46 GiB (1571512320 bytes)"
std::string words_and_bytes(std::int64_t bytes);

// Results go to stdout, whole or with an error.
void print_result(const std::string& text);

}  // namespace stowage::cli
