// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/zarr_chunks.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "moonhalo/io/base/file_version.h"
#include "moonhalo/io/base/threads.h"
#include "moonhalo/io/codecs/crc32c.h"

namespace moonhalo::io {
namespace {

constexpr uint64_t kNone = ~uint64_t{0};
constexpr uint64_t kEntryBytes = 16, kSumBytes = 4;

/// Times that a file system here gives are never later, but up to ten milliseconds earlier.
timespec time_now() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return now;
}

bool is_before(const timespec& a, const timespec& b) {
  return std::pair(a.tv_sec, a.tv_nsec) < std::pair(b.tv_sec, b.tv_nsec);
}

}  // namespace

ZarrChunks::ZarrChunks(Layout layout) : layout_(std::move(layout)), made_(time_now()) {}

void ZarrChunks::check_inside(const std::string& path, const h5::Where& where) const {
  const auto target = layout_.reach->outside(path);
  TORCH_CHECK_VALUE(!target, where.to_string(), ": a link leads outside the Zarr folder\n  have  chunk file \"", path,
                    "\", which leads to \"", target.value_or(""), "\"\n  fix   ", FolderReach::kFix);
}

/// -1 where there is no such file, which is what a chunk means that was never written.
FileDescriptor ZarrChunks::open_chunk(const std::string& path, const h5::Where& where) const {
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  TORCH_CHECK(file.get() >= 0 || errno == ENOENT, where.to_string(), ": cannot open a chunk\n  have  file \"", path,
              "\": ", std::strerror(errno), "\n  fix   check the disk and its permissions");
  if (file.get() >= 0) check_inside(path, where);
  return file;
}

/// Times that are still to come say nothing.
void ZarrChunks::check_older(const std::string& path, const struct stat& found, const h5::Where& where) const {
  const bool newer = is_before(made_, found.st_mtim) && !is_before(time_now(), found.st_mtim);
  TORCH_CHECK_VALUE(!newer, where.to_string(), ": it has changed since it was opened\n  have  chunk file \"", path,
                    "\", written ", time_text(found.st_mtim), ", opened ", time_text(made_),
                    "\n  fix   leave files alone while they are read, and open them again");
}

uint64_t ZarrChunks::size_of(int file, const std::string& path, const h5::Where& where) const {
  struct stat found {};
  TORCH_CHECK(fstat(file, &found) == 0 && S_ISREG(found.st_mode), where.to_string(),
              ": cannot read a chunk\n  have  \"", path,
              "\", which is not a file\n  fix   copy or download the array again");
  check_older(path, found, where);
  return static_cast<uint64_t>(found.st_size);
}

std::string ZarrChunks::file_of(const Number& number) const {
  std::string name = layout_.prefix;
  for (size_t dim = 0; dim < number.size(); ++dim) {
    if (dim > 0) name += layout_.separator;
    name += std::to_string(number[dim]);
  }
  if (number.empty()) name = layout_.prefix.empty() ? "0" : "c";
  return layout_.folder + "/" + name;
}

ZarrChunks::Number ZarrChunks::shard_of(const Number& chunk) const {
  Number shard = chunk;
  if (!layout_.shards) return shard;
  for (size_t dim = 0; dim < shard.size(); ++dim) shard[dim] /= layout_.shards->chunks[dim];
  return shard;
}

StoredChunk ZarrChunks::find_file(const Number& chunk, const h5::Where& where) const {
  const std::string path = file_of(chunk);
  struct stat found {};
  if (stat(path.c_str(), &found) != 0) {
    TORCH_CHECK(errno == ENOENT || errno == ENOTDIR, where.to_string(), ": cannot find a chunk\n  have  file \"", path,
                "\": ", std::strerror(errno), "\n  fix   check the disk and its permissions");
    return {};
  }
  check_inside(path, where);
  if (!S_ISREG(found.st_mode)) refuse_damaged_chunk(chunk, "\"" + path + "\", which is not a file", where);
  check_older(path, found, where);
  const auto bytes = static_cast<uint64_t>(found.st_size);
  if (bytes == 0 || bytes > layout_.largest)
    refuse_damaged_chunk(chunk, "its file \"" + path + "\" of " + std::to_string(bytes) + " bytes", where);
  return {0, bytes, 0};
}

std::string ZarrChunks::read_index(int descriptor, uint64_t file_size, std::string& index,
                                   const h5::Where& where) const {
  const Shards& shards = *layout_.shards;
  uint64_t bytes = kEntryBytes;
  for (const int64_t count : shards.chunks) bytes *= static_cast<uint64_t>(count);
  const uint64_t stored = bytes + (shards.index_has_sum ? kSumBytes : 0);
  if (stored > file_size) return "of " + std::to_string(file_size) + " bytes, fewer than its index has";
  index.resize(stored);
  const StoredChunk place{shards.index_at_end ? file_size - stored : 0, stored, 0};
  if (std::string damage = read_stored_bytes(descriptor, file_size, place, index.data(), where); !damage.empty())
    return damage;
  if (shards.index_has_sum) {
    uint32_t kept = 0;
    std::memcpy(&kept, index.data() + bytes, kSumBytes);
    if (kept != crc32c(index.data(), bytes)) return "whose index does not match its CRC-32C checksum";
  }
  index.resize(bytes);
  if (shards.index_swapped) swap_bytes(index.data(), sizeof(uint64_t), bytes / sizeof(uint64_t));
  return "";
}

std::vector<StoredChunk> ZarrChunks::find_in_shard(const Number& shard, const std::vector<Number>& chunks,
                                                   const h5::Where& where) const {
  std::vector<StoredChunk> found(chunks.size());
  const std::string path = file_of(shard);
  const FileDescriptor file = open_chunk(path, where);
  if (file.get() < 0) return found;
  const uint64_t file_size = size_of(file.get(), path, where);
  std::string index;
  const std::string damage = read_index(file.get(), file_size, index, where);
  if (!damage.empty()) refuse_damaged_chunk(chunks.front(), "its shard \"" + path + "\" " + damage, where);
  for (size_t i = 0; i < chunks.size(); ++i) {
    uint64_t entry = 0, numbers[2];
    for (size_t dim = 0; dim < shard.size(); ++dim) {
      const int64_t count = layout_.shards->chunks[dim];
      entry = entry * static_cast<uint64_t>(count) + static_cast<uint64_t>(chunks[i][dim] % count);
    }
    std::memcpy(numbers, index.data() + entry * kEntryBytes, kEntryBytes);
    if (numbers[0] == kNone && numbers[1] == kNone) continue;
    const bool inside = numbers[0] <= file_size && numbers[1] <= file_size - numbers[0];
    if (!inside || numbers[1] == 0 || numbers[1] > layout_.largest)
      refuse_damaged_chunk(chunks[i],
                           "its " + std::to_string(numbers[1]) + " bytes at " + std::to_string(numbers[0]) +
                               " of shard \"" + path + "\" of " + std::to_string(file_size),
                           where);
    found[i] = {numbers[0], numbers[1], 0};
  }
  return found;
}

std::vector<StoredChunk> ZarrChunks::find(const std::vector<Number>& chunks, const h5::Where& where) const {
  struct Nothing {};
  std::vector<StoredChunk> found(chunks.size());
  if (!layout_.shards) {
    in_threads<Nothing>(static_cast<int64_t>(chunks.size()), [&](int64_t i, Nothing&) {
      found[static_cast<size_t>(i)] = find_file(chunks[static_cast<size_t>(i)], where);
    });
    return found;
  }
  std::map<Number, std::vector<size_t>> by_shard;
  for (size_t i = 0; i < chunks.size(); ++i) by_shard[shard_of(chunks[i])].push_back(i);
  std::vector<std::pair<Number, std::vector<size_t>>> shards(by_shard.begin(), by_shard.end());
  in_threads<Nothing>(static_cast<int64_t>(shards.size()), [&](int64_t i, Nothing&) {
    const auto& [shard, members] = shards[static_cast<size_t>(i)];
    std::vector<Number> asked;
    for (const size_t member : members) asked.push_back(chunks[member]);
    const std::vector<StoredChunk> places = find_in_shard(shard, asked, where);
    for (size_t k = 0; k < members.size(); ++k) found[members[k]] = places[k];
  });
  return found;
}

std::string ZarrChunks::load(const Number& chunk, const StoredChunk& stored, char* out, const h5::Where& where) const {
  const std::string path = file_of(shard_of(chunk));
  const FileDescriptor file = open_chunk(path, where);
  if (file.get() < 0) return "its file \"" + path + "\" went away while it was read";
  const std::string damage = read_stored_bytes(file.get(), size_of(file.get(), path, where), stored, out, where);
  return damage.empty() ? "" : damage + ": \"" + path + "\"";
}

}  // namespace moonhalo::io
