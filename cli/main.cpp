// The command line: reads the verb and its options, runs it, and turns what went wrong into one line on stderr and an
// exit code.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <vector>

#include "stowage/error.h"
#include "verb.h"

namespace {

int run_verb(const std::vector<stowage::cli::Verb>& verbs) {
  using namespace stowage::cli;
  try {
    for (const Verb& verb : verbs) {
      if (verb.command->parsed()) return verb.run();
    }
    return kUsage;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "stowage: %s\n", error.what());
    return kUsage;
  } catch (const stowage::SolverMissing& error) {
    std::fprintf(stderr, "stowage: %s\n", error.what());
    return kUsage;
  } catch (const BadInput& error) {
    std::fprintf(stderr, "stowage: %s\n", error.what());
    return kBadInput;
  } catch (const stowage::WriteFailed& error) {
    std::fprintf(stderr, "stowage: %s\n", error.what());
    return kInternal;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stowage: internal error: %s\n", error.what());
    return kInternal;
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace stowage::cli;
  CLI::App app{"Plans the memory of a whole training step.", "stowage"};
  app.set_version_flag("--version", "stowage " STOWAGE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "GRAPH, PLAN and INTERVALS.csv may be - for standard input. Names that end in .gz are compressed.\n"
      "Exit codes: 0 done, 1 internal error or an output that cannot be written, 2 usage, 3 bad input file, 4 "
      "infeasible, 5 stopped by a limit with nothing to show,\n"
      "6 the plan is invalid.");
  const std::vector<Verb> verbs = {add_plan(app),   add_check(app), add_bound(app),    add_layout(app),
                                   add_info(app),   add_fit(app),   add_strategy(app), add_explain(app),
                                   add_report(app), add_run(app),   add_shard(app),    add_why(app)};
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  return run_verb(verbs);
}
