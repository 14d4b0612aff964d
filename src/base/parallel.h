// Independent tasks on several threads.
//
//   tasks   0 1 2 3 4 5 …      each thread takes the next one that none has; results are the tasks' own, so they do not
//   thread  a b a a b a        depend on who did what
//
// An exception of a task is thrown again here, the first task's if several.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace stowage {

// task(i) for all i below `count`, on at most `threads` threads, this one included. With one thread: in order.
template <class Task>
void parallel_for(std::size_t count, int threads, const Task& task) {
  const std::size_t helpers = std::min(count, static_cast<std::size_t>(threads < 1 ? 1 : threads));
  if (helpers <= 1) {
    for (std::size_t i = 0; i < count; ++i) task(i);
    return;
  }
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> thrown(count);
  const auto help = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        task(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (std::size_t k = 1; k < helpers; ++k) pool.emplace_back(help);
    help();
  }
  for (const std::exception_ptr& e : thrown)
    if (e) std::rethrow_exception(e);
}

}  // namespace stowage
