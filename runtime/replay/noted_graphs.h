// What an executor knows of the pieces of its plan that the device has noted as graphs (executor_graphs.cpp).
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/memory/allocation_script.h"
#include "runtime/memory/device.h"
#include "runtime/record/tape.h"
#include "runtime/replay/digest.h"

namespace stowage::runtime {

// Instructions [from, to).
struct NotedPiece {
  std::size_t from = 0, to = 0;
  std::unique_ptr<Device::Graph> graph;

  // What its kernels have been given, and cannot be given otherwise: where parameters and earlier results lie, where gradients are
  // made that the step returns, and numbers.
  struct Outside {
    BlockId block;
    const void* at = nullptr;
  };
  struct Result {
    std::int32_t position = 0;  // among the script's results
    const void* at = nullptr;
  };
  struct Number {
    TapeOpId op;
    std::size_t argument = 0;
    c10::IValue value;
  };
  std::vector<Outside> outside;
  std::vector<SlotId> outside_slots;
  std::vector<Result> results;
  std::vector<Number> numbers;

  // Blocks that are there before it, and are gone, or made anew, after it
  std::vector<BlockId> ends;
  // Blocks that it leaves, where they lie
  std::vector<std::pair<BlockId, PlannedAllocation>> begins;
  std::int64_t peak_bytes = 0;  // of the arena, within it, above what is live when it begins
};

struct NotedGraphs {
  enum class Stage : std::uint8_t {
    kWarming,  // pieces run where they will be noted
    kNoting,   // they are noted, and then run as graphs
    kNoted,    // and wait for the same step without graphs
    kUsed,     // which has given the same bits
    kRefused,
  };
  Stage stage = Stage::kWarming;
  std::unique_ptr<Device::Graphs> device;
  const void* arena = nullptr;  // where it began
  std::vector<NotedPiece> pieces;
  std::vector<std::int32_t> piece_at;    // by instruction; -1: none begins there
  std::vector<bool> cannot;              // by instruction: the device could not note its like
  std::optional<std::size_t> noted_now;  // a piece
  std::size_t at = 0;                    // of it, the instruction; its end where all are noted
  std::int64_t ops = 0;                  // in all pieces
  int times = 0;                         // how often they were noted
  std::vector<bool> gradients;           // by block: the step returns it as nothing but a gradient
  bool unserved = false;                 // in this call some piece could not be used
  int unserved_calls = 0;                // so many in a row
  std::string refusal;                   // why there are none, or why not more
  StateDigest state;                     // that they have left, and what the step has returned
  std::vector<Digest> results;
};

}  // namespace stowage::runtime
