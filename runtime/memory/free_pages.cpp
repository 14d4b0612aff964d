#include "runtime/memory/free_pages.h"

#include <dlfcn.h>
#include <malloc.h>

namespace stowage::runtime {

void give_free_pages_back() {
  using Release = void (*)();
  static const auto of_tcmalloc = reinterpret_cast<Release>(dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory"));
  if (of_tcmalloc != nullptr) return of_tcmalloc();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

}  // namespace stowage::runtime
