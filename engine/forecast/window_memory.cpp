// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/window_memory.h"

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "moonhalo/engine/profile/memory.h"

namespace moonhalo {
namespace {

// One mapping per window of an allocation. Linux allows a process 65,530 mappings, which is 2 TiB in such windows.
constexpr size_t kWindowBytes = size_t{32} << 20;

// Mappings of tensors that were freed, for later ones of the same size: the system takes some microseconds to make one.
class FreeMappings {
 public:
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = by_bytes_.find(bytes);
    if (found == by_bytes_.end() || found->second.empty()) return nullptr;
    void* const base = found->second.back();
    found->second.pop_back();
    windows_ -= windows_of(bytes);
    return base;
  }
  void put(void* base, size_t bytes) {
    std::unique_lock lock(mutex_);
    if (windows_ + windows_of(bytes) > kMostWindows) {
      lock.unlock();
      munmap(base, bytes);
      return;
    }
    windows_ += windows_of(bytes);
    by_bytes_[bytes].push_back(base);
  }

 private:
  static constexpr size_t kMostWindows = 4096;  // a sixteenth of what Linux allows
  static size_t windows_of(size_t bytes) { return (bytes + kWindowBytes - 1) / kWindowBytes; }

  std::mutex mutex_;
  std::unordered_map<size_t, std::vector<void*>> by_bytes_;
  size_t windows_ = 0;
};

// Lives as long as the process: tensors may be freed after all else.
FreeMappings& free_mappings() {
  static auto* const mappings = new FreeMappings;
  return *mappings;
}

struct Mapping {
  void* base;
  size_t mapped;  // in whole pages
  std::optional<AddressesOnly> counted = {};

  static void release(void* context) {
    const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
    mapping->counted.reset();
    free_mappings().put(mapping->base, mapping->mapped);
  }
};

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

// A file without a name in memory. Mappings of it share its pages.
int window_file() {
  static const int file = [] {
    const int descriptor = memfd_create("moonhalo_fake_tensors", MFD_CLOEXEC);
    TORCH_CHECK(descriptor >= 0 && ftruncate(descriptor, static_cast<off_t>(kWindowBytes)) == 0,
                "fake tensors: the system gives no shared memory\n  have  ", std::strerror(errno), " for ",
                kWindowBytes >> 20, " MiB");
    return descriptor;
  }();
  return file;
}

void check_mapped(const void* address, size_t bytes) {
  TORCH_CHECK(address != MAP_FAILED, "fake tensors: the system has no addresses for ", bytes, " bytes\n  have  ",
              std::strerror(errno),
              "\n  fix   each 32 MiB of a fake tensor are a mapping; a larger `sysctl vm.max_map_count` allows more");
}

class WindowAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int file = window_file();
    const size_t pages = (std::max<size_t>(bytes, 1) + page_bytes() - 1) / page_bytes() * page_bytes();
    if (void* const freed = free_mappings().take(pages)) return data_of(freed, pages, bytes);
    void* base = mmap(nullptr, pages, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check_mapped(base, bytes);
    for (size_t at = 0; at < pages; at += kWindowBytes) {
      const void* part = mmap(static_cast<char*>(base) + at, std::min(kWindowBytes, pages - at), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED, file, 0);
      if (part == MAP_FAILED) munmap(base, pages);
      check_mapped(part, bytes);
    }
    return data_of(base, pages, bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

 private:
  static c10::DataPtr data_of(void* base, size_t pages, size_t bytes) {
    auto mapping = std::make_unique<Mapping>(base, pages);
    mapping->counted.emplace(base, static_cast<int64_t>(bytes));
    return {base, mapping.release(), &Mapping::release, c10::Device(c10::kCPU)};
  }
};

}  // namespace

c10::Allocator& window_allocator() {
  static WindowAllocator allocator;
  return allocator;
}

}  // namespace moonhalo
