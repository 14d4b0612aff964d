// stowage run SCRIPT: the Python package's verb, which its command `stowage` takes for itself (stowage/command.py). Here it is
// named, and tells where it is.
#include <CLI/CLI.hpp>

#include "verb.h"

namespace stowage::cli {

Verb add_run(CLI::App& app) {
  CLI::App* command = app.add_subcommand(
      "run",
      "Run a Python script under a byte limit, or watch its memory (of the Python package: python -m stowage run)");
  command->prefix_command();
  return {command, []() -> int {
            throw UsageError("run is part of the Python package: python -m stowage run [OPTIONS] SCRIPT.py [ARGS...]");
          }};
}

}  // namespace stowage::cli
