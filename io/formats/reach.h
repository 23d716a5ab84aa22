// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::h5 {

/// Says which other files a file may lead to: those of its folder and below, or any where the caller allowed it. A file
/// from elsewhere could show what it likes as its data: external raw storage every file that the user may read, link
/// and virtual dataset every HDF5 file. Raw storage has no folder (HDF5 looks in the current one) and is refused as a
/// whole.
class Reach {
 public:
  Reach(std::string path, bool allow_external);

  /// Makes calls with this link or dataset access list refuse external links that lead too far, wherever on the way.
  /// This Reach must outlive the list.
  void watch(hid_t access, const Where& where) const;
  /// ValueError when the elements of an open dataset lie too far, also those of a virtual dataset's sources, or a
  /// source is missing.
  void check_storage(hid_t dataset, const Where& where) const { check_storage(dataset, where, 0); }

 private:
  /// Empty where `target`, as a file at `from` names it, may be read; else why not.
  std::string refusal(const std::string& from, const std::string& target) const;
  void check_storage(hid_t dataset, const Where& where, int depth) const;
  void check_source(hid_t dataset, const std::string& file, const std::string& name, const Where& where,
                    int depth) const;
  static herr_t on_link(const char* file, const char* group, const char* target, const char* object, unsigned* flags,
                        hid_t access, void* self);

  const std::string path_;
  const std::string folder_;
  const bool allow_external_;
};

/// With room for `cache_bytes` of chunks that are read again (0: the library's default). `reach`: null allows
/// everything.
Handle open_dataset(hid_t file, const std::string& name, size_t cache_bytes, const Reach* reach, const Where& where);

}  // namespace moonhalo::io::h5
