// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/heap_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "moonhalo/io/base/read_into.h"

namespace moonhalo::io::h5 {
namespace {

constexpr std::string_view kSuperblock("\x89HDF\r\n\x1a\n", 8), kHeap("GCOL\x01", 5);
constexpr uint64_t kHeader = 16;  // of a heap, and of an object in it, with sizes of up to 8 bytes

uint64_t aligned(uint64_t size) { return (size + 7) / 8 * 8; }

uint64_t little_endian(const char* bytes, size_t count) {
  uint64_t value = 0;
  for (size_t i = count; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// The headers of a heap's objects: from what was read, else from the file.
class Headers {
 public:
  Headers(int descriptor, uint64_t address, const char* data, size_t size)
      : descriptor_(descriptor), address_(address), data_(data), size_(size) {}

  /// nullptr at the end of the file.
  const char* at(uint64_t offset) {
    if (offset + kHeader <= size_) return data_ + offset;
    if (offset < begin_ || offset + kHeader > begin_ + count_) {
      begin_ = offset;
      const int64_t got =
          read_into(descriptor_, {{ahead_.data(), static_cast<int64_t>(ahead_.size())}}, address_ + offset);
      count_ = static_cast<uint64_t>(std::max<int64_t>(got, 0));
    }
    return count_ < offset - begin_ + kHeader ? nullptr : ahead_.data() + (offset - begin_);
  }

 private:
  int descriptor_;
  uint64_t address_;
  const char* data_;
  uint64_t size_;
  std::array<char, 4096> ahead_;
  uint64_t begin_ = 0, count_ = 0;
};

}  // namespace

std::string HeapCheck::problem(int descriptor, uint64_t address, const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  const std::string_view text(bytes, size);
  if (!opened_ && size >= kHeader && text.starts_with(kSuperblock)) {
    opened_ = true;
    length_bytes_ = static_cast<unsigned char>(bytes[bytes[8] < 2 ? 14 : 10]);
  }
  const bool known = length_bytes_ == 2 || length_bytes_ == 4 || length_bytes_ == 8;
  if (!known || size < kHeader || !text.starts_with(kHeap)) return {};
  const uint64_t whole = little_endian(bytes + 8, length_bytes_);
  Headers headers(descriptor, address, bytes, size);
  const auto object = [&](uint64_t offset) {
    return "the global heap at byte " + std::to_string(address) + " is damaged: its object at byte " +
           std::to_string(address + offset) + " ";
  };
  // Too little for a header behind the last object is unused.
  for (uint64_t offset = kHeader; offset + kHeader <= whole;) {
    const char* header = headers.at(offset);
    if (header == nullptr) return {};  // HDF5 sees the end of the file itself
    const bool unused = little_endian(header, 2) == 0;
    const uint64_t stated = little_endian(header + 8, length_bytes_), left = whole - offset;
    if (stated > left || (!unused && kHeader + aligned(stated) > left)) return object(offset) + "reaches beyond it";
    if (unused && stated == 0) return object(offset) + "is unused and has no size";
    offset += unused ? stated : kHeader + aligned(stated);
  }
  return {};
}

}  // namespace moonhalo::io::h5
