// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/written_by_others.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <hdf5.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include "moonhalo/engine/comm/several_ranks.h"
#include "moonhalo/io/base/io_context.h"
#include "moonhalo/io/formats/h5_open.h"

namespace moonhalo::io {
namespace {

FileStamp stamp(const struct stat& facts) { return {facts.st_dev, facts.st_ino, facts.st_mtim}; }

std::chrono::nanoseconds since_epoch(const timespec& time) {
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

bool is_known(const std::string& target, const FileStamp& there) {
  const auto& files = io_context->known_files;
  const auto known = files.find(target);
  return known != files.end() && known->second == there;
}

/// True if a rank of this run can have written the file, by the clock of the file system.
bool is_of_this_run(const FileStamp& there, const WriteStart& start, SteadyTime run_began) {
  return since_epoch(there.written) >= since_epoch(start.made.written) - (start.time - run_began);
}

std::string text_of_shape(hid_t dataset) {
  const h5::Handle space(H5Dget_space(dataset), H5Sclose);
  const int dims = H5Sget_simple_extent_ndims(space.get());
  std::vector<hsize_t> sizes(static_cast<size_t>(std::max(dims, 0)));
  if (dims > 0) H5Sget_simple_extent_dims(space.get(), sizes.data(), nullptr);
  std::string text = " [";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text + "]";
}

herr_t add_object(hid_t root, const char* name, const H5O_info_t* info, void* data) {
  auto& names = *static_cast<std::vector<std::string>*>(data);
  if (std::string(name) == ".") return 0;
  if (info->type != H5O_TYPE_DATASET) {
    names.push_back("group \"" + std::string(name) + "\"");
    return 0;
  }
  const h5::Handle dataset(H5Dopen2(root, name, H5P_DEFAULT), H5Dclose);
  names.push_back("dataset \"" + std::string(name) + "\"" + text_of_shape(dataset.get()));
  return 0;
}

herr_t add_attribute(hid_t, const char* name, const H5A_info_t*, void* data) {
  static_cast<std::vector<std::string>*>(data)->push_back("attribute \"" + std::string(name) + "\"");
  return 0;
}

/// Lists the objects of a file, sorted: 'dataset "u" [3, 4]'.
std::vector<std::string> contents_of(const std::string& path, const h5::Where& where) {
  const h5::Handle file = h5::open_file(path);
  std::vector<std::string> contents;
  h5::checked(where, "list it", [&] {
    return H5Ovisit2(file.get(), H5_INDEX_NAME, H5_ITER_NATIVE, add_object, &contents, H5O_INFO_BASIC);
  });
  h5::checked(where, "list it", [&] {
    return H5Aiterate2(file.get(), H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, add_attribute, &contents);
  });
  std::sort(contents.begin(), contents.end());
  return contents;
}

/// Fills `piece` up to the end of the file; -1 if it cannot be read.
int64_t read_piece(const FileDescriptor& file, std::vector<char>& piece) {
  size_t filled = 0;
  while (filled < piece.size()) {
    const ssize_t got = ::read(file.get(), piece.data() + filled, piece.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  return static_cast<int64_t>(filled);
}

/// The files of ranks that made the same calls have the same bytes.
bool same_bytes(const std::string& one, const std::string& other) {
  const FileDescriptor first(::open(one.c_str(), O_RDONLY | O_CLOEXEC));
  const FileDescriptor second(::open(other.c_str(), O_RDONLY | O_CLOEXEC));
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<char> left(kPiece), right(kPiece);
  for (;;) {
    const int64_t got = read_piece(first, left);
    if (got < 0 || read_piece(second, right) != got || !std::equal(left.begin(), left.begin() + got, right.begin()))
      return false;
    if (got == 0) return true;
  }
}

bool is_hdf5(const std::string& path) {
  const h5::Scope scope;
  return H5Fis_hdf5(path.c_str()) > 0;
}

/// The first name that `all` has and `some` lacks.
std::optional<std::string> first_missing(const std::vector<std::string>& all, const std::vector<std::string>& some) {
  std::vector<std::string> missing;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(missing));
  return missing.empty() ? std::nullopt : std::optional(missing.front());
}

}  // namespace

FileStamp stamp_of(const std::string& path) {
  struct stat facts {};
  return ::stat(path.c_str(), &facts) == 0 ? stamp(facts) : FileStamp{};
}

FileStamp stamp_of(int descriptor) {
  struct stat facts {};
  return ::fstat(descriptor, &facts) == 0 ? stamp(facts) : FileStamp{};
}

Keeps compare_with_other_ranks(const std::string& target, const std::string& own, const WriteStart& start,
                               const h5::Where& where) {
  const auto run_began = several_ranks_since();
  const FileStamp there = stamp_of(target);
  if (!run_began || there.inode == 0 || is_known(target, there) || !is_of_this_run(there, start, *run_began))
    return Keeps::kOwn;
  const bool written_meanwhile = !(there == start.target);
  if ((start.adds && !written_meanwhile) || !is_hdf5(target)) return Keeps::kOwn;
  const auto theirs = contents_of(target, where), mine = contents_of(own, where);
  if (mine.empty()) return Keeps::kOther;
  if (theirs.empty()) return Keeps::kOwn;
  // This rank may be there to replace the values of a file that was finished before.
  if (mine == theirs) return written_meanwhile || same_bytes(target, own) ? Keeps::kOther : Keeps::kOwn;
  const auto missing = first_missing(theirs, mine);
  TORCH_CHECK(false, where.to_string(), ": only some ranks wrote ", missing ? *missing : *first_missing(mine, theirs),
              "\n  have  a file of another rank ", missing ? "with" : "without",
              " it, which has the name now, and this rank's ", missing ? "without" : "with",
              "\n  fix   write it on all ranks, or open the file on one rank only");
}

void note_own_file(const std::string& target, const FileStamp& stamp) { io_context->known_files[target] = stamp; }

FolderLock::FolderLock(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  folder_ = FileDescriptor(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  for (int tries = 0; folder_.get() >= 0 && tries < 400; ++tries) {
    if (flock(folder_.get(), LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && errno != EINTR)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace moonhalo::io
