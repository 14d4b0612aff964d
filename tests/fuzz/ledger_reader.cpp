// The readers of a report's ledger and timeline on any text: JSON for the page, or one line that refuses.
#include "fuzz/target.h"
#include "io/json_grammar.h"
#include "report/sections.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  const std::string text(fuzz::text_of(data, size));
  for (const auto read : {report::ledger_json, report::timeline_json}) {
    fuzz::accepts([&] {
      const std::string json = read(text);
      fuzz::require(io::is_json_object(json), "what is passed on is JSON");
      fuzz::require(read(json) == json, "what is passed on is read as itself");
    });
  }
  return 0;
}
