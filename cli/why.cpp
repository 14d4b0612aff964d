#include <CLI/CLI.hpp>

#include "verb.h"

namespace stowage::cli {

Verb add_why(CLI::App& app) {
  return in_python(app, "why", "What held the bytes when a GPU ran out of memory, from a snapshot", "SNAPSHOT.pickle");
}

}  // namespace stowage::cli
