// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/file_state.h"

#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <optional>
#include <sstream>

#include "moonhalo/engine/comm/several_ranks.h"
#include "moonhalo/io/base/io_context.h"
#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/formats/h5_open.h"
#include "moonhalo/io/formats/open_catalog.h"

namespace moonhalo::io {
namespace fs = std::filesystem;
namespace {

/// The descriptor that HDF5 itself reads through.
int posix_descriptor(hid_t file, const h5::Where& where) {
  const h5::Handle access = h5::make(where, "read its driver", H5Pclose, [&] { return H5Fget_access_plist(file); });
  const h5::Scope scope;
  void* handle = nullptr;
  if (H5Fget_vfd_handle(file, access.get(), &handle) < 0 || handle == nullptr) return -1;
  // A file that this process has open for writing elsewhere may hold data that is not on disk yet.
  unsigned intent = 0;
  if (H5Fget_intent(file, &intent) < 0 || intent != H5F_ACC_RDONLY) return -1;
  return *static_cast<int*>(handle);
}

/// The file that a path means in the end, so that renaming replaces the file and not a link to it.
std::string resolved(const std::string& path) {
  std::error_code error;
  const fs::path file = fs::weakly_canonical(path, error);
  return error ? path : file.string();
}

void check_folder(const std::string& path) {
  std::error_code ignored;
  const fs::path folder = fs::absolute(path, ignored).parent_path();
  TORCH_CHECK_VALUE(fs::is_directory(folder, ignored), "open: file \"", path,
                    "\" cannot be written: its folder does not exist\n  have  ", folder.string(),
                    "\n  fix   make the folder first");
  TORCH_CHECK_VALUE(!fs::is_directory(path, ignored), "open: \"", path,
                    "\" is a folder\n  have  a folder where a file is to be written"
                    "\n  fix   name a file in it");
  TORCH_CHECK_VALUE(access(folder.c_str(), W_OK | X_OK) == 0, "open: file \"", path,
                    "\" cannot be written: no permission in its folder\n  have  ", folder.string(),
                    "\n  fix   choose another folder or change its permissions");
}

/// "write: ...: cannot write it: No space left on device (rank 2 of 3)" for a message with have, fix and rank lines.
std::string in_one_line(const std::string& message) {
  std::istringstream lines(message);
  std::string result, line;
  while (std::getline(lines, line)) {
    if (result.empty()) result = line;
    if (line.starts_with("  have  ")) result += ": " + line.substr(8);
    if (line.starts_with("  rank  ")) result += " (rank " + line.substr(8) + ")";
  }
  return result;
}

}  // namespace

FileState::FileState(std::string path, Mode mode, bool allow_external, bool is_dry)
    : path_(std::move(path)),
      mode_(mode),
      is_dry_(is_dry && mode != Mode::kRead),
      reach_(path_, allow_external),
      exceptions_(std::uncaught_exceptions()) {
  const h5::Where where{"open", path_};
  links_ = h5::property_list(H5P_LINK_ACCESS, where);
  reach_.watch(links_.get(), where);
  if (mode_ == Mode::kRead) {
    catalog_ = open_catalog(path_, allow_external);
    if (catalog_) {
      descriptor_ = catalog_->file.get();
      return;
    }
    file_ = h5::open_file(path_);
    descriptor_ = posix_descriptor(file_.get(), {"open", path_});
    return;
  }
  if (is_dry_) return;
  check_folder(path_);
  start_.target = stamp_of(resolved(path_));
  if (mode_ == Mode::kAppend && fs::exists(path_)) file_ = h5::open_file(path_);
}

FileState::~FileState() {
  if (closed_ || mode_ == Mode::kRead) return;
  if (std::uncaught_exceptions() > exceptions_ || (follows_ && !failure_.empty())) {
    discard();
    return;
  }
  try {
    refuse_dropped();
    finish();
  } catch (const c10::Error& error) {
    drop();
    std::fprintf(stderr, "moonhalo: \"%s\" was not finished: %s\n", path_.c_str(), error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moonhalo: \"%s\" was not finished: %s\n", path_.c_str(), error.what());
  }
}

void FileState::refuse_closed(const h5::Where& where) const {
  TORCH_CHECK_VALUE(!closed_, where.to_string(),
                    ": the file is closed\n  have  a file that close() "
                    "was called on\n  fix   open it again, or close it later");
}

FileState::Access FileState::read(const h5::Where& where) {
  if (mode_ == Mode::kRead) {
    std::shared_lock lock(mutex_);
    refuse_closed(where);
    return {file_.get(), links_.get(), catalog_.get(), std::move(lock), {}};
  }
  std::unique_lock lock(mutex_);
  refuse_closed(where);
  TORCH_CHECK_VALUE(!group_, where.to_string(),
                    ": the file is being written by several ranks\n"
                    "  have  a file that a ShardTensor was written to"
                    "\n  fix   close it, then open it for reading");
  if (!file_) begin(where);
  return {file_.get(), links_.get(), nullptr, {}, std::move(lock)};
}

void FileState::check_writable(const h5::Where& where) {
  const std::unique_lock lock(mutex_);
  refuse_unwritable(where);
}

void FileState::refuse_unwritable(const h5::Where& where) const {
  refuse_closed(where);
  TORCH_CHECK_VALUE(mode_ != Mode::kRead, where.to_string(),
                    ": the file is open for reading only\n  have  mode \"r\""
                    "\n  fix   open it with mode \"a\" (add to it) or \"w\" (make it new)");
  refuse_failed(where);
}

void FileState::refuse_failed(const h5::Where& where) const {
  TORCH_CHECK(failure_.empty(), where.to_string(),
              ": an earlier write failed, and half a file is never finished\n  have  ", failure_,
              "\n  fix   write the file again once that is corrected; what was there before is untouched");
}

void FileState::change(const h5::Where& where, const std::function<void()>& work) {
  try {
    work();
    check_written(where);
  } catch (const c10::ValueError& error) {
    note_refusal(error);
    throw;
  } catch (const c10::TypeError& error) {
    note_refusal(error);
    throw;
  } catch (const c10::NotImplementedError& error) {
    note_refusal(error);
    throw;
  } catch (const c10::Error& error) {
    fail(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    fail(where.to_string() + ": " + error.what());
    throw;
  }
}

void FileState::note_refusal(const c10::Error& error) {
  const std::unique_lock lock(mutex_);
  if (refusal_.empty()) refusal_ = in_one_line(error.what_without_backtrace());
}

/// A program that caught the refusal and calls close() does so on purpose; one that drops the handle may not.
void FileState::refuse_dropped() const {
  TORCH_CHECK(refusal_.empty(), "close: file \"", path_, "\": it was dropped after a write that was refused\n  have  ",
              refusal_, "\n  fix   repeat that write, or call close() if the file is complete without it");
}

void FileState::fail(const std::string& message) {
  const std::unique_lock lock(mutex_);
  if (failure_.empty()) failure_ = in_one_line(message);
}

FileState::Access FileState::write(const h5::Where& where) {
  std::unique_lock lock(mutex_);
  refuse_unwritable(where);
  TORCH_CHECK_VALUE(
      !follows_ || is_dry_, where.to_string(),
      ": another rank owns the file\n  have  a mesh whose first rank is not that of the "
      "tensors before\n  fix   write tensors of one mesh into a file, or of slices that hold its first rank");
  begin(where);
  return {file_.get(), links_.get(), nullptr, {}, std::move(lock)};
}

void FileState::begin(const h5::Where& where) {
  if (!unfinished_.empty()) return;
  if (is_dry_) return begin_dry(where);
  const std::string target = resolved(path_);
  UnfinishedFile made = make_unfinished(target, where);
  unfinished_ = made.path;
  lock_ = std::move(made.lock);
  start_.made = stamp_of(lock_.descriptor());
  start_.time = std::chrono::steady_clock::now();
  file_.reset();
  if (mode_ == Mode::kAppend && fs::exists(target)) {
    start_.target = stamp_of(target);
    start_.adds = true;
    std::error_code error;
    fs::copy_file(target, unfinished_, fs::copy_options::overwrite_existing, error);
    TORCH_CHECK(!error, where.to_string(), ": cannot copy the file to add to it\n  have  ", error.message(),
                "\n  fix   free space for a second copy");
    file_ = h5::open_file_for_writing(unfinished_, h5::write_access(status_, where), where);
  } else {
    file_ = h5::create_file(unfinished_, h5::write_access(status_, where), where);
  }
}

void FileState::begin_dry(const h5::Where& where) {
  const std::string target = resolved(path_);
  const auto known = io_context->dry_files.find(target);
  const bool is_known = known != io_context->dry_files.end(), adds = mode_ == Mode::kAppend;
  if (adds && is_known) dry_ = known->second;
  if (adds && !is_known && fs::exists(target)) dry_ = DryFile(target);
  unfinished_ = dry_unfinished_name(target);
  status_.dry = &dry_;
  const h5::Handle access = h5::write_access(status_, where);
  file_ = dry_.size() > 0 ? h5::open_file_for_writing(unfinished_, access, where)
                          : h5::create_file(unfinished_, access, where);
}

std::shared_ptr<h5::Handle> FileState::dataset(hid_t file, const std::string& name, const h5::Where& where,
                                               size_t cache_bytes) {
  const auto opened = [&] {
    return std::make_shared<h5::Handle>(h5::open_dataset(file, "/" + name, cache_bytes, &reach_, where));
  };
  if (for_writing()) return opened();
  const std::lock_guard lock(datasets_mutex_);
  OpenDataset& open = datasets_[name];
  if (!open.handle || open.cache_bytes < cache_bytes) {
    open.handle.reset();  // HDF5 would share the old cache with the new identifier
    open.handle = opened();
    open.cache_bytes = cache_bytes;
  }
  return open.handle;
}

void FileState::close() {
  std::unique_lock lock(mutex_);
  if (closed_) return;
  if (mode_ == Mode::kRead) {
    closed_ = true;
    descriptor_ = -1;
    const std::lock_guard datasets(datasets_mutex_);
    datasets_.clear();
    if (!catalog_) file_.close({"close", path_});
    return;
  }
  finish();
}

void FileState::finish() {
  const h5::Where where{"close", path_};
  try {
    refuse_failed(where);
    const bool untouched = unfinished_.empty();
    if ((follows_ && !is_dry_) || (untouched && mode_ == Mode::kAppend && (file_ || fs::exists(resolved(path_))))) {
      if (follows_) h5::check_written(status_, where);
      drop();
      return;
    }
    begin(where);
    file_.close(where);
    h5::check_written(status_, where);
    if (is_dry_) {
      finish_dry();
      return;
    }
    store_on_disk(where.to_string(), unfinished_);
    give_name_beside_others(where);
    unfinished_.clear();
    lock_.release();
    closed_ = true;
  } catch (...) {
    drop();
    throw;
  }
}

void FileState::give_name_beside_others(const h5::Where& where) {
  const std::string target = resolved(path_);
  std::optional<FolderLock> lock;
  if (several_ranks_since()) lock.emplace(target);
  if (!group_ && compare_with_other_ranks(target, unfinished_, start_, where) == Keeps::kOther) {
    note_own_file(target, stamp_of(target));
    std::remove(unfinished_.c_str());
    return;
  }
  note_own_file(target, stamp_of(unfinished_));
  give_name(where.to_string(), unfinished_, target);
}

void FileState::finish_dry() {
  io_context->dry_files[resolved(path_)] = std::move(dry_);
  ++io_context->unwritten.files;
  io_context->unwritten.bytes += unwritten_bytes_;
  closed_ = true;
}

void FileState::note_finished() const {
  if (is_dry_) return;
  note_own_file(resolved(path_), stamp_of(resolved(path_)));
}

void FileState::discard() noexcept {
  const std::unique_lock lock(mutex_);
  drop();
}

void FileState::drop() noexcept {
  closed_ = true;
  descriptor_ = -1;
  file_.reset();
  if (!unfinished_.empty() && !follows_ && !is_dry_) std::remove(unfinished_.c_str());
  unfinished_.clear();
  lock_.release();
}

std::string FileState::share(const CommunicatorPtr& group, const h5::Where& where) {
  const Access access = write(where);
  join(group);
  return unfinished_;
}

void FileState::follow(const CommunicatorPtr& group, const std::string& unfinished, const h5::Where& where) {
  const std::unique_lock lock(mutex_);
  if (!follows_ && is_dry_) {  // it has made the owner's file
    follows_ = true;
  } else if (!follows_) {
    file_.reset();
    if (!unfinished_.empty()) std::remove(unfinished_.c_str());
    unfinished_ = unfinished;
    lock_ = FileLock(::open(unfinished.c_str(), O_RDWR | O_CLOEXEC));
    const int error = errno;
    follows_ = true;
    TORCH_CHECK(lock_.descriptor() >= 0, where.to_string(), ": cannot open \"", unfinished, "\"\n  have  ",
                std::strerror(error), disk_remedy(error));
  }
  join(group);
}

/// Tensors of a slice of the mesh leave it to the whole mesh to close the file.
void FileState::join(const CommunicatorPtr& group) {
  if (!group_ || group_->size() <= group->size()) group_ = group;
}

void FileState::write_raw(const void* data, size_t bytes, uint64_t offset) {
  if (is_dry_) return;
  const std::unique_lock lock(mutex_);
  h5::write_at(lock_.descriptor(), status_, data, bytes, offset);
}

void FileState::check_written(const h5::Where& where) {
  const std::unique_lock lock(mutex_);
  h5::check_written(status_, where);
}

std::string FileState::flush(const h5::Where& where) {
  const std::unique_lock lock(mutex_);
  refuse_unwritable(where);
  begin(where);
  if (!follows_) h5::checked(where, "flush it", [&] { return H5Fflush(file_.get(), H5F_SCOPE_LOCAL); });
  h5::check_written(status_, where);
  if (!is_dry_) store_on_disk(where.to_string(), unfinished_);
  return unfinished_;
}

}  // namespace moonhalo::io
