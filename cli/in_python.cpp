// Verbs of the Python package, which its command `stowage` takes for itself (stowage/command.py). Here they are named, and tell
// where they are.
#include <CLI/CLI.hpp>

#include <string>

#include "verb.h"

namespace stowage::cli {
namespace {

Verb named(CLI::App& app, const std::string& name, const std::string& what, const std::string& arguments) {
  CLI::App* command = app.add_subcommand(name, what + " (of the Python package: python -m stowage " + name + ")");
  command->prefix_command();
  return {command, [name, arguments]() -> int {
            throw UsageError(name + " is part of the Python package: python -m stowage " + name + " " + arguments);
          }};
}

}  // namespace

Verb add_run(CLI::App& app) {
  return named(app, "run", "Run a Python script under a byte limit, or watch its memory",
               "[OPTIONS] SCRIPT.py [ARGS...]");
}

Verb add_why(CLI::App& app) {
  return named(app, "why", "What held the bytes when a GPU ran out of memory, from a snapshot", "SNAPSHOT.pickle");
}

}  // namespace stowage::cli
