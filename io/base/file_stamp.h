// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <ctime>

namespace moonhalo::io {

/// Tells a file from those that had its name before or get it later.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;  ///< 0: no file
  timespec written = {};
  bool operator==(const FileStamp& other) const {
    return device == other.device && inode == other.inode && written.tv_sec == other.written.tv_sec &&
           written.tv_nsec == other.written.tv_nsec;
  }
};

}  // namespace moonhalo::io
