// Files: compression, damage, and writing that leaves the old file when it fails.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#include "io/gzip.h"
#include "io/text_file.h"
#include "stowage/error.h"
#include "stowage/io.h"
#include "support/builder.h"

namespace stowage::testing {
namespace {

namespace fs = std::filesystem;

class Files : public ::testing::Test {
 protected:
  Files() : folder_(fs::temp_directory_path() / ("stowage-files-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~Files() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string content(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void put(const std::string& file, const std::string& data) { std::ofstream(file, std::ios::binary) << data; }
  [[nodiscard]] std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }

  fs::path folder_;
};

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

// Text that is neither constant nor random.
std::string long_text(std::size_t size) {
  std::string text;
  for (std::size_t i = 0; text.size() < size; ++i) text += std::to_string(i * i % 977) + ",";
  return text;
}

// A small file must not ask for much memory: what is far larger than its compressed form is no graph.
TEST_F(Files, ACompressedFileHoldsSoManyTimesItsSize) {
  const std::string bomb = io::gzip(std::string(std::size_t{300} << 20, ' '));
  put(path("bomb.json.gz"), bomb);
  EXPECT_NE(message_of([&] { io::read_text(path("bomb.json.gz")); }).find("bomb.json.gz: holds more than "),
            std::string::npos);
  const std::string text = std::string(std::size_t{16} << 20, ' ');
  put(path("spaces.json.gz"), io::gzip(text));
  EXPECT_EQ(io::read_text(path("spaces.json.gz")), text);
}

TEST_F(Files, GzipRoundTripsAtEverySliceSize) {
  for (const std::size_t size : {0UL, 1UL, 1000UL, (1UL << 16) - 3, 1UL << 16, (3UL << 16) + 7, 1UL << 20}) {
    const std::string text = long_text(size).substr(0, size);
    EXPECT_EQ(io::gunzip(io::gzip(text), text.size()), text) << size;
  }
  EXPECT_EQ(io::gzip("abc"), io::gzip("abc"));
}

TEST_F(Files, EveryTruncationOfGzipIsRefused) {
  const std::string data = io::gzip(long_text(2000));
  for (std::size_t size = 0; size < data.size(); ++size) {
    EXPECT_THROW(io::gunzip(data.substr(0, size), 1 << 20), Error) << size;
  }
}

TEST_F(Files, DamagedGzipIsRefused) {
  std::string data = io::gzip(long_text(2000));
  EXPECT_NE(message_of([&] { io::gunzip(data + "junk", 1 << 20); }).find("not valid gzip data"), std::string::npos);
  data[data.size() - 6] ^= 1;  // the checksum
  EXPECT_NE(message_of([&] { io::gunzip(data, 1 << 20); }).find("not valid gzip data"), std::string::npos);
  EXPECT_NE(message_of([&] { io::gunzip("plain text", 1 << 20); }).find("not valid gzip data"), std::string::npos);
}

TEST_F(Files, MembersOfGzipAreJoined) {
  EXPECT_EQ(io::gunzip(io::gzip("abc") + io::gzip("") + io::gzip("def"), 100), "abcdef");
}

TEST_F(Files, GzipBombIsRefused) {
  const std::string bomb = io::gzip(std::string(64 << 20, ' '));
  EXPECT_LT(bomb.size(), 100'000U);
  EXPECT_NE(message_of([&] { io::gunzip(bomb, 1 << 20); }).find("holds more than 1048576 bytes"), std::string::npos);
}

TEST_F(Files, GraphRoundTripsPlainAndCompressed) {
  GraphBuilder builder;
  builder.op({}, {}, {builder.buffer(8)});
  const Graph graph = builder.build();
  for (const char* name : {"g.graph.json", "g.graph.json.gz"}) {
    save(graph, path(name));
    EXPECT_EQ(to_json(load_graph(path(name))), to_json(graph));
    EXPECT_EQ(load_graph(path(name)).sha256, graph.sha256);
  }
  EXPECT_TRUE(content(path("g.graph.json.gz")).starts_with("\x1f\x8b"));
}

TEST_F(Files, MissingFileIsNamed) {
  EXPECT_EQ(message_of([&] { load_graph(path("none.json")); }),
            path("none.json") + ": cannot be opened: No such file or directory");
  EXPECT_NE(message_of([&] { load_graph(folder_.string()); }).find("cannot be read: Is a directory"),
            std::string::npos);
}

TEST_F(Files, TruncatedGzipFileIsNamed) {
  put(path("t.graph.json.gz"), io::gzip(long_text(2000)).substr(0, 100));
  EXPECT_EQ(message_of([&] { load_graph(path("t.graph.json.gz")); }),
            path("t.graph.json.gz") + ": is truncated: the gzip data ends too early");
}

TEST_F(Files, WritingReplacesWholeFileAndKeepsItsMode) {
  put(path("f"), "a long old content");
  ::chmod(path("f").c_str(), 0640);
  io::write_text(path("f"), "new");
  EXPECT_EQ(content(path("f")), "new");
  EXPECT_EQ(fs::status(path("f")).permissions(), static_cast<fs::perms>(0640));
  EXPECT_EQ(files(), 1U);
}

TEST_F(Files, FailedWriteLeavesNothingBehind) {
  EXPECT_NE(message_of([&] { io::write_text(path("no/such/folder"), "x"); }).find("cannot be written"),
            std::string::npos);
  EXPECT_NE(message_of([&] { io::write_text(folder_.string(), "x"); }).find("cannot be written: Is a directory"),
            std::string::npos);
  EXPECT_EQ(files(), 0U);
}

TEST_F(Files, SymbolicLinkStaysAndItsTargetChanges) {
  put(path("target"), "old");
  fs::create_symlink("target", path("link"));
  io::write_text(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content(path("target")), "new");
}

TEST_F(Files, DeviceIsWrittenInPlace) {
  io::write_text("/dev/null", "x");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

}  // namespace
}  // namespace stowage::testing
