// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/read_into.h"

#include <c10/util/SmallVector.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace moonhalo::io {

int64_t read_into(int descriptor, c10::ArrayRef<ReadInto> parts, uint64_t offset) {
  constexpr size_t kMost = 1024;  // IOV_MAX of Linux
  c10::SmallVector<iovec, 4> left;
  for (const ReadInto& part : parts) {
    if (part.bytes > 0) left.push_back({part.place, static_cast<size_t>(part.bytes)});
  }
  int64_t done = 0;
  for (size_t first = 0; first < left.size();) {
    const auto count = static_cast<int>(std::min(left.size() - first, kMost));
    const ssize_t got = preadv(descriptor, &left[first], count, static_cast<off_t>(offset) + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
    auto bytes = static_cast<size_t>(got);
    for (; first < left.size() && bytes >= left[first].iov_len; ++first) bytes -= left[first].iov_len;
    if (bytes == 0) continue;
    left[first].iov_base = static_cast<char*>(left[first].iov_base) + bytes;
    left[first].iov_len -= bytes;
  }
  return done;
}

}  // namespace moonhalo::io
