// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <string>

#include "moonhalo/io/base/file_descriptor.h"
#include "moonhalo/io/base/file_stamp.h"
#include "moonhalo/io/base/h5.h"

namespace moonhalo::io {

/// The stamp of a path, and of an open file.
FileStamp stamp_of(const std::string& path);
FileStamp stamp_of(int descriptor);

/// The file `target` when a rank begins to write one of that name.
struct WriteStart {
  FileStamp target;                            ///< at that time
  bool adds = false;                           ///< the new file began as a copy of it
  FileStamp made;                              ///< the unfinished file when it was made: the clock of the file system
  std::chrono::steady_clock::time_point time;  ///< of that, by the clock of this host
};

/// The file that gets the name: one that another rank has finished, or the one that this rank is about to finish.
enum class Keeps : uint8_t { kOther, kOwn };

/// Decides whether the file of this rank gets the name `target`, as ranks that open one path write a file each. An
/// empty file does not, nor one with the datasets that another rank has written meanwhile. RuntimeError, with the name
/// of a dataset, if the contents differ. kOwn without other ranks, and if none has finished the file. Not collective.
Keeps compare_with_other_ranks(const std::string& target, const std::string& own, const WriteStart& start,
                               const h5::Where& where);
/// From now on this rank may replace the file that has this name. Not collective.
void note_own_file(const std::string& target, const FileStamp& stamp);

/// While it lives, no rank of this host gives a file in this folder its name. Waits 2 seconds at most, as programs
/// lock folders for other purposes too.
class FolderLock {
 public:
  explicit FolderLock(const std::string& file);

 private:
  FileDescriptor folder_;
};

}  // namespace moonhalo::io
