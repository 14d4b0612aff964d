// Loading and saving by name: a text file (text_file.h) and the format that it holds.
#include "io/text_file.h"
#include "stowage/io.h"

namespace stowage {

Graph load_graph(const std::string& path) { return parse_graph(io::read_text(path), io::display_name(path)); }
Plan load_plan(const std::string& path) { return parse_plan(io::read_text(path), io::display_name(path)); }

std::string load_text(const std::string& path) { return io::read_text(path); }

void save(const Graph& graph, const std::string& path) { io::write_text(path, to_json(graph)); }
void save(const Plan& plan, const std::string& path) { io::write_text(path, to_json(plan)); }

}  // namespace stowage
