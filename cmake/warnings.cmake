# stowage_warnings: linked privately by every target of our own; never by what includes foreign headers as its own.
add_library(stowage_warnings INTERFACE)
target_compile_options(stowage_warnings INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wnon-virtual-dtor
  -Wold-style-cast -Wcast-qual -Wimplicit-fallthrough
  $<$<CXX_COMPILER_ID:Clang>:-Wno-sign-conversion>)  # which g++'s -Wconversion leaves out

if(STOWAGE_SANITIZE STREQUAL "thread")
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
elseif(STOWAGE_SANITIZE)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # a third of the time of compiling; AddressSanitizer meets most of it, and clang's builds keep them
    add_compile_options(-fno-sanitize=null,alignment,object-size,nonnull-attribute,returns-nonnull-attribute,pointer-overflow)
  endif()
endif()
if(STOWAGE_FUZZ STREQUAL "libfuzzer")
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
