// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/pwrite_all.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <numeric>
#include <thread>
#include <vector>

#include "moonhalo/io/base/file_descriptor.h"
#include "tests/io/support/full_disk.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::io::test_pwrite_all {
namespace {

constexpr size_t kBytes = size_t{21} << 20;  // of each thread; some pieces and a rest

std::vector<uint32_t> numbers() {
  std::vector<uint32_t> data(2 * kBytes / sizeof(uint32_t));
  std::iota(data.begin(), data.end(), 1u);
  return data;
}

FileDescriptor new_file(const std::string& path) { return FileDescriptor(open(path.c_str(), O_RDWR | O_CREAT, 0666)); }

TEST(PwriteAll, ThreadsWriteTheirPartsOfAFileAtAnyOffset) {
  const testing::Folder folder;
  const FileDescriptor file = new_file(folder / "x");
  const std::vector<uint32_t> data = numbers();
  const auto* bytes = reinterpret_cast<const char*>(data.data());
  constexpr uint64_t kFirst = 2049;
  std::vector<int> errors(2, -1);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i)
    threads.emplace_back(
        [&, i] { errors[i] = pwrite_all(file.get(), bytes + i * kBytes, kBytes, kFirst + i * kBytes); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors, (std::vector<int>{0, 0}));

  std::vector<char> found(2 * kBytes + 1);
  ASSERT_EQ(pread(file.get(), found.data(), found.size(), kFirst), static_cast<ssize_t>(2 * kBytes));
  EXPECT_EQ(std::memcmp(found.data(), bytes, 2 * kBytes), 0);
}

TEST(PwriteAll, X16_AFullDiskIsToldByItsNumber) {
  const testing::Folder folder;
  const FileDescriptor file = new_file(folder / "x");
  const std::vector<uint32_t> data = numbers();
  for (const size_t room : {size_t{100}, kBytes / 2}) {  // reached by the first piece, and by a later one
    const testing::FullDisk full(room);
    EXPECT_EQ(pwrite_all(file.get(), data.data(), kBytes, 0), EFBIG) << room;
    EXPECT_EQ(pwrite_all(file.get(), data.data(), 200, 0), room < 200 ? EFBIG : 0);
  }
  EXPECT_EQ(pwrite_all(-1, data.data(), kBytes, 0), EBADF);
}

}  // namespace
}  // namespace moonhalo::io::test_pwrite_all
