// What Python holds of a recording and of what has been made of it.
#pragma once

#include <memory>

#include "runtime/record/recorder.h"
#include "runtime/replay/lower.h"

struct TapeHandle {
  std::shared_ptr<stowage::runtime::Tape> tape;
};

struct LoweredHandle {
  std::shared_ptr<stowage::runtime::Lowered> lowered;
};
