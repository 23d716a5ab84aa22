// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fake_memory.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "tests/support/fake_streams.h"

namespace moonhalo::testing::fake {
namespace {

constexpr size_t kArenaBytes = size_t{16} << 30;  // of addresses; only what is touched takes memory
constexpr size_t kLeastBytes = 512;
constexpr int kPoison = 0xff;

char* mapped(int file, int rights) {
  void* const at = mmap(nullptr, kArenaBytes, rights, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(at != MAP_FAILED, "fake device: ", kArenaBytes, " bytes of addresses could not be mapped");
  return static_cast<char*>(at);
}

class Arena {
 public:
  static Arena& of_process() {
    static auto* arena = new Arena;
    return *arena;
  }

  char* take(const c10::Stream& stream, size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::vector<size_t>& free = free_[key(stream, bytes)];
    if (!free.empty()) {
      const size_t offset = free.back();
      free.pop_back();
      return device_ + offset;
    }
    TORCH_CHECK_WITH(OutOfMemoryError, bytes <= kArenaBytes - used_, "fake device: out of memory\n  have  ", used_,
                     " of ", kArenaBytes, " bytes given away, ", bytes, " asked for\n  fix   free some tensors");
    used_ += bytes;
    return device_ + used_ - bytes;
  }
  void give_back(const c10::Stream& stream, const char* at, size_t bytes) {
    const std::lock_guard lock(mutex_);
    free_[key(stream, bytes)].push_back(at - device_);
  }
  char* kernel_view(const void* at) const { return kernels_ + (static_cast<const char*>(at) - device_); }

 private:
  using Key = std::tuple<int, int64_t, size_t>;
  static Key key(const c10::Stream& stream, size_t bytes) { return {stream.device_index(), stream.id(), bytes}; }

  Arena() {
    const int file = memfd_create("fake device", 0);
    TORCH_CHECK(file >= 0 && ftruncate(file, kArenaBytes) == 0, "fake device: no memory file");
    device_ = mapped(file, PROT_NONE);
    kernels_ = mapped(file, PROT_READ | PROT_WRITE);
    close(file);
  }

  char* device_ = nullptr;
  char* kernels_ = nullptr;
  std::mutex mutex_;
  std::map<Key, std::vector<size_t>> free_;
  size_t used_ = 0;
};

// Sizes in steps of an eighth of their power of two, so that a block serves the next tensor of about its size.
size_t rounded(size_t bytes) {
  if (bytes <= kLeastBytes) return kLeastBytes;
  size_t step = kLeastBytes;
  while (step * 8 < bytes) step *= 2;
  return (bytes + step - 1) / step * step;
}

struct Allocation {
  char* at;
  size_t bytes, rounded_bytes;
  c10::Stream stream;
  std::mutex mutex;
  std::vector<c10::Stream> users;
};

void poison(const c10::Stream& stream, const char* at, size_t bytes) {
  enqueue(stream, [to = kernel_view(at), bytes] { std::memset(to, kPoison, bytes); });
}

void free_allocation(void* context) {
  const std::unique_ptr<Allocation> allocation(static_cast<Allocation*>(context));
  for (const c10::Stream& user : allocation->users) {
    Event used;
    used.record(user);
    used.hold_back(allocation->stream);
  }
  poison(allocation->stream, allocation->at, allocation->bytes);
  Arena::of_process().give_back(allocation->stream, allocation->at, allocation->rounded_bytes);
}

class DeviceAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current_device();
    const c10::Device where(c10::kPrivateUse1, static_cast<c10::DeviceIndex>(device));
    if (bytes == 0) return {nullptr, where};
    const c10::Stream stream = current_stream(device);
    char* const at = Arena::of_process().take(stream, rounded(bytes));
    poison(stream, at, bytes);
    return {at, new Allocation{at, bytes, rounded(bytes), stream, {}, {}}, &free_allocation, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    const c10::Stream stream = current_stream(current_device());
    enqueue(stream, [to = kernel_view(to), from = kernel_view(from), bytes] { std::memmove(to, from, bytes); });
  }
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{at::getCPUAllocator()->allocate(std::max<size_t>(bytes, 1)), bytes};
    char* const at = static_cast<char*>(block->memory.get());
    const std::lock_guard lock(mutex());
    blocks()[at] = bytes;
    return {at, block, &free_block, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memmove(to, from, bytes); }

  static bool has(const void* address) {
    const char* const at = static_cast<const char*>(address);
    const std::lock_guard lock(mutex());
    const auto after = blocks().upper_bound(at);
    return after != blocks().begin() && at < std::prev(after)->first + std::prev(after)->second;
  }

 private:
  struct Block {
    c10::DataPtr memory;
    size_t bytes;
  };
  static void free_block(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    const std::lock_guard lock(mutex());
    blocks().erase(static_cast<char*>(block->memory.get()));
    std::memset(block->memory.get(), kPoison, block->bytes);
  }
  static std::mutex& mutex() {
    static auto* mutex = new std::mutex;
    return *mutex;
  }
  static std::map<const char*, size_t>& blocks() {
    static auto* blocks = new std::map<const char*, size_t>;
    return *blocks;
  }
};

}  // namespace

c10::Allocator& device_allocator() {
  static auto* allocator = new DeviceAllocator;
  return *allocator;
}

void* kernel_view(const void* device_address) { return Arena::of_process().kernel_view(device_address); }

void note_use(const c10::DataPtr& data, const c10::Stream& stream) {
  auto* allocation = static_cast<Allocation*>(data.get_context());
  if (allocation == nullptr || allocation->stream == stream) return;
  const std::lock_guard lock(allocation->mutex);
  allocation->users.push_back(stream);
}

c10::Allocator& pinned_allocator() {
  static auto* allocator = new PinnedAllocator;
  return *allocator;
}
bool is_pinned(const void* address) { return PinnedAllocator::has(address); }

}  // namespace moonhalo::testing::fake
