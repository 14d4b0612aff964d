// A tape of FakeTensors, made to say what real tensors would have done.
#pragma once

#include "runtime/record/tape.h"

namespace stowage::runtime {

void settle_fakes(Tape& tape);

}  // namespace stowage::runtime
