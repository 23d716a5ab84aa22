// SPDX-License-Identifier: Apache-2.0
// Source: PKWARE's APPNOTE for zip and zip64, POSIX's pax for ustar.
#include "moonhalo/io/pytorch/archive.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <string_view>

namespace moonhalo::io {
namespace {

constexpr int64_t kEndBytes = 22, kLongestComment = 0xffff, kEnd64Bytes = 56, kLocatorBytes = 20, kDirectoryBytes = 46,
                  kLocalBytes = 30, kTarBlock = 512;
constexpr uint64_t kMostEntries = 1 << 20;
constexpr uint32_t kIn64 = 0xffffffff;

/// A little-endian number at a place of these bytes, which must have it.
template <class Number>
Number number_at(std::string_view text, size_t at) {
  Number value = 0;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

/// Where the directory is, in bytes of the archive.
struct Directory {
  uint64_t entries = 0, bytes = 0, offset = 0;
};

Directory find_directory(const FileRange& range) {
  const int64_t tail_bytes = std::min(range.bytes(), kEndBytes + kLongestComment);
  const std::string tail = range.read(range.bytes() - tail_bytes, tail_bytes);
  const size_t found = tail.rfind("PK\5\6");
  range.check(found != std::string::npos && tail.size() - found >= kEndBytes, "zip archive: no directory at its end");
  Directory directory{number_at<uint16_t>(tail, found + 10), number_at<uint32_t>(tail, found + 12),
                      number_at<uint32_t>(tail, found + 16)};
  const int64_t end = range.bytes() - tail_bytes + static_cast<int64_t>(found);
  if (end >= kLocatorBytes) {
    const std::string locator = range.read(end - kLocatorBytes, kLocatorBytes);
    if (locator.starts_with("PK\6\7")) {
      const auto offset = number_at<uint64_t>(locator, 8);
      range.check(offset <= static_cast<uint64_t>(end) && range.bytes() - static_cast<int64_t>(offset) >= kEnd64Bytes,
                  "zip archive: the end of its directory is outside");
      const std::string end64 = range.read(static_cast<int64_t>(offset), kEnd64Bytes);
      range.check(end64.starts_with("PK\6\6"), "zip archive: no end of its directory of 64 bits");
      directory = {number_at<uint64_t>(end64, 32), number_at<uint64_t>(end64, 40), number_at<uint64_t>(end64, 48)};
    }
  }
  const auto all = static_cast<uint64_t>(range.bytes());
  range.check(directory.offset <= all && directory.bytes <= all - directory.offset,
              "zip archive: its directory ends after the file, which may be cut short");
  range.check(directory.entries <= kMostEntries && directory.entries * kDirectoryBytes <= directory.bytes,
              "zip archive: " + std::to_string(directory.entries) + " entries in a directory of " +
                  std::to_string(directory.bytes) + " bytes");
  return directory;
}

/// An entry of the directory.
struct Record {
  ArchiveEntry entry;
  uint64_t bytes = 0, packed_bytes = 0, header = 0;  ///< where its local header is
};

/// Numbers of 64 bits, in the order of those that do not fit 32.
void read_extra(const FileRange& range, std::string_view extra, Record& record, bool bytes, bool packed, bool header) {
  while (extra.size() >= 4) {
    const auto id = number_at<uint16_t>(extra, 0), length = number_at<uint16_t>(extra, 2);
    if (length > extra.size() - 4) return;  // programs pad with zeros
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + size_t{length});
    if (id != 1) continue;
    for (const auto& [missing, number] :
         {std::pair(bytes, &record.bytes), {packed, &record.packed_bytes}, {header, &record.header}}) {
      if (!missing) continue;
      range.check(field.size() >= 8, "zip archive: entry '" + record.entry.name + "' lacks its size of 64 bits");
      *number = number_at<uint64_t>(field, 0);
      field.remove_prefix(8);
    }
    return;
  }
}

Record read_record(const FileRange& range, std::string_view& directory) {
  range.check(directory.size() >= kDirectoryBytes && directory.starts_with("PK\1\2"),
              "zip archive: its directory has other bytes");
  const size_t name = number_at<uint16_t>(directory, 28), extra = number_at<uint16_t>(directory, 30),
               comment = number_at<uint16_t>(directory, 32);
  range.check(directory.size() - kDirectoryBytes >= name + extra + comment, "zip archive: its directory is too short");
  Record record;
  record.entry.name = directory.substr(kDirectoryBytes, name);
  record.entry.stored = number_at<uint16_t>(directory, 10) == 0 && (number_at<uint16_t>(directory, 8) & 1) == 0;
  record.packed_bytes = number_at<uint32_t>(directory, 20);
  record.bytes = number_at<uint32_t>(directory, 24);
  record.header = number_at<uint32_t>(directory, 42);
  read_extra(range, directory.substr(kDirectoryBytes + name, extra), record, record.bytes == kIn64,
             record.packed_bytes == kIn64, record.header == kIn64);
  directory.remove_prefix(kDirectoryBytes + name + extra + comment);
  return record;
}

/// The name and the extra field of the local header may be of other lengths than in the directory.
void locate(const FileRange& range, Record& record) {
  const auto all = static_cast<uint64_t>(range.bytes());
  const std::string where = "zip archive: entry '" + record.entry.name + "' ";
  range.check(record.header <= all && all - record.header >= kLocalBytes, where + "is outside of it");
  const std::string local = range.read(static_cast<int64_t>(record.header), kLocalBytes);
  range.check(local.starts_with("PK\3\4"), where + "has no header");
  const uint64_t begin = record.header + kLocalBytes + number_at<uint16_t>(local, 26) + number_at<uint16_t>(local, 28);
  range.check(begin <= all && record.packed_bytes <= all - begin,
              where + "ends after the file, which may be cut short");
  range.check(!record.entry.stored || record.bytes == record.packed_bytes, where + "has two sizes");
  record.entry.offset = range.begin + static_cast<int64_t>(begin);
  record.entry.bytes = static_cast<int64_t>(record.packed_bytes);
}

/// Else some bytes of a file would become many in memory.
void check_apart(const FileRange& range, const std::vector<ArchiveEntry>& entries) {
  std::vector<const ArchiveEntry*> sorted;
  std::set<std::string_view> names;
  for (const ArchiveEntry& entry : entries) {
    sorted.push_back(&entry);
    range.check(names.insert(entry.name).second, "archive: it has the entry '" + entry.name + "' twice");
  }
  std::sort(sorted.begin(), sorted.end(), [](const ArchiveEntry* a, const ArchiveEntry* b) {
    return std::pair(a->offset, a->bytes) < std::pair(b->offset, b->bytes);
  });
  for (size_t i = 1; i < sorted.size(); ++i) {
    range.check(sorted[i - 1]->offset + sorted[i - 1]->bytes <= sorted[i]->offset,
                "archive: the entries '" + sorted[i - 1]->name + "' and '" + sorted[i]->name + "' overlap");
  }
}

/// Digits of base 8, or the bytes of a large number.
std::optional<int64_t> tar_size(std::string_view field) {
  int64_t value = 0;
  if ((field[0] & 0x80) != 0) {
    for (const char byte : field.substr(field.size() - 7)) value = value << 8 | static_cast<uint8_t>(byte);
    return value;
  }
  for (const char digit : field) {
    if (digit == '\0' || digit == ' ') continue;
    if (digit < '0' || digit > '7' || value > (int64_t{1} << 58)) return std::nullopt;
    value = value * 8 + (digit - '0');
  }
  return value;
}

}  // namespace

std::string FileRange::read(int64_t offset, int64_t count) const {
  std::string bytes(static_cast<size_t>(count), '\0');
  file->read_at(bytes.data(), count, begin + offset);
  return bytes;
}

void FileRange::check(bool good, const std::string& damage) const {
  TORCH_CHECK_VALUE(good, what, ": damaged ", damage, "\n  have  ", bytes(),
                    " bytes\n  fix   copy or download it again");
}

bool is_zip(const FileRange& range) { return range.bytes() >= kLocalBytes && range.read(0, 4) == "PK\3\4"; }

bool is_tar(const FileRange& range) { return range.bytes() >= kTarBlock && range.read(257, 5) == "ustar"; }

std::vector<ArchiveEntry> read_zip(const FileRange& range) {
  const Directory found = find_directory(range);
  const std::string text = range.read(static_cast<int64_t>(found.offset), static_cast<int64_t>(found.bytes));
  std::string_view directory = text;
  std::vector<ArchiveEntry> entries;
  for (uint64_t i = 0; i < found.entries; ++i) {
    Record record = read_record(range, directory);
    locate(range, record);
    entries.push_back(std::move(record.entry));
  }
  check_apart(range, entries);
  return entries;
}

std::vector<ArchiveEntry> read_tar(const FileRange& range) {
  std::vector<ArchiveEntry> entries;
  for (int64_t at = 0; at + kTarBlock <= range.bytes();) {
    const std::string head = range.read(at, kTarBlock);
    if (head[0] == '\0') break;
    const std::optional<int64_t> bytes = tar_size(std::string_view(head).substr(124, 12));
    at += kTarBlock;
    range.check(
        head.compare(257, 5, "ustar") == 0 && bytes && *bytes <= range.bytes() - at,
        "tar archive: its entry " + std::to_string(entries.size()) + " ends after the file, which may be cut short");
    const char type = head[156];
    if (type == '0' || type == '\0') {
      entries.push_back({head.substr(0, std::min<size_t>(head.find('\0'), 100)), range.begin + at, *bytes});
    }
    range.check(entries.size() <= kMostEntries, "tar archive: more entries than are read");
    at += (*bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
  }
  check_apart(range, entries);
  return entries;
}

}  // namespace moonhalo::io
