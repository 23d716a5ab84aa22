// SPDX-License-Identifier: Apache-2.0
// Codecs against HDF5's own filters: chunks that HDF5 wrote are taken raw from the file and decoded here.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "moonhalo/io/codecs/codecs.h"
#include "moonhalo/io/codecs/lzf.h"
#include "tests/io/support/lzf_stream.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_codecs {
namespace {

using Kind = Codec::Kind;

struct CodecCase {
  const char* name;
  std::vector<Codec> codecs;
};

/// Elements of `size` bytes; 37 of them make odd numbers of words.
std::vector<CodecCase> cases_for(size_t size) {
  const Codec gzip{.kind = Kind::kDeflate, .level = 4}, shuffle{Kind::kShuffle, size}, sum{Kind::kFletcher32};
  return {{"gzip", {gzip}},
          {"shuffle", {shuffle}},
          {"sum", {sum}},
          {"shuffle, gzip", {shuffle, gzip}},
          {"shuffle, gzip, sum", {shuffle, gzip, sum}},
          {"sum, shuffle, gzip", {sum, shuffle, gzip}},
          {"gzip, shuffle, sum", {gzip, shuffle, sum}}};
}

/// The bytes that HDF5 stores for one chunk.
std::string stored_by_hdf5(const std::string& path, const std::string& data, const std::vector<Codec>& codecs) {
  const hsize_t bytes = data.size(), zero = 0;
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &bytes, nullptr);
  size_t element = 1;
  for (const Codec& codec : codecs) {
    if (codec.kind == Kind::kShuffle) element = codec.element_size;
  }
  const hid_t type = H5Tcreate(H5T_OPAQUE, element);  // what the shuffle filter takes apart
  const hsize_t count = bytes / element;
  const hid_t elements = H5Screate_simple(1, &count, nullptr);
  H5Pset_chunk(list, 1, &count);
  for (const Codec& codec : codecs) {
    if (codec.kind == Kind::kDeflate) H5Pset_deflate(list, 4);
    if (codec.kind == Kind::kShuffle) H5Pset_shuffle(list);
    if (codec.kind == Kind::kFletcher32) H5Pset_fletcher32(list);
  }
  const hid_t id = H5Dcreate2(file, "x", type, elements, H5P_DEFAULT, list, H5P_DEFAULT);
  H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data());
  H5Dclose(id);
  H5Fflush(file, H5F_SCOPE_GLOBAL);
  const hid_t again = H5Dopen2(file, "x", H5P_DEFAULT);
  hsize_t size = 0;
  H5Dget_chunk_storage_size(again, &zero, &size);
  std::string stored(size, '\0');
  uint32_t mask = 0;
  EXPECT_GE(H5Dread_chunk(again, H5P_DEFAULT, &zero, &mask, stored.data()), 0);
  EXPECT_EQ(mask, 0u);
  H5Dclose(again);
  for (const hid_t open : {space, elements}) H5Sclose(open);
  H5Tclose(type);
  H5Pclose(list);
  H5Fclose(file);
  return stored;
}

std::string decoded(const std::string& stored, const std::vector<Codec>& codecs, size_t bytes, std::string* damage) {
  ChunkDecoder decoder;
  std::memcpy(decoder.stored(stored.size()), stored.data(), stored.size());
  *damage = decoder.decode(codecs, 0, bytes);
  const std::string data = damage->empty() ? std::string(decoder.data(), bytes) : "";
  // The same into memory of the caller, of which no byte more is written.
  std::string target(bytes + 8, '#');
  std::memcpy(decoder.stored(stored.size()), stored.data(), stored.size());
  EXPECT_EQ(decoder.decode(codecs, 0, bytes, target.data()), *damage);
  if (damage->empty()) EXPECT_EQ(target, data + "########");
  return data;
}

std::string some_bytes(size_t count) {
  std::string data;
  for (size_t i = 0; i < count; ++i) data.push_back(static_cast<char>(i * i / 7 % 50));
  return data;
}

TEST(Codecs, UndoWhatHDF5Did) {
  const testing::Folder folder;
  for (const size_t size : {1, 2, 3, 4, 8, 16}) {
    for (const size_t count : {1, 15, 16, 37, 4000}) {
      const std::string data = some_bytes(size * count);
      for (const auto& c : cases_for(size)) {
        SCOPED_TRACE(std::string(c.name) + " of " + std::to_string(size) + " x " + std::to_string(count));
        std::string damage;
        EXPECT_EQ(decoded(stored_by_hdf5(folder / "x.h5", data, c.codecs), c.codecs, data.size(), &damage), data);
        EXPECT_EQ(damage, "");
      }
    }
  }
}

TEST(Codecs, LeaveOutWhatWasNotApplied) {
  ChunkDecoder decoder;
  const std::string data = some_bytes(12);
  std::memcpy(decoder.stored(12), data.data(), 12);

  EXPECT_EQ(decoder.decode({{Kind::kShuffle, 4}, {Kind::kDeflate}}, 0b11, 12), "");

  EXPECT_EQ(std::string(decoder.data(), 12), data);
}

TEST(Codecs, SayWhatIsDamaged) {
  const testing::Folder folder;
  const std::string data = some_bytes(4000);
  const std::vector<Codec> gzip = {{Kind::kDeflate}}, sum = {{Kind::kShuffle, 4}, {Kind::kFletcher32}};
  const std::string stored = stored_by_hdf5(folder / "x.h5", data, gzip), all = std::to_string(stored.size());
  std::string summed = stored_by_hdf5(folder / "y.h5", data, sum);
  summed[100] ^= 1;
  const struct {
    std::string stored;
    const std::vector<Codec>& codecs;
    size_t bytes;
    std::string damage;
  } cases[] = {
      {stored, gzip, 3999, "its " + all + " stored bytes inflate to more, not 3999"},
      {stored, gzip, 4004, "its " + all + " stored bytes inflate to 4000, not 4004"},
      {stored.substr(0, 50), gzip, 4000, "its 50 stored bytes are not a whole gzip stream"},
      {"", gzip, 4000, "its 0 stored bytes are not a whole gzip stream"},
      {summed, sum, 4000, "its Fletcher32 checksum does not match its bytes"},
      {"abc", sum, 4000, "its 3 stored bytes are too few for a checksum"},
      {"abcd", {{Kind::kShuffle, 2}}, 6, "its 4 stored bytes are all there is, not 6"},
      {"\x1f", {{Kind::kLzf}}, 6, "its 1 stored bytes are not an lzf stream of 6"},
  };
  for (const auto& c : cases) {
    std::string damage;
    decoded(c.stored, c.codecs, c.bytes, &damage);
    EXPECT_EQ(damage, c.damage);
  }
}

/// A chunk in LZ4: its size, then a block.
std::string lz4(uint32_t size, const std::string& block) {
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + block;
}

TEST(Codecs, Lz4Blocks) {
  const std::vector<Codec> codecs = {{Kind::kLz4}};
  const std::string long_run =
      "\xf0"
      "\xff"
      "\x02" +
      std::string(272, 'x');  // 15 + 255 + 2 literals
  const struct {
    std::string stored, expected;
  } good[] = {{lz4(5, "\x50hello"), "hello"},
              {lz4(0, std::string(1, '\0')), ""},
              {lz4(272, long_run), std::string(272, 'x')},
              // ab, then 4 + 15 + 255 + 1 bytes from 2 before, which overlap, then cdefg
              {lz4(282, std::string("\x2f"
                                    "ab\x02\0\xff\x01\x50"
                                    "cdefg",
                                    13)),
               [] {
                 std::string text;
                 while (text.size() < 277) text += text.size() % 2 ? 'b' : 'a';
                 return text + "cdefg";
               }()},
              {lz4(17, std::string("\x44"
                                   "abcd\x04\0\x50"
                                   "efghi",
                                   13)),
               "abcdabcdabcdefghi"}};
  for (const auto& c : good) {
    std::string damage;
    EXPECT_EQ(decoded(c.stored, codecs, c.expected.size(), &damage), c.expected);
    EXPECT_EQ(damage, "");
  }
  const std::string damaged[] = {
      "",                          // nothing at all
      std::string("\x50hell"),     // too few literals
      std::string("\x60hellos"),   // too many for the space
      std::string("\xf0\xff", 2),  // a length without its end
      std::string("\x10h\x02\0\x10"
                  "o",
                  6),  // from before the beginning
      std::string("\x10h\0\0\x10"
                  "o",
                  6),                             // from nowhere
      std::string("\x10h\x01", 3),                // half of a distance
      std::string("\x1fh\x01\0\xff\xff\xff", 7),  // a repetition that does not end
      std::string("\x1fh\x01\0\x10", 5),          // one that is longer than the space
      std::string("\x10h\x01\0", 4),              // one that no literals follow
  };
  for (const std::string& block : damaged) {
    std::string damage;
    decoded(lz4(5, block), codecs, 5, &damage);
    EXPECT_EQ(damage, "its " + std::to_string(block.size() + 4) + " stored bytes are not a whole lz4 stream");
  }
  std::string damage;
  decoded(lz4(6, "\x50hello"), codecs, 5, &damage);
  EXPECT_EQ(damage, "its 10 stored bytes hold 6, not 5");
  decoded("abc", codecs, 5, &damage);
  EXPECT_EQ(damage, "its 3 stored bytes are not a whole lz4 stream");
}

TEST(Codecs, ChecksumsInFrontAndBehind) {
  const std::string crc32("\x26\x39\xf4\xcb", 4),
      adler32("\xde\x01\x1e\x09", 4);  // of "123456789", as RFC 1952 and 1950 have them
  const std::string digits = "123456789";
  const struct {
    std::string stored;
    Codec codec;
    const char* name;
  } cases[] = {{crc32 + digits, {.kind = Kind::kCrc32, .in_front = true}, "CRC-32"},
               {digits + crc32, {.kind = Kind::kCrc32}, "CRC-32"},
               {adler32 + digits, {.kind = Kind::kAdler32, .in_front = true}, "Adler-32"},
               {digits + adler32, {.kind = Kind::kAdler32}, "Adler-32"},
               {std::string("\x83\x92\x06\xe3", 4) + digits, {.kind = Kind::kCrc32c, .in_front = true}, "CRC-32C"}};
  for (const auto& c : cases) {
    std::string damage;
    EXPECT_EQ(decoded(c.stored, {c.codec}, 9, &damage), digits);
    for (const size_t at : {0, 5, 12}) {
      std::string spoilt = c.stored;
      spoilt[at] ^= 4;
      decoded(spoilt, {c.codec}, 9, &damage);
      EXPECT_EQ(damage, std::string("its ") + c.name + " checksum does not match its bytes");
    }
  }
}

TEST(Codecs, NumbersThatWereChanged) {
  std::string damage;
  const auto bytes = [](const auto& numbers) {
    return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(numbers[0]));
  };
  const std::vector<int16_t> steps = {32767, 1, -1, 5}, sums = {32767, -32768, 32767, -32764};
  EXPECT_EQ(decoded(bytes(steps), {{.kind = Kind::kDelta, .numbers = at::kShort}}, 8, &damage), bytes(sums));
  const std::vector<uint8_t> scaled = {0, 1, 255};
  const std::vector<float> values = {1, 1.5, 128.5};
  const Codec halves{.kind = Kind::kScaled, .element_size = 4, .numbers = at::kByte, .scale = 2, .offset = 1};
  EXPECT_EQ(decoded(bytes(scaled), {halves}, 12, &damage), bytes(values));
  const Codec sum{.kind = Kind::kAdler32, .in_front = true};
  EXPECT_EQ(decoded(std::string("\x01\x01\x04\x01", 4) + bytes(scaled), {halves, sum}, 12, &damage), bytes(values));
  EXPECT_EQ(damage, "");
  decoded("abc", {{.kind = Kind::kDelta, .numbers = at::kShort}}, 4, &damage);
  EXPECT_EQ(damage, "its 3 bytes are not integers");
}

// Least and greatest numbers of each integer type: a type that were taken for its neighbour would turn one round.
TEST(Codecs, ScaledNumbersOfEveryIntegerType) {
  const auto check = [](at::ScalarType type, auto number) {
    using Number = decltype(number);
    const Number ends[] = {std::numeric_limits<Number>::min(), std::numeric_limits<Number>::max(), 7};
    const std::string stored(reinterpret_cast<const char*>(ends), sizeof(ends));
    for (const size_t bytes : {sizeof(float), sizeof(double)}) {
      const Codec codec{.kind = Kind::kScaled, .element_size = bytes, .numbers = type, .scale = 4, .offset = -3};
      std::string damage, values(3 * bytes, '\0');
      for (size_t i = 0; i < 3; ++i) {
        const double value = static_cast<double>(ends[i]) / 4 - 3;
        const auto single = static_cast<float>(value);
        const void* const from = bytes == sizeof(float) ? static_cast<const void*>(&single) : &value;
        std::memcpy(values.data() + i * bytes, from, bytes);
      }
      EXPECT_EQ(decoded(stored, {codec}, values.size(), &damage), values) << type << " to " << bytes << " bytes";
      EXPECT_EQ(damage, "");
    }
  };
  check(at::kChar, int8_t{});
  check(at::kByte, uint8_t{});
  check(at::kShort, int16_t{});
  check(at::kUInt16, uint16_t{});
  check(at::kInt, int32_t{});
  check(at::kUInt32, uint32_t{});
  check(at::kLong, int64_t{});
  check(at::kUInt64, uint64_t{});
}

std::string lzf(std::string stream, size_t room) {
  const size_t bytes = stream.size();
  stream.resize(bytes + kLzfSlack);
  std::string out(room + kLzfSlack, '#');
  out.resize(lzf_decode(stream.data(), bytes, out.data(), room));
  return out;
}

TEST(Lzf, ExpandsRunsAndRepetitions) {
  using namespace std::string_literals;
  EXPECT_EQ(lzf("", 4), "");
  EXPECT_EQ(lzf("\x02"
                "abc",
                3),
            "abc");
  EXPECT_EQ(lzf("\x02"
                "abc\x20\x02"s,
                6),
            "abcabc");  // 3 bytes from 3 before
  EXPECT_EQ(lzf("\x00"
                "a\xe0\x05\x00"s,
                15),
            std::string(15, 'a'));  // 14 from 1 before: they overlap
  EXPECT_EQ(lzf("\x0a"
                "0123456789a\xe0\x03\x0a"s,
                23),
            "0123456789a0123456789a0");
  EXPECT_EQ(lzf("\x04"
                "abcde\xa0\x04"s,
                12),
            "abcdeabcdeab");  // 7 from 5 before
  std::string far;
  for (int i = 0; i < 270; ++i) far += static_cast<char>('a' + i % 23);
  std::string stream;
  for (int i = 0; i < 270; i += 27) stream += "\x1a" + far.substr(static_cast<size_t>(i), 27);
  EXPECT_EQ(lzf(stream + "\x21\x0d"s, 273), far + far.substr(0, 3));  // 3 from 1 * 256 + 13 + 1 before
}

TEST(Lzf, ExpandsWhatWasCompressed) {
  for (const size_t count : {1, 2, 3, 31, 32, 33, 300, 5000, 40000}) {
    for (const int kind : {0, 1, 2, 3}) {
      std::string data;
      for (size_t i = 0; i < count; ++i) {
        const size_t values[] = {0, i * i / 7 % 50, i % 3000 / 7, (i * 2654435761u) >> 13};
        data += static_cast<char>(values[kind]);
      }
      EXPECT_EQ(lzf(testing::lzf_stream(data), count), data) << count << " of kind " << kind;
    }
  }
}

TEST(Lzf, RefusesDamagedStreams) {
  using namespace std::string_literals;
  for (const auto& [stream, room] : {std::pair("\x02"
                                               "ab"s,
                                               8),
                                     {"\x02"
                                      "abc"s,
                                      2},
                                     {"\x20"s, 8},
                                     {"\x02"
                                      "abc\x20"s,
                                      8},
                                     {"\x02"
                                      "abc\xe0\x01"s,
                                      8},
                                     {"\x02"
                                      "abc\xe0"s,
                                      8},
                                     {"\x02"
                                      "abc\x20\x03"s,
                                      8},
                                     {"\x20\x00"s, 8},
                                     {"\x02"
                                      "abc\x20\x02"s,
                                      5}}) {
    EXPECT_EQ(lzf(stream, static_cast<size_t>(room)), "");
  }
}

/// Chunks encoded here are read by HDF5 (test_parallel_write.cpp), and come back.
TEST(Codecs, EncodedChunksComeBack) {
  for (const size_t size : {1, 2, 3, 4, 8, 16}) {
    for (const CodecCase& c : cases_for(size)) {
      SCOPED_TRACE(std::string(c.name) + " " + std::to_string(size));
      std::string data;
      for (size_t i = 0; i < 37 * size + 1; ++i) data += static_cast<char>(i / 5 * 7);
      ChunkEncoder encoder;
      ChunkDecoder decoder;
      for (int again = 0; again < 2; ++again) {
        std::memcpy(encoder.chunk(data.size()), data.data(), data.size());

        const uint32_t skipped = encoder.encode(c.codecs);
        const std::string stored = encoder.encoded();

        std::memcpy(decoder.stored(stored.size()), stored.data(), stored.size());
        EXPECT_EQ(decoder.decode(c.codecs, skipped, data.size()), "");
        EXPECT_EQ(std::string(decoder.data(), data.size()), data);
      }
    }
  }
}

}  // namespace
}  // namespace moonhalo::io::test_codecs
