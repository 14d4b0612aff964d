#include "runtime/memory/homes.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "runtime/memory/free_pages.h"
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
    homes_survive_forks();
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
    if (process_ != 0) require_own();
    const std::int64_t size = whole_pages(bytes);
    if (directory_.empty())
      require_host_memory(size, limit_ > 0 ? std::max<std::int64_t>(limit_ - held_, 1) : 0);
    else if (limit_ > 0 && held_ + size > limit_)
      throw Error("host store is full: " + in_words(held_ + size, Rounding::kUp) + " are needed, the limit is " +
                  in_words(limit_));
    open();
    const Region region = extent(size);
    void* const at = map(nullptr, region);
    regions_.emplace(static_cast<char*>(at), region);
    held_ += size;
    return at;
  }

  void remove(void* at) {
    const std::lock_guard lock(mutex_);
    const auto region = regions_.find(static_cast<char*>(at));
    munmap(at, static_cast<std::size_t>(region->second.bytes));
    if (process_ == getpid()) leave(region->second);
    held_ -= region->second.bytes;
    regions_.erase(region);
  }

  void forget_pages() {
    const std::lock_guard lock(mutex_);
    if (process_ != getpid()) return;
    for (const auto& [at, region] : regions_) madvise(at, static_cast<std::size_t>(region.bytes), MADV_DONTNEED);
    if (!directory_.empty() && file_ >= 0) posix_fadvise(file_, 0, 0, POSIX_FADV_DONTNEED);
  }

  [[nodiscard]] bool has(const char* at) {
    const std::shared_lock lock(mutex_);
    return region_of(at) != regions_.end();
  }

  std::int64_t held() {
    const std::shared_lock lock(mutex_);
    return held_;
  }

  [[nodiscard]] bool is_a_parent_s() const { return process_ != 0 && process_ != getpid(); }

  // All regions: what is written to them from now on, through their mappings too, is not seen by children.
  void part_from_children() {
    const std::lock_guard lock(mutex_);
    if (process_ != getpid()) return;
    forget_children_that_ended();
    for (auto& [at, region] : regions_) part(at, region);
  }

  // False where the address is ordinary memory. Throw Error.
  bool write(char* at, const char* from, std::int64_t bytes) {
    std::shared_lock lock(mutex_);
    auto found = region_of(at);
    if (found == regions_.end()) return false;
    require_own();
    while (who_see(found->second, forks_ + 1) != nullptr) {
      lock.unlock();
      {
        const std::lock_guard alone(mutex_);
        forget_children_that_ended();
        part(found->first, found->second);
      }
      lock.lock();
    }
    write_at(found->second.offset + (at - found->first), from, bytes);
    return true;
  }
  bool read(const char* at, char* into, std::int64_t bytes) {
    const std::shared_lock lock(mutex_);
    const auto found = region_of(at);
    if (found == regions_.end()) return false;
    require_own();
    read_at(found->second.offset + (at - found->first), into, bytes);
    return true;
  }

 private:
  struct Region {
    std::int64_t offset = 0;
    std::int64_t bytes = 0;
    int born = 0;  // after so many forks
  };
  using Regions = std::map<char*, Region>;

  // Made by a fork, with all that it has forked: they see what the file held then. They are gone when the pipe's other end
  // is.
  struct Children {
    int fork = 0;
    int pipe = -1;
    std::vector<Region> theirs;  // that are no longer ours
  };

  Regions::iterator region_of(const char* at) {
    auto region = regions_.upper_bound(const_cast<char*>(at));
    if (region == regions_.begin()) return regions_.end();
    --region;
    return at < region->first + region->second.bytes ? region : regions_.end();
  }

  void require_own() const {
    if (process_ != getpid()) throw Error("homes of residents: they are those of the process that was forked");
  }

  Region extent(std::int64_t size) {
    if (const int error = posix_fallocate(file_, end_, size); error != 0)
      fail_at_home("cannot have " + in_words(size, Rounding::kUp), error);
    const Region made{end_, size, forks_};
    end_ += size;
    return made;
  }

  void* map(void* at, const Region& region) {
    void* const mapped = mmap(at, static_cast<std::size_t>(region.bytes), PROT_READ | PROT_WRITE,
                              at == nullptr ? MAP_SHARED : MAP_SHARED | MAP_FIXED, file_, region.offset);
    if (mapped != MAP_FAILED) return mapped;
    const int error = errno;
    give_back(region.offset, region.bytes);
    fail_at_home("cannot map " + in_words(region.bytes, Rounding::kUp), error);
  }

  void forget_children_that_ended() {
    for (std::size_t i = children_.size(); i-- > 0;) {
      pollfd asked{children_[i].pipe, 0, 0};
      if (asked.fd < 0 || poll(&asked, 1, 0) <= 0 || (asked.revents & POLLHUP) == 0) continue;
      const Children ended = std::move(children_[i]);
      children_.erase(children_.begin() + static_cast<std::ptrdiff_t>(i));
      close(ended.pipe);
      for (const Region& region : ended.theirs) leave_to_older(region, ended.fork);
    }
  }

  // The latest children that see it, and have not ended.
  Children* who_see(const Region& region, int before) {
    for (auto children = children_.rbegin(); children != children_.rend(); ++children)
      if (children->fork < before && children->fork > region.born) return &*children;
    return nullptr;
  }

  // It is ours no more.
  void leave(const Region& region) {
    forget_children_that_ended();
    leave_to_older(region, forks_ + 1);
  }
  void leave_to_older(const Region& region, int before) {
    if (Children* children = who_see(region, before)) {
      children->theirs.push_back(region);
    } else {
      give_back(region.offset, region.bytes);
    }
  }

  // A region that children see gets another place in the file, with the same content; they keep the old one.
  void part(char* at, Region& region) {
    if (who_see(region, forks_ + 1) == nullptr) return;
    const Region fresh = extent(region.bytes);
    char* const buffer = bounce();
    for (std::int64_t done = 0; done < region.bytes; done += kBounce) {
      const std::int64_t size = std::min(kBounce, region.bytes - done);
      move(/*out=*/false, file_, region.offset + done, buffer, size);
      move(/*out=*/true, file_, fresh.offset + done, buffer, size);
    }
    map(at, fresh);
    leave(std::exchange(region, fresh));
  }

  // Parts of at most kBounce bytes that begin at a page go by direct reads and writes.
  void write_at(std::int64_t offset, const char* from, std::int64_t bytes) {
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
  void read_at(std::int64_t offset, char* into, std::int64_t bytes) {
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

  // All files of the process, under a lock that no fork leaves behind.
  class Files {
   public:
    Files() : lock_(mutex()) {}
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
    for (HomeFile* file : Files::all()) {
      file->mutex_.lock();
      file->forget_children_that_ended();
      if (file->regions_.empty() || pipe2(file->ends_, O_CLOEXEC) != 0) file->ends_[0] = file->ends_[1] = -1;
    }
  }
  static void in_parent() {
    for (HomeFile* file : Files::all()) {
      if (!file->regions_.empty()) file->children_.push_back({++file->forks_, file->ends_[0], {}});
      if (file->ends_[1] >= 0) close(file->ends_[1]);
      file->mutex_.unlock();
    }
    Files::mutex().unlock();
  }
  // The pipe's end stays open as long as the child is there.
  static void in_child() {
    for (HomeFile* file : Files::all()) {
      if (file->ends_[0] >= 0) close(file->ends_[0]);
      for (const Children& others : file->children_)
        if (others.pipe >= 0) close(others.pipe);
      file->children_.clear();
      for (const auto& [at, region] : file->regions_) {
        mmap(at, static_cast<std::size_t>(region.bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file->file_,
             region.offset);
      }
      new (&file->mutex_) std::shared_mutex;  // it knows its thread by a number that a child's has not
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

  friend void stowage::runtime::homes_survive_forks();

  std::string directory_;
  std::int64_t limit_;
  std::shared_mutex mutex_;  // whoever reads or writes content has it shared
  Regions regions_;
  std::vector<Children> children_;  // the latest last
  int forks_ = 0;                   // that have left children
  int ends_[2] = {-1, -1};          // of a pipe, around a fork
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

void homes_survive_forks() {
  static const int registered = pthread_atfork(&HomeFile::before_fork, &HomeFile::in_parent, &HomeFile::in_child);
  (void)registered;
}

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
  if (bytes == 0 || now == nullptr || file_->has(now)) return;
  c10::DataPtr home = region(bytes);
  file_->write(static_cast<char*>(home.get()), now, bytes);
  storage.set_data_ptr_noswap(std::move(home));
}

void Homes::forget_pages() {
  file_->forget_pages();
  give_free_pages_back();
}

std::int64_t Homes::bytes() const { return file_->held(); }

void Homes::part_from_children() { file_->part_from_children(); }

bool Homes::are_a_parent_s() const { return file_->is_a_parent_s(); }

void Homes::write(std::int64_t address, const void* from, std::int64_t bytes) {
  auto* to = reinterpret_cast<char*>(address);
  if (!file_->write(to, static_cast<const char*>(from), bytes)) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

void Homes::read(std::int64_t address, void* into, std::int64_t bytes) {
  const auto* from = reinterpret_cast<const char*>(address);
  if (!file_->read(from, static_cast<char*>(into), bytes)) std::memcpy(into, from, static_cast<std::size_t>(bytes));
}

}  // namespace stowage::runtime
