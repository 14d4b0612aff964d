// Exceptions: bad input, results that cannot be written, and bugs. Whether a plan is optimal, feasible or infeasible is
// a value (Outcome in planner.h).
#pragma once

#include <stdexcept>
#include <string>

namespace stowage {

// Base of everything the library throws on bad input. what() is one line that names the file (when there is one), the
// rule and the offending id.
class Error : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class InvalidGraph : public Error {  // a graph that breaks a rule of the graph format
  using Error::Error;
};

class InvalidPlan : public Error {  // a plan file that cannot be read, or a plan that is not valid for its graph
  using Error::Error;
};

class InvalidLayout : public Error {  // an intervals file that cannot be read
  using Error::Error;
};

class WriteFailed : public Error {  // a result that cannot be written: a full disk, a folder that is not there
  using Error::Error;
};

class SolverMissing : public Error {  // HiGHS is not there, or not one that this was made for; says what to install
  using Error::Error;
};

}  // namespace stowage
