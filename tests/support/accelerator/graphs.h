// Graphs: kernels that are noted once, and run again in one piece (torch.accelerator.Graph, from torch 2.13 on).
//
//   capture on stream 3      mm(@100, @200) ► @300      relu(@300) ► @400      noted: operators, numbers, addresses
//   replay on stream 0       both again, over these addresses; nobody asks for memory
//
// A capture does no work, as on a GPU. Here kernels run meanwhile, because only they know the form of their results; at
// its end all bytes that they have written are as before, and nothing else is under way meanwhile. Who waits for the device, copies to or from the host, or draws
// random numbers while it captures is refused.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Allocator.h>

#include <string>
#include <vector>

#include "order.h"
#include "streams.h"

namespace standin {

// Bytes in the kernels' view.
struct Piece {
  void* at = nullptr;
  std::size_t bytes = 0;
};

struct Node {
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // twins (twins.h): they own no memory
  std::vector<Piece> taken;     // what the kernel asked for, in order
  std::vector<Piece> results;   // where each result lies, in order
  std::vector<order::Bytes> reads, writes;
};

class Capture {
 public:
  explicit Capture(c10::StreamId stream) : stream_(stream) {}

  [[nodiscard]] c10::StreamId stream() const { return stream_; }
  // They are about to be written.
  void keep(Piece piece);
  void add(Node node) { nodes_.push_back(std::move(node)); }
  // Some memory of its own, as graphs of some libraries do.
  void take() { own_.push_back(c10::GetAllocator(kType)->allocate(64)); }
  // All bytes are as before.
  void put_back();
  void replay() const;

 private:
  struct Kept {
    Piece piece;
    std::string content;
  };
  c10::StreamId stream_;
  std::vector<Node> nodes_;
  std::vector<Kept> kept_;  // in order
  std::vector<c10::DataPtr> own_;
};

// What goes on upon this thread, on its current stream; nullptr: nothing.
Capture* capturing();
void refuse_while_capturing(const std::string& what);

}  // namespace standin
