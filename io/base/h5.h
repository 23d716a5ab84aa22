// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

/// The HDF5 C API with owners for its identifiers and one error message per failure. Only what the
/// rest of io needs.
namespace moonhalo::io::h5 {

/// Says what a call was about, for its error message: `read: dataset "air" of file "air.nc": ...`.
struct Where {
  std::string op;
  std::string file;
  std::string object = {};  ///< `dataset "air"`; empty for the file itself
  std::string to_string() const;
};

/// While it lives, HDF5 prints nothing on this thread's stderr (the setting is per thread); the
/// host program's own handler is put back afterwards. An HDF5 library built without thread safety
/// is locked for as long. Within another one it costs nothing.
class Scope {
 public:
  Scope();
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
  H5E_auto2_t print_ = nullptr;
  void* data_ = nullptr;
};

/// Gives what HDF5 said of the last failure on this thread, the cause first.
std::string failure_text();
/// The advice of a message about such a failure.
std::string remedy(const std::string& said);

/// A callback of HDF5's, which cannot throw, says why it refuses: the next fail() of this thread throws ValueError with
/// `message` in the place of its own. Empty: nothing is refused.
void refuse(std::string message);
void throw_refusal();

/// Throws with this thread's HDF5 error stack in one message: where and `what` on the first line,
/// then what the library said, then a remedy. Call it before any other HDF5 call, inside the
/// failing call's Scope.
[[noreturn]] void fail(const Where& where, const std::string& what);

/// Runs one HDF5 call and returns its result; a negative one throws. `what` completes "cannot ...".
template <typename Call>
auto checked(const Where& where, const char* what, Call&& call) {
  const Scope scope;
  const auto result = call();
  if (result < 0) fail(where, what);
  return result;
}

using Closer = herr_t (*)(hid_t);

/// Owner of one HDF5 identifier, whatever its kind. Moves, does not copy. Destruction closes it and
/// cannot fail loudly; where a failure matters (a file that was written) call close().
class Handle {
 public:
  Handle() = default;
  Handle(hid_t id, Closer closer) : id_(id), closer_(closer) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)), closer_(other.closer_) {}
  Handle& operator=(Handle&& other) noexcept;
  ~Handle() { reset(); }

  hid_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  /// Closes now; throws when HDF5 reports a failure (a full disk is often noticed here).
  void close(const Where& where);
  void reset() noexcept;

 private:
  hid_t id_ = H5I_INVALID_HID;
  Closer closer_ = nullptr;
};

/// Runs a call that makes an identifier and owns the result.
template <typename Call>
Handle make(const Where& where, const char* what, Closer closer, Call&& call) {
  return Handle(checked(where, what, call), closer);
}

Handle property_list(hid_t kind, const Where& where);
/// For reading and writing, by this process alone; `access` as from write_access.
Handle open_file_for_writing(const std::string& path, const Handle& access, const Where& where);
/// A new file in the place of what is there.
Handle create_file(const std::string& path, const Handle& access, const Where& where);
/// For a new dataset, or group, whose attributes (and members) keep their order: the NetCDF library adds to no other.
Handle new_dataset_list(const Where& where);
Handle new_group_list(const Where& where);
Handle type_of(hid_t dataset, const Where& where);
Handle space_of(hid_t dataset, const Where& where);
Handle creation_list_of(hid_t dataset, const Where& where);
/// A simple dataspace; no dimensions make a scalar. `most`: how far it can grow; as it is when empty.
Handle simple_space(const std::vector<hsize_t>& shape, const Where& where, const std::vector<hsize_t>& most = {});
std::vector<hsize_t> extent(hid_t space, const Where& where);
/// False for what an external link led to: its addresses mean another file.
bool is_in_file(hid_t file, hid_t object, const Where& where);
/// True when every part of the path exists ("/" always does). `links`: a link access list, see Reach.
bool link_exists(hid_t file, const std::string& path, hid_t links = H5P_DEFAULT);

}  // namespace moonhalo::io::h5
