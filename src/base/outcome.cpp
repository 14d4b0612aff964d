#include "stowage/outcome.h"

namespace stowage {

std::string_view to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::kOptimal: return "optimal";
    case Outcome::kFeasible: return "feasible";
    case Outcome::kInfeasible: return "infeasible";
    case Outcome::kUnknown: return "unknown";
  }
  return "unknown";
}

}  // namespace stowage
