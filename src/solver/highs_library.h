// The C interface of HiGHS, found at run time. Nothing links HiGHS: the wheel `highspy` brings libhighs.so.1, a plain
// shared library, and a process that never asks for a MILP never loads it.
//
//   looked for, in this order                                      when it cannot be used
//   1. the path given                                              an error
//   2. $STOWAGE_HIGHS                                              an error
//   3. the highspy that the build found (not in installed wheels)  the next
//   4. highspy in $VIRTUAL_ENV                                     the next
//   5. highspy beside this executable, and beside each Python on $PATH
//   6. libhighs.so.1, wherever the loader looks                    an error that says what to install
//
// Only what is declared here is used, each symbol is looked for, and the size of HighsInt is asked: a library of
// another kind is refused, not called. (Wheels before 1.15 have no libhighs.so.1.)
#pragma once

#include <cstdint>
#include <string>

namespace stowage {

using HighsInt = int;  // checked when the library is loaded
using HighsCallback = void (*)(int kind, const char* message, const void* out, void* in, void* user);

// name, result, arguments; of "Highs_" + name
#define STOWAGE_HIGHS_FUNCTIONS(X)                                                                                   \
  X(create, void*, ())                                                                                               \
  X(destroy, void, (void*))                                                                                          \
  X(version, const char*, ())                                                                                        \
  X(getSizeofHighsInt, HighsInt, (const void*))                                                                      \
  X(passMip, HighsInt,                                                                                               \
    (void*, HighsInt columns, HighsInt rows, HighsInt entries, HighsInt format, HighsInt sense, double offset,       \
     const double* cost, const double* lower, const double* upper, const double* row_lower, const double* row_upper, \
     const HighsInt* start, const HighsInt* index, const double* value, const HighsInt* integrality))                \
  X(setSolution, HighsInt, (void*, const double*, const double*, const double*, const double*))                      \
  X(setBoolOptionValue, HighsInt, (void*, const char*, HighsInt))                                                    \
  X(setIntOptionValue, HighsInt, (void*, const char*, HighsInt))                                                     \
  X(setDoubleOptionValue, HighsInt, (void*, const char*, double))                                                    \
  X(setStringOptionValue, HighsInt, (void*, const char*, const char*))                                               \
  X(setCallback, HighsInt, (void*, HighsCallback, void*))                                                            \
  X(startCallback, HighsInt, (void*, HighsInt))                                                                      \
  X(getCallbackDataOutItem, const void*, (const void*, const char*))                                                 \
  X(run, HighsInt, (void*))                                                                                          \
  X(getModelStatus, HighsInt, (const void*))                                                                         \
  X(getDoubleInfoValue, HighsInt, (const void*, const char*, double*))                                               \
  X(getIntInfoValue, HighsInt, (const void*, const char*, HighsInt*))                                                \
  X(getInt64InfoValue, HighsInt, (const void*, const char*, std::int64_t*))                                          \
  X(getSolution, HighsInt, (const void*, double*, double*, double*, double*))                                        \
  X(resetGlobalScheduler, void, (HighsInt))

struct HighsLibrary {
#define STOWAGE_HIGHS_MEMBER(name, result, arguments) result(*name) arguments = nullptr;
  STOWAGE_HIGHS_FUNCTIONS(STOWAGE_HIGHS_MEMBER)
#undef STOWAGE_HIGHS_MEMBER
};

// Loads the library, or finds it loaded; it stays loaded to the end of the process. Throws SolverMissing.
HighsLibrary load_highs(const std::string& path);

}  // namespace stowage
