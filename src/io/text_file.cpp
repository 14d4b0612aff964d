// Reading a file whole, and replacing one atomically: the new content goes to a temporary file in the same directory,
// is flushed to the disk, and then takes the old one's name in one step. Whoever opens the name sees all of the old or
// all of the new. A target that is no regular file (a pipe, a device) is written in place; a symbolic link stays, its
// target is replaced.
#include "io/text_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/concat.h"
#include "io/gzip.h"
#include "stowage/error.h"

namespace stowage::io {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 31;  // of a file and of what it holds: some ten million ops
// Of what a compressed file holds: this, and so many times its size. A graph of 200,000 equal ops holds 15 times its
// size.
constexpr std::size_t kAnyBytes = std::size_t{1} << 24, kMostTimes = 100;

[[noreturn]] void fail_read(const std::string& path, std::string_view what, int code) {
  throw Error(concat(display_name(path), ": ", what, ": ", std::generic_category().message(code)));
}

[[noreturn]] void fail_write(const std::string& path, std::string_view what, int code) {
  throw WriteFailed(concat(path, ": ", what, ": ", std::generic_category().message(code)));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ > STDERR_FILENO) ::close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  // Closes; false when that fails, which is when some systems report a failed write.
  bool close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

bool is_gzip(const std::string& path) { return path.ends_with(".gz"); }

std::string read_all(int fd, const std::string& path) {
  std::string out;
  struct stat about{};
  if (::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0)
    out.reserve(static_cast<std::size_t>(about.st_size));
  std::array<char, 1 << 16> block;
  for (;;) {
    const ssize_t count = ::read(fd, block.data(), block.size());
    if (count == 0) return out;
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_read(path, "cannot be read", errno);
    out.append(block.data(), static_cast<std::size_t>(count));
    if (out.size() > kMostBytes) throw Error(concat(display_name(path), ": is larger than ", kMostBytes, " bytes"));
  }
}

void write_all(int fd, std::string_view data, const std::string& path) {
  while (!data.empty()) {
    const ssize_t count = ::write(fd, data.data(), data.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_write(path, "cannot be written", errno);
    data.remove_prefix(static_cast<std::size_t>(count));
  }
}

void write_in_place(const std::string& path, std::string_view data) {
  const Descriptor file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file.get() < 0) fail_write(path, "cannot be written", errno);
  write_all(file.get(), data, path);
}

// A file beside the target that is removed unless it takes the target's name.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target) : target_(target), file_(create()) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!done_) ::unlink(name_.c_str());
  }

  // `mode` is that of the file to be replaced; 0 when there is none.
  void replace_target(std::string_view data, mode_t mode) {
    write_all(file_.get(), data, target_);
    if (mode != 0) ::fchmod(file_.get(), mode);
    if (::fsync(file_.get()) != 0 || !file_.close()) fail_write(target_, "cannot be written", errno);
    if (::rename(name_.c_str(), target_.c_str()) != 0) fail_write(target_, "cannot be replaced", errno);
    done_ = true;
    flush_directory();
  }

 private:
  // The first free name "<target>.<process>-<n>.tmp", so that the file gets the permissions that the user's mask gives.
  int create() {
    for (int n = 0;; ++n) {
      name_ = concat(target_, ".", ::getpid(), "-", n, ".tmp");
      const int fd = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
      if (fd >= 0) return fd;
      if (errno != EEXIST) fail_write(target_, "cannot be written", errno);
    }
  }

  // Makes the new name last, where the file system supports that; the file itself is safe already.
  void flush_directory() const {
    const auto parent = std::filesystem::path(target_).parent_path();
    const Descriptor directory(::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.get() >= 0) ::fsync(directory.get());
  }

  std::string target_;
  std::string name_;
  Descriptor file_;
  bool done_ = false;
};

}  // namespace

std::string display_name(const std::string& path) { return path == "-" ? "stdin" : path; }

std::string read_text(const std::string& path) {
  if (path == "-") return read_all(STDIN_FILENO, path);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) fail_read(path, "cannot be opened", errno);
  std::string data = read_all(file.get(), path);
  if (!is_gzip(path)) return data;
  try {
    return gunzip(data, std::min(kMostBytes, kAnyBytes + kMostTimes * data.size()));
  } catch (const Error& error) {
    throw Error(concat(path, ": ", error.what()));
  }
}

void write_text(const std::string& path, std::string_view text) {
  if (path == "-") return write_all(STDOUT_FILENO, text, "stdout");
  const std::string compressed = is_gzip(path) ? gzip(text) : std::string();
  const std::string_view data = is_gzip(path) ? std::string_view(compressed) : text;
  struct stat old{};
  if (::stat(path.c_str(), &old) != 0) return TemporaryFile(path).replace_target(data, 0);
  if (!S_ISREG(old.st_mode)) return write_in_place(path, data);
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  TemporaryFile(error ? path : target.string()).replace_target(data, old.st_mode & 07777);
}

}  // namespace stowage::io
