// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/io/base/dry_file.h"
#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::h5 {

/// The first thing that went wrong while HDF5 wrote a file, as errno; 0 while all is well.
struct WriteStatus {
  int error = 0;
  bool drops_raw = false;  ///< elements are not written: their ranks do so, where HDF5 says
  DryFile* dry = nullptr;  ///< in a dry run, the file in memory that takes the place of the one that is named
};

/// Writes beside HDF5. A failure stands in `status`, where there is none yet; after one nothing is written.
void write_at(int descriptor, WriteStatus& status, const void* data, size_t bytes, uint64_t offset);

/// File access for reading, as with HDF5's default driver, except that damage is an error which would make HDF5 1.10
/// run for ever or crash (heap_check.h).
Handle read_access(const Where& where);

/// File access for writing, which is as with the default driver until a write fails (a full disk). From then on what
/// HDF5 gives is dropped and success is reported: HDF5 1.10 cannot close a file whose metadata it failed to write, and
/// crashes at the end of the program. The failure stands in `status`, which must outlive the file; ask it after every
/// operation and after closing.
Handle write_access(WriteStatus& status, const Where& where);

/// Throws RuntimeError when a write has failed.
void check_written(const WriteStatus& status, const Where& where);

}  // namespace moonhalo::io::h5
