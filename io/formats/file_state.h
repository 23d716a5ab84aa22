// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <vector>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/io/base/h5.h"
#include "moonhalo/io/base/unfinished_file.h"
#include "moonhalo/io/formats/file_driver.h"
#include "moonhalo/io/formats/link_policy.h"
#include "moonhalo/io/formats/written_by_others.h"

namespace moonhalo::io {

struct Catalog;

enum class Mode : uint8_t { kRead, kWrite, kAppend };

/// The state that a File and its Datasets share: the open HDF5 file, and for files being written the
/// unfinished copy.
///
///     "w"  a new file  out.h5.unfinished-HOST-XXXX  --- close(): flush, fsync, rename --->  out.h5
///     "a"  as "w", but the unfinished file begins as a copy of out.h5, made at the first write
///
/// so a failure, a full disk or a crash leaves the file that was there before. Thread ranks may
/// share one: readers run together, writers one at a time.
class FileState {
 public:
  /// `is_dry`: a file that is written is made in memory, without elements, as a dry run writes none (DryFile). All
  /// ranks do what the owner does to the file.
  FileState(std::string path, Mode mode, bool allow_external, bool is_dry = false);
  /// Finishes a file being written as close() does (a failure is a warning), or discards it when an operation failed or
  /// was refused, as then something is missing that was meant to be there, or the stack is being unwound by an
  /// exception.
  ~FileState();
  FileState(const FileState&) = delete;
  FileState& operator=(const FileState&) = delete;

  const std::string& path() const { return path_; }
  bool for_writing() const { return mode_ != Mode::kRead; }
  bool is_open() const { return !closed_; }
  bool is_dry() const { return is_dry_; }

  /// The file's identifier and the lock that keeps it open. Do not take a second one while holding
  /// the first.
  struct Access {
    hid_t id;
    hid_t links;             ///< access list for calls by name, see h5::Reach
    const Catalog* catalog;  ///< of a file that is not HDF5, which has no identifier; null for HDF5
    std::shared_lock<std::shared_mutex> reading;
    std::unique_lock<std::shared_mutex> writing;
  };
  Access read(const h5::Where& where);
  Access write(const h5::Where& where);
  /// Runs one operation that writes. One that fails halfway (anything but the refusals ValueError, TypeError and
  /// NotImplementedError, which io throws before it changes a file) leaves half a file: see fail().
  void change(const h5::Where& where, const std::function<void()>& work);
  /// From now on nothing more is written, close() throws this message, and what was there before stays. The first
  /// counts.
  void fail(const std::string& message);
  /// ValueError unless open for writing, RuntimeError when an operation has failed so far.
  void check_writable(const h5::Where& where);

  /// An open dataset of a file opened for reading, kept with its chunk cache; reopened when a larger one is
  /// required. Call with a read Access held.
  std::shared_ptr<h5::Handle> dataset(hid_t file, const std::string& name, const h5::Where& where,
                                      size_t cache_bytes = 0);
  const h5::LinkPolicy& reach() const { return reach_; }
  /// The system's descriptor for positioned reads beside HDF5; -1 where there is none (another
  /// driver, a file being written).
  int descriptor() const { return descriptor_; }
  /// True if another format than HDF5: it can only be read, and its Access has a catalog.
  bool has_catalog() const { return catalog_ != nullptr; }

  void close();
  /// Closes without finishing: what was there before stays. Never throws.
  void discard() noexcept;

  /// For several ranks that write one file: the owner keeps it open and says where elements go, all ranks write them
  /// there (write_raw). share() makes the owner's unfinished file and returns its path; the others drop their own and
  /// from then on write nothing else.
  std::string share(const CommunicatorPtr& group, const h5::Where& where);
  void follow(const CommunicatorPtr& group, const std::string& unfinished, const h5::Where& where);
  /// Counts `bytes` that a dry run leaves out.
  void note_unwritten(int64_t bytes) {
    if (is_dry_) unwritten_bytes_ += bytes;
  }
  /// Elements in the unfinished file, beside HDF5. A failure shows in check_written(), and at the end of change().
  void write_raw(const void* data, size_t bytes, uint64_t offset);
  void check_written(const h5::Where& where);
  /// The descriptor of the unfinished file, to read what was written; -1 before there is one.
  int raw_descriptor() const { return lock_.descriptor(); }
  /// While one lives HDF5 gives elements their places and writes none of them.
  class PlacesOnly {
   public:
    explicit PlacesOnly(FileState& file) : status_(file.status_) { status_.drops_raw = true; }
    ~PlacesOnly() { status_.drops_raw = false; }
    PlacesOnly(const PlacesOnly&) = delete;

   private:
    h5::WriteStatus& status_;
  };
  /// Puts on disk what this rank has written; the owner's HDF5 file is then whole, under the path that is returned.
  std::string flush(const h5::Where& where);
  /// Those ranks; null while the file is this rank's own.
  const CommunicatorPtr& group() const { return group_; }
  bool follows() const { return follows_; }
  /// This rank may replace the file that the ranks have finished together.
  void note_finished() const;

 private:
  void begin(const h5::Where& where);
  void begin_dry(const h5::Where& where);
  void join(const CommunicatorPtr& group);
  void refuse_unwritable(const h5::Where& where) const;
  void refuse_failed(const h5::Where& where) const;
  void refuse_closed(const h5::Where& where) const;
  void refuse_dropped() const;
  void note_refusal(const c10::Error& error);
  void finish();
  void finish_dry();
  void give_name_beside_others(const h5::Where& where);
  void drop() noexcept;

  const std::string path_;
  const Mode mode_;
  const bool is_dry_;
  const h5::LinkPolicy reach_;
  h5::Handle links_;
  const int exceptions_;
  std::string unfinished_;  // path of the file being written; empty until begun
  WriteStart start_;        // when it was made
  FileLock lock_;           // on it; of another rank's file only a descriptor
  std::string failure_;     // the operation that failed, in one line
  std::string refusal_;     // the first that was refused and changed nothing
  bool closed_ = false;
  bool follows_ = false;
  CommunicatorPtr group_;
  std::shared_mutex mutex_;
  h5::WriteStatus status_;
  DryFile dry_;
  int64_t unwritten_bytes_ = 0;
  h5::Handle file_;
  std::unique_ptr<const Catalog> catalog_;
  int descriptor_ = -1;

  struct OpenDataset {
    std::shared_ptr<h5::Handle> handle;
    size_t cache_bytes = 0;
  };
  std::mutex datasets_mutex_;
  std::map<std::string, OpenDataset> datasets_;
};

}  // namespace moonhalo::io
