// The intervals CSV.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "stowage/error.h"
#include "stowage/io.h"

namespace stowage::testing {
namespace {

class Intervals : public ::testing::Test {
 protected:
  ~Intervals() override { std::filesystem::remove(path_); }

  IntervalsFile load(const std::string& text) const {
    std::ofstream(path_, std::ios::binary) << text;
    return load_intervals(path_);
  }

  std::string path_ =
      (std::filesystem::temp_directory_path() / ("stowage-intervals-" + std::to_string(::getpid()) + ".csv")).string();
};

TEST_F(Intervals, ReadsColumnsInAnyOrder) {
  const IntervalsFile file = load("size,id,upper,lower\r\n10,a,5,-2\r\n\n0,b,7,7\n");
  EXPECT_EQ(file.ids, (std::vector<std::string>{"a", "b"}));
  ASSERT_EQ(file.items.size(), 2U);
  EXPECT_EQ(file.items[0].lower, -2);
  EXPECT_EQ(file.items[0].upper, 5);
  EXPECT_EQ(file.items[0].bytes, 10);
}

TEST_F(Intervals, RefusesBrokenFiles) {
  const std::string header = "id,lower,upper,size\n";
  const std::vector<std::pair<std::string, const char*>> cases = {
      {"", "line 0: the header is missing"},
      {"id,lower,upper\n", "line 1: the column 'size' is missing"},
      {"id,lower,upper,size,colour\n", "line 1: unknown column 'colour'"},
      {"id,lower,upper,size,id\n", "line 1: the column 'id' is there twice"},
      {header + "a,1,2\n", "line 2: has 3 fields, the header has 4"},
      {header + "a,1,2,3\na,1,2,3\n", "line 3: id: 'a' is there twice"},
      {header + "a,x,2,3\n", "line 2: lower: 'x' is no integer"},
      {header + "a,1,2.5,3\n", "line 2: upper: '2.5' is no integer"},
      {header + "a,1,2,-3\n", "line 2: size: '-3' is no integer from 0"},
      {header + "a,1,2, 3\n", "line 2: size: ' 3' is no integer"},
      {header + "a,1,2,9007199254740992\n", "line 2: size: '9007199254740992' is no integer from 0 to 2^53 - 1"},
      {header + "a,1,2,99999999999999999999\n", "line 2: size:"},
      {header + "a,3,2,1\n", "line 2: id 'a': lower 3 is above upper 2"},
      {header + ",1,2,1\n", "line 2: id: '' is empty"},
      {header + "a,1,2,9007199254740991\nb,1,2,1\n", "line 3: id 'b': the sum of all sizes reaches 2^53"},
  };
  for (const auto& [text, expected] : cases) {
    SCOPED_TRACE(text);
    try {
      load(text);
      ADD_FAILURE() << "was accepted";
    } catch (const InvalidLayout& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(path_ + ": ")) << message;
      EXPECT_NE(message.find(expected), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST_F(Intervals, SavesOffsetsAndReadsThemOver) {
  const IntervalsFile file = load("id,lower,upper,size\na,0,2,4\nb,1,3,8\n");
  save_intervals(file, {8, 0}, path_);
  std::ifstream in(path_);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "id,lower,upper,size,offset\na,0,2,4,8\nb,1,3,8,0\n");
  EXPECT_EQ(load_intervals(path_).items.size(), 2U);
}

}  // namespace
}  // namespace stowage::testing
