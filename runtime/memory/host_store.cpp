#include "runtime/memory/host_store.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "runtime/memory/available.h"
#include "stowage/bytes.h"
#include "stowage/error.h"

namespace stowage::runtime {

void HostStore::for_each_part(std::int64_t, std::int64_t, const Visit&) const {
  throw Error("host store: no device can copy to it");
}
namespace {

[[noreturn]] void fail(const std::string& what, int error) {
  throw Error("host store: " + what + ": " + std::strerror(error));
}

void check_limit(std::int64_t bytes, std::int64_t limit) {
  if (limit > 0 && bytes > limit) {
    throw Error("host store is full: " + in_words(bytes, Rounding::kUp) + " are needed, the limit is " +
                in_words(limit));
  }
}

class MemoryStore final : public HostStore {
 public:
  explicit MemoryStore(std::int64_t limit) : limit_(limit) {}
  ~MemoryStore() override { release(); }

  void reserve(std::int64_t bytes) override {
    if (bytes <= bytes_) return;
    release();
    require_host_memory(bytes, limit_);
    const auto size = static_cast<std::size_t>(bytes);
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) fail("cannot have " + in_words(bytes, Rounding::kUp), errno);
    madvise(mapped, size, MADV_HUGEPAGE);
    std::memset(mapped, 0, size);  // touched now, not in the middle of a step
    data_ = static_cast<char*>(mapped);
    bytes_ = bytes;
  }

  void release() override {
    if (data_ != nullptr) munmap(data_, static_cast<std::size_t>(bytes_));
    data_ = nullptr;
    bytes_ = 0;
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

  void write(std::int64_t offset, const void* from, std::int64_t bytes) override {
    std::memcpy(data_ + offset, from, static_cast<std::size_t>(bytes));
  }
  void read(std::int64_t offset, void* into, std::int64_t bytes) override {
    std::memcpy(into, data_ + offset, static_cast<std::size_t>(bytes));
  }

 private:
  std::int64_t limit_;
  char* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

class FileStore final : public HostStore {
 public:
  FileStore(std::string directory, std::int64_t limit) : directory_(std::move(directory)), limit_(limit) {}
  ~FileStore() override { release(); }

  void reserve(std::int64_t bytes) override {
    if (bytes <= bytes_ && process_ == getpid()) return;
    release();
    check_limit(bytes, limit_);
    process_ = getpid();
    std::string name = directory_ + "/stowage-XXXXXX";
    file_ = mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) fail("cannot make a file in '" + directory_ + "'", errno);
    unlink(name.c_str());
    if (const int error = posix_fallocate(file_, 0, bytes); error != 0) {
      release();
      fail("cannot have " + in_words(bytes, Rounding::kUp) + " in '" + directory_ + "'", error);
    }
    bytes_ = bytes;
  }

  void release() override {
    if (file_ >= 0) close(file_);
    file_ = -1;
    bytes_ = 0;
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

  void write(std::int64_t offset, const void* from, std::int64_t bytes) override {
    check_process();
    const char* data = static_cast<const char*>(from);
    while (bytes > 0)
      advance(pwrite(file_, data, static_cast<std::size_t>(bytes), offset), "write to", data, offset, bytes);
  }
  void read(std::int64_t offset, void* into, std::int64_t bytes) override {
    check_process();
    char* data = static_cast<char*>(into);
    while (bytes > 0)
      advance(pread(file_, data, static_cast<std::size_t>(bytes), offset), "read from", data, offset, bytes);
  }

 private:
  // A child made by fork() would write over what waits there for its parent.
  void check_process() const {
    if (process_ != getpid())
      throw Error("host store: the file in '" + directory_ + "' is that of the process that was forked");
  }

  template <class Pointer>
  void advance(ssize_t done, const char* verb, Pointer& data, std::int64_t& offset, std::int64_t& bytes) const {
    if (done < 0 && errno == EINTR) return;
    if (done <= 0) fail(std::string("cannot ") + verb + " a file in '" + directory_ + "'", done < 0 ? errno : EIO);
    data += done;
    offset += done;
    bytes -= done;
  }

  std::string directory_;
  std::int64_t limit_;
  int file_ = -1;
  pid_t process_ = 0;
  std::int64_t bytes_ = 0;
};

class FailingStore final : public HostStore {
 public:
  FailingStore(std::unique_ptr<HostStore> store, std::int64_t good_writes, std::int64_t good_reads)
      : store_(std::move(store)), writes_(good_writes), reads_(good_reads) {}

  void reserve(std::int64_t bytes) override { store_->reserve(bytes); }
  void release() override { store_->release(); }
  [[nodiscard]] std::int64_t bytes() const override { return store_->bytes(); }
  void write(std::int64_t offset, const void* from, std::int64_t bytes) override {
    count(writes_);
    store_->write(offset, from, bytes);
  }
  void read(std::int64_t offset, void* into, std::int64_t bytes) override {
    count(reads_);
    store_->read(offset, into, bytes);
  }

 private:
  static void count(std::atomic<std::int64_t>& left) {
    if (left.load() == 0) fail("injected", EIO);
    if (left.load() > 0) --left;
  }

  std::unique_ptr<HostStore> store_;
  std::atomic<std::int64_t> writes_;
  std::atomic<std::int64_t> reads_;
};

}  // namespace

void require_host_memory(std::int64_t bytes, std::int64_t limit_bytes) {
  check_limit(bytes, limit_bytes);
  if (const std::int64_t available = available_bytes("/"); bytes > available) {
    throw Error("host store is full: " + in_words(bytes, Rounding::kUp) + " are needed, the machine has " +
                in_words(available) + " available");
  }
}

std::unique_ptr<HostStore> memory_store(std::int64_t limit_bytes) { return std::make_unique<MemoryStore>(limit_bytes); }

std::unique_ptr<HostStore> file_store(std::string directory, std::int64_t limit_bytes) {
  return std::make_unique<FileStore>(std::move(directory), limit_bytes);
}

std::unique_ptr<HostStore> failing_store(std::unique_ptr<HostStore> store, std::int64_t good_writes,
                                         std::int64_t good_reads) {
  return std::make_unique<FailingStore>(std::move(store), good_writes, good_reads);
}

}  // namespace stowage::runtime
