// What an error says, without the C++ stack that PyTorch's own add.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace stowage::runtime {

inline std::string what_of(const std::exception& error) {
  const auto* const of_torch = dynamic_cast<const c10::Error*>(&error);
  return of_torch != nullptr ? of_torch->what_without_backtrace() : error.what();
}

}  // namespace stowage::runtime
