#include <CLI/CLI.hpp>

#include "verb.h"

namespace stowage::cli {

Verb add_shard(CLI::App& app) {
  return in_python(app, "shard", "How a step is split over a mesh of devices, and what a limit of bytes per rank costs",
                   "--model-from FILE.py:FUNCTION --mesh N[,N...]");
}

}  // namespace stowage::cli
