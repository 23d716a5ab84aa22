// SPDX-License-Identifier: Apache-2.0
// Source: PKWARE's APPNOTE.
#include "moonhalo/io/pytorch/zip_writer.h"

#include <algorithm>

#include "moonhalo/io/codecs/crc32.h"

namespace moonhalo::io {
namespace {

constexpr uint64_t kAlignment = 64, kLargest32 = 0xfffffffe, kMost16 = 0xfffe;
constexpr uint16_t kVersion = 45, kPadding = 0x4246;  // "FB", the field that PyTorch pads with
constexpr size_t kLocalHead = 30;

template <class Number>
void put(std::string& text, Number number) {
  text.append(reinterpret_cast<const char*>(&number), sizeof number);
}

uint32_t narrow(uint64_t number) { return number > kLargest32 ? 0xffffffff : static_cast<uint32_t>(number); }

/// The field of the numbers that do not fit 32 bits.
std::string field64(std::initializer_list<uint64_t> numbers) {
  std::string large, field;
  for (const uint64_t number : numbers) {
    if (number > kLargest32) put(large, number);
  }
  if (large.empty()) return field;
  put<uint16_t>(field, 1);
  put(field, static_cast<uint16_t>(large.size()));
  return field + large;
}

/// The common part of the local header and the directory: version to CRC and sizes, lengths of name and extra field.
std::string facts(uint32_t crc, uint64_t bytes, std::string_view name, size_t extra) {
  std::string text;
  put(text, kVersion);
  put<uint16_t>(text, 0);     // flags
  put<uint16_t>(text, 0);     // stored
  put<uint16_t>(text, 0);     // time
  put<uint16_t>(text, 0x21);  // 1980-01-01: the same bytes in every run
  put(text, crc);
  put(text, narrow(bytes));
  put(text, narrow(bytes));
  put(text, static_cast<uint16_t>(name.size()));
  put(text, static_cast<uint16_t>(extra));
  return text;
}

}  // namespace

void ZipWriter::write(std::string_view bytes) {
  file_.write(bytes.data(), bytes.size());
  at_ += bytes.size();
}

void ZipWriter::add(std::string_view name, const void* data, uint64_t bytes) {
  const uint32_t crc = crc32(static_cast<const char*>(data), bytes);
  std::string local = field64({bytes, bytes}), central = field64({bytes, bytes, at_});
  const uint64_t begin = at_ + kLocalHead + name.size() + local.size() + 4;
  const uint64_t padding = (kAlignment - begin % kAlignment) % kAlignment;
  put(local, kPadding);
  put(local, static_cast<uint16_t>(padding));
  local.append(padding, 'Z');

  directory_ += "PK\1\2";
  put(directory_, kVersion);
  directory_ += facts(crc, bytes, name, central.size());
  directory_.append(8, '\0');  // comment, disk, attributes
  directory_.append(2, '\0');
  put(directory_, narrow(at_));
  directory_ += name;
  directory_ += central;

  write("PK\3\4" + facts(crc, bytes, name, local.size()));
  write(name);
  write(local);
  file_.write(data, bytes);
  at_ += bytes;
  ++entries_;
}

void ZipWriter::finish() {
  const uint64_t begin = at_;
  write(directory_);
  const uint64_t bytes = at_ - begin;
  std::string end;
  if (begin > kLargest32 || bytes > kLargest32 || entries_ > kMost16) {
    const uint64_t end64 = at_;
    end += "PK\6\6";
    put<uint64_t>(end, 44);
    put(end, kVersion);
    put(end, kVersion);
    put<uint64_t>(end, 0);  // disks
    for (const uint64_t number : {entries_, entries_, bytes, begin}) put(end, number);
    end += "PK\6\7";
    put<uint32_t>(end, 0);
    put(end, end64);
    put<uint32_t>(end, 1);
  }
  end += "PK\5\6";
  put<uint32_t>(end, 0);  // disks
  for (int i = 0; i < 2; ++i) put(end, static_cast<uint16_t>(std::min<uint64_t>(entries_, kMost16 + 1)));
  put(end, narrow(bytes));
  put(end, narrow(begin));
  put<uint16_t>(end, 0);
  write(end);
  file_.finish();
}

}  // namespace moonhalo::io
