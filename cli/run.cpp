#include <CLI/CLI.hpp>

#include "verb.h"

namespace stowage::cli {

Verb add_run(CLI::App& app) {
  return in_python(app, "run", "Run a Python script under a byte limit, or watch its memory",
                   "[OPTIONS] SCRIPT.py [ARGS...]");
}

}  // namespace stowage::cli
