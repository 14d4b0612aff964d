// Streams through zlib in slices, since its counters have 32 bits. A file may hold several members, one after another,
// as gzip itself allows. O(n).
#include "io/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "base/concat.h"
#include "stowage/error.h"

namespace stowage::io {
namespace {

constexpr int kGzipWindow = 15 + 16;  // the largest window; 16 asks for the gzip wrapper
constexpr std::size_t kSlice = std::size_t{1} << 16;

// A z_stream with its end; `input` is fed to it in slices.
class Stream {
 public:
  explicit Stream(std::string_view input) : rest_(input), out_(kSlice) {}

  // Runs step(stream) with room for output, appends what it wrote to `out`, returns its result.
  template <class Step>
  int advance(std::string& out, Step step) {
    const std::size_t slice = std::min(rest_.size(), kSlice);
    // zlib never writes through next_in; its type predates const.
    zlib_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(rest_.data()));
    zlib_.avail_in = static_cast<uInt>(slice);
    zlib_.next_out = out_.data();
    zlib_.avail_out = static_cast<uInt>(out_.size());
    const int result = step(zlib_);
    rest_.remove_prefix(slice - zlib_.avail_in);
    out.append(reinterpret_cast<const char*>(out_.data()), out_.size() - zlib_.avail_out);
    return result;
  }

  [[nodiscard]] std::string_view rest() const { return rest_; }
  z_stream& zlib() { return zlib_; }

 private:
  std::string_view rest_;
  std::vector<Bytef> out_;
  z_stream zlib_{};
};

struct Deflate : Stream {
  explicit Deflate(std::string_view input) : Stream(input) {
    if (deflateInit2(&zlib(), Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
      throw Error("gzip: zlib cannot start");
    }
  }
  Deflate(const Deflate&) = delete;
  Deflate& operator=(const Deflate&) = delete;
  ~Deflate() { deflateEnd(&zlib()); }
};

struct Inflate : Stream {
  explicit Inflate(std::string_view input) : Stream(input) {
    if (inflateInit2(&zlib(), kGzipWindow) != Z_OK) throw Error("gzip: zlib cannot start");
  }
  Inflate(const Inflate&) = delete;
  Inflate& operator=(const Inflate&) = delete;
  ~Inflate() { inflateEnd(&zlib()); }
};

}  // namespace

std::string gzip(std::string_view text) {
  Deflate stream(text);
  std::string out;
  int result = Z_OK;
  while (result != Z_STREAM_END) {
    const int flush = stream.rest().size() <= kSlice ? Z_FINISH : Z_NO_FLUSH;
    result = stream.advance(out, [flush](z_stream& zlib) { return deflate(&zlib, flush); });
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) throw Error("gzip: zlib cannot compress");
  }
  return out;
}

std::string gunzip(std::string_view data, std::size_t limit) {
  Inflate stream(data);
  std::string out;
  for (;;) {
    const std::size_t before = out.size();
    const std::size_t left = stream.rest().size();
    const int result = stream.advance(out, [](z_stream& zlib) { return inflate(&zlib, Z_NO_FLUSH); });
    if (out.size() > limit) throw Error(concat("holds more than ", limit, " bytes"));
    if (result == Z_STREAM_END) {
      if (stream.rest().empty()) return out;
      inflateReset(&stream.zlib());
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      throw Error(
          concat("is not valid gzip data (", stream.zlib().msg != nullptr ? stream.zlib().msg : "damaged", ")"));
    } else if (out.size() == before && stream.rest().size() == left) {
      throw Error("is truncated: the gzip data ends too early");
    }
  }
}

}  // namespace stowage::io
