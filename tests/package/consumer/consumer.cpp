// Plans the graph in the file named by its argument, checks the plan, and prints its peak and its bound.
#include <stowage/check.h>
#include <stowage/io.h>
#include <stowage/planner.h>

#include <iostream>

int main(int, char** argv) {
  const stowage::Graph graph = stowage::load_graph(argv[1]);
  const stowage::PlanResult result = stowage::plan(graph, {});
  if (!result.plan) return 1;
  const stowage::CheckReport report = stowage::check(graph, *result.plan);
  std::cout << (report.valid ? "valid " : "invalid ") << report.peak_bytes << ' ' << result.lower_bound_bytes << '\n';
  return report.valid ? 0 : 1;
}
