// gzip: any bytes are unpacked within the limit or refused, and come back when they were packed.
#include "io/gzip.h"
#include "fuzz/target.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stowage;
  constexpr std::size_t kLimit = 1 << 20;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::accepts(
      [&] { fuzz::require(io::gunzip(text, kLimit).size() <= kLimit, "no more than the limit is unpacked"); });
  fuzz::require(io::gunzip(io::gzip(text), size) == text, "what was packed comes back");
  return 0;
}
