// A CPU allocator of another library, for test_other_allocators.py: on malloc, behind C functions. `bare`: a block's
// context is its address, as c10's own has it; else it is something else, and nobody can free a block by its address.
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdlib>

namespace {

std::atomic<long> g_served{0};

struct Block {
  void* data;
};

void free_block(void* context) {
  std::free(static_cast<Block*>(context)->data);
  delete static_cast<Block*>(context);
}

class Other final : public c10::Allocator {
 public:
  explicit Other(bool bare) : bare_(bare) {}
  c10::DataPtr allocate(std::size_t n) override {
    ++g_served;
    void* data = n == 0 ? nullptr : std::aligned_alloc(64, (n + 63) / 64 * 64);
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bare_) return {data, data, &std::free, cpu};
    return {data, new Block{data}, &free_block, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return bare_ ? &std::free : nullptr; }
  void copy_data(void* into, const void* from, std::size_t n) const override { default_copy_data(into, from, n); }

 private:
  bool bare_;
};

}  // namespace

extern "C" void put_in_place(int priority, int bare) {
  c10::SetCPUAllocator(new Other(bare != 0), static_cast<std::uint8_t>(priority));
}
extern "C" long served() { return g_served.load(); }
