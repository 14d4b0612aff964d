// What malloc keeps of freed memory.
//
//   eager calls   ████████████████ freed, and kept by malloc for the next       planned calls   ██████ the arena alone
//
// A step runs eagerly to be recorded. What that has freed would stay the process's, beside the arena, for ever.
#pragma once

namespace stowage::runtime {

// Goes back to the system, page by page: O(free pages), some 25 ms a gigabyte. malloc's own, or tcmalloc's in its
// place; of another allocator nothing is known.
void give_free_pages_back();

}  // namespace stowage::runtime
