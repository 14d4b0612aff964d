// SHA-256 by OpenSSL's libcrypto: no small SHA-256 library is packaged by Debian, and libcrypto uses the processor's
// SHA instructions (about 1.5 GB/s where portable C++ reaches 0.3), which matters for graphs of hundreds of megabytes.
// Its first interface, called deprecated since 3.0, is used on purpose: linked statically, as wheels do, it brings 35
// kB with it, the newer one 3.8 MB.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <array>

#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage {

std::string sha256_hex(std::string_view bytes) {
  constexpr std::string_view hex = "0123456789abcdef";
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest;
  SHA256_CTX context;
  if (SHA256_Init(&context) != 1 || SHA256_Update(&context, bytes.data(), bytes.size()) != 1 ||
      SHA256_Final(digest.data(), &context) != 1) {
    throw Error("sha256: the cryptographic library refused to compute a digest");
  }
  std::string out;
  for (const unsigned char byte : digest) {
    out += hex[byte >> 4];
    out += hex[byte & 15];
  }
  return out;
}

}  // namespace stowage
