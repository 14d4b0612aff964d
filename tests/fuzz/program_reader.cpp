// The reader of steps for sharding on any text; whatever it accepts has rules.
#include "fuzz/target.h"
#include "stowage/io.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  fuzz::accepts([&] {
    const TensorProgram program = parse_program(fuzz::text_of(data, size), "input");
    fuzz::require(!sharding_rules_json(program).empty(), "every op has a rule, or is said to have none");
  });
  return 0;
}
