// Bytes as people write and read them.
#include "stowage/bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "stowage/error.h"

namespace stowage::testing {
namespace {

TEST(ParseBytes, ReadsUnits) {
  const std::vector<std::pair<const char*, std::int64_t>> cases = {{"0", 0},
                                                                   {"4096", 4096},
                                                                   {"7B", 7},
                                                                   {"512MiB", 536870912},
                                                                   {"4GiB", 4294967296},
                                                                   {"4GB", 4'000'000'000},
                                                                   {"3KiB", 3072},
                                                                   {"3kB", 3000},
                                                                   {"2TiB", 2199023255552},
                                                                   {"5TB", 5'000'000'000'000},
                                                                   {"9007199254740991", 9007199254740991}};
  for (const auto& [text, bytes] : cases) EXPECT_EQ(parse_bytes(text), bytes) << text;
}

TEST(ParseBytes, RefusesTheRest) {
  for (const char* text : {"", "GiB", "-1", "-0", "+1", "1.5GiB", "4 GiB", "4gib", "4G", "0x10", "9007199254740992",
                           "99999999999999999999", "8192TiB", "4GiBx"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
  try {
    parse_bytes("4\nGiB");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
  }
}

TEST(BytesInWords, AreInTheUnitThatTellsMost) {
  const std::vector<std::pair<std::int64_t, const char*>> cases = {{0, "0 bytes"},
                                                                   {1, "1 byte"},
                                                                   {1023, "1023 bytes"},
                                                                   {1024, "1.0 KiB"},
                                                                   {-1536, "-1.5 KiB"},
                                                                   {69'206'016, "66.0 MiB"},
                                                                   {(8LL << 30) - 1, "8,192.0 MiB"},
                                                                   {24LL << 30, "24.0 GiB"},
                                                                   {(1LL << 53) - 1, "8,388,608.0 GiB"}};
  for (const auto& [bytes, words] : cases) EXPECT_EQ(in_words(bytes), words);
}

TEST(BytesInWords, AreRoundedToTheSideThatIsAskedFor) {
  const std::int64_t bytes = (66 << 20) + 1;
  EXPECT_EQ(in_words(bytes, Rounding::kDown), "66.0 MiB");
  EXPECT_EQ(in_words(bytes, Rounding::kNearest), "66.0 MiB");
  EXPECT_EQ(in_words(bytes, Rounding::kUp), "66.1 MiB");
}

}  // namespace
}  // namespace stowage::testing
