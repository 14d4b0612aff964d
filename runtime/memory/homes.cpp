#include "runtime/memory/homes.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "stowage/bytes.h"
#include "stowage/error.h"

namespace stowage::runtime {
namespace {

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kBounce = 1 << 20;

std::int64_t whole_pages(std::int64_t bytes) { return (std::max<std::int64_t>(bytes, 1) + kPage - 1) / kPage * kPage; }

[[noreturn]] void fail_at_home(const std::string& what, int error) {
  throw Error("homes of residents: " + what + ": " + std::strerror(error));
}

// What the process has freed and malloc has kept. tcmalloc in malloc's place has a function of its own for it.
void give_free_pages_back() {
  using Release = void (*)();
  static const auto of_tcmalloc = reinterpret_cast<Release>(dlsym(RTLD_DEFAULT, "MallocExtension_ReleaseFreeMemory"));
  if (of_tcmalloc != nullptr) return of_tcmalloc();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

// Memory that direct reads and writes can use, one for each thread that copies.
char* bounce() {
  struct Buffer {
    char* data = static_cast<char*>(std::aligned_alloc(kPage, kBounce));
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() { std::free(data); }
  };
  thread_local const Buffer buffer;
  if (buffer.data == nullptr) throw Error("homes of residents: no memory to copy with");
  return buffer.data;
}

}  // namespace

class HomeFile {
 public:
  HomeFile(std::string directory, std::int64_t limit) : directory_(std::move(directory)), limit_(limit) {
    const Files files;
    files.all().insert(this);
  }
  ~HomeFile() {
    {
      const Files files;
      files.all().erase(this);
    }
    if (file_ >= 0) close(file_);
    if (direct_ >= 0) close(direct_);
  }
  HomeFile(const HomeFile&) = delete;
  HomeFile& operator=(const HomeFile&) = delete;

  void* add(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    if (process_ != 0 && process_ != getpid())
      throw Error("homes of residents: they are those of the process that was forked");
    const std::int64_t size = whole_pages(bytes);
    if (directory_.empty())
      require_host_memory(size, limit_ > 0 ? std::max<std::int64_t>(limit_ - held_, 1) : 0);
    else if (limit_ > 0 && held_ + size > limit_)
      throw Error("host store is full: " + in_words(held_ + size, Rounding::kUp) + " are needed, the limit is " +
                  in_words(limit_));
    open();
    if (const int error = posix_fallocate(file_, end_, size); error != 0)
      fail_at_home("cannot have " + in_words(size, Rounding::kUp), error);
    void* at = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file_, end_);
    if (at == MAP_FAILED) {
      const int error = errno;
      give_back(end_, size);
      fail_at_home("cannot map " + in_words(size, Rounding::kUp), error);
    }
    regions_.emplace(static_cast<char*>(at), Region{end_, size});
    end_ += size;
    held_ += size;
    return at;
  }

  void remove(void* at) {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find(static_cast<char*>(at));
    munmap(at, static_cast<std::size_t>(region->second.bytes));
    if (process_ == getpid()) give_back(region->second.offset, region->second.bytes);
    held_ -= region->second.bytes;
    regions_.erase(region);
  }

  void forget_pages() {
    const std::lock_guard lock(mutex_);
    if (process_ != getpid()) return;
    for (const auto& [at, region] : regions_) madvise(at, static_cast<std::size_t>(region.bytes), MADV_DONTNEED);
    if (!directory_.empty() && file_ >= 0) posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  }

  // Of the file; negative: the address is ordinary memory.
  std::int64_t offset_of(const char* at) {
    const std::lock_guard lock(mutex_);
    auto region = regions_.upper_bound(const_cast<char*>(at));
    if (region == regions_.begin()) return -1;
    --region;
    if (at >= region->first + region->second.bytes) return -1;
    if (process_ != getpid()) throw Error("homes of residents: they are those of the process that was forked");
    return region->second.offset + (at - region->first);
  }

  std::int64_t held() {
    const std::lock_guard lock(mutex_);
    return held_;
  }

  // Parts of at most kBounce bytes that begin at a page go by direct reads and writes.
  void write(std::int64_t offset, const char* from, std::int64_t bytes) {
    while (bytes > 0) {
      const std::int64_t part = std::min(bytes, kBounce);
      if (direct_ >= 0 && offset % kPage == 0) {
        char* buffer = bounce();
        const std::int64_t size = whole_pages(part);
        std::memcpy(buffer, from, static_cast<std::size_t>(part));
        std::memset(buffer + part, 0, static_cast<std::size_t>(size - part));
        move(/*out=*/true, direct_, offset, buffer, size);
      } else {
        move(/*out=*/true, file_, offset, const_cast<char*>(from), part);
      }
      offset += part, from += part, bytes -= part;
    }
  }
  void read(std::int64_t offset, char* into, std::int64_t bytes) {
    while (bytes > 0) {
      const std::int64_t part = std::min(bytes, kBounce);
      if (direct_ >= 0 && offset % kPage == 0) {
        char* buffer = bounce();
        move(/*out=*/false, direct_, offset, buffer, whole_pages(part));
        std::memcpy(into, buffer, static_cast<std::size_t>(part));
      } else {
        move(/*out=*/false, file_, offset, into, part);
      }
      offset += part, into += part, bytes -= part;
    }
  }

 private:
  struct Region {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
  };

  // All files of the process, under a lock that no fork leaves behind.
  class Files {
   public:
    Files() : lock_(mutex()) {
      static const int registered = pthread_atfork(&before_fork, &in_parent, &in_child);
      (void)registered;
    }
    static std::set<HomeFile*>& all() {
      static auto* files = new std::set<HomeFile*>;
      return *files;
    }
    static std::mutex& mutex() {
      static auto* mutex = new std::mutex;
      return *mutex;
    }

   private:
    std::lock_guard<std::mutex> lock_;
  };
  static void before_fork() {
    Files::mutex().lock();
    for (HomeFile* file : Files::all()) file->mutex_.lock();
  }
  static void in_parent() {
    for (HomeFile* file : Files::all()) file->mutex_.unlock();
    Files::mutex().unlock();
  }
  static void in_child() {
    for (HomeFile* file : Files::all()) {
      for (const auto& [at, region] : file->regions_) {
        mmap(at, static_cast<std::size_t>(region.bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file->file_,
             region.offset);
      }
      file->mutex_.unlock();
    }
    Files::mutex().unlock();
  }

  void open() {
    if (file_ >= 0) return;
    process_ = getpid();
    if (directory_.empty()) {
      file_ = memfd_create("stowage-homes", MFD_CLOEXEC);
      if (file_ < 0) fail_at_home("cannot make a file in memory", errno);
      return;
    }
    std::string name = directory_ + "/stowage-homes-XXXXXX";
    file_ = mkostemp(name.data(), O_CLOEXEC);
    if (file_ < 0) fail_at_home("cannot make a file in '" + directory_ + "'", errno);
    direct_ = ::open(name.c_str(), O_RDWR | O_CLOEXEC | O_DIRECT);
    unlink(name.c_str());
  }

  void give_back(std::int64_t offset, std::int64_t bytes) const {
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  }

  static void move(bool out, int file, std::int64_t offset, char* data, std::int64_t bytes) {
    while (bytes > 0) {
      const ssize_t done = out ? pwrite(file, data, static_cast<std::size_t>(bytes), offset)
                               : pread(file, data, static_cast<std::size_t>(bytes), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail_at_home(out ? "cannot write" : "cannot read", done < 0 ? errno : EIO);
      offset += done, data += done, bytes -= done;
    }
  }

  std::string directory_;
  std::int64_t limit_;
  std::mutex mutex_;
  std::map<char*, Region> regions_;
  int file_ = -1;
  int direct_ = -1;
  pid_t process_ = 0;
  std::int64_t end_ = 0;   // of the regions that were ever made
  std::int64_t held_ = 0;  // bytes of regions
};

namespace {

// Of a region's DataPtr.
struct Held {
  std::shared_ptr<HomeFile> file;
  void* at;
};
void let_go(void* context) {
  const std::unique_ptr<Held> held(static_cast<Held*>(context));
  held->file->remove(held->at);
}

}  // namespace

bool at_home(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter() == &let_go;
}

Homes::Homes(std::string directory, std::int64_t limit_bytes)
    : file_(std::make_shared<HomeFile>(std::move(directory), limit_bytes)) {}
Homes::~Homes() = default;

c10::DataPtr Homes::region(std::int64_t bytes) {
  auto held = std::make_unique<Held>(Held{file_, nullptr});
  void* at = file_->add(bytes);
  held->at = at;
  return {at, held.release(), &let_go, c10::Device(c10::DeviceType::CPU)};
}

void Homes::take(c10::StorageImpl& storage) {
  const auto bytes = static_cast<std::int64_t>(storage.nbytes());
  const auto* now = static_cast<const char*>(storage.data());
  if (bytes == 0 || now == nullptr || file_->offset_of(now) >= 0) return;
  c10::DataPtr home = region(bytes);
  file_->write(file_->offset_of(static_cast<const char*>(home.get())), now, bytes);
  storage.set_data_ptr_noswap(std::move(home));
}

void Homes::forget_pages() {
  file_->forget_pages();
  give_free_pages_back();
}

std::int64_t Homes::bytes() const { return file_->held(); }

void Homes::write(std::int64_t address, const void* from, std::int64_t bytes) {
  auto* to = reinterpret_cast<char*>(address);
  if (const std::int64_t offset = file_->offset_of(to); offset >= 0)
    return file_->write(offset, static_cast<const char*>(from), bytes);
  std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void Homes::read(std::int64_t address, void* into, std::int64_t bytes) {
  const auto* from = reinterpret_cast<const char*>(address);
  if (const std::int64_t offset = file_->offset_of(from); offset >= 0)
    return file_->read(offset, static_cast<char*>(into), bytes);
  std::memcpy(into, from, static_cast<std::size_t>(bytes));
}

}  // namespace stowage::runtime
