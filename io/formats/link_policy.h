// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "moonhalo/io/base/h5.h"

namespace moonhalo::io::h5 {

class SourceName;

/// Says which other files a file may lead to: those of its folder and below, or any where the caller allowed it. A file
/// from elsewhere could show what it likes as its data: external raw storage every file that the user may read, link
/// and virtual dataset every HDF5 file. Raw storage has no folder (HDF5 looks in the current one) and is refused as a
/// whole.
class LinkPolicy {
 public:
  LinkPolicy(std::string path, bool allow_external);

  /// Makes calls with this link or dataset access list refuse external links that lead too far, wherever on the way.
  /// This Reach must outlive the list.
  void watch(hid_t access, const Where& where) const;
  /// ValueError when the elements of an open dataset are too far, also those of a virtual dataset's sources, or a
  /// source is missing. Of sources by number ("part-%b.h5") every one that is there is looked at.
  void check_storage(hid_t dataset, const Where& where) const {
    Heights heights;
    check_storage(dataset, where, 0, heights);
  }

 private:
  /// Empty where `target`, as a file at `from` names it, may be read; else why not.
  std::string refusal(const std::string& from, const std::string& target) const;
  struct Source;
  /// A dataset by its file and its address there, and how many virtual datasets are at most below one another from it
  /// on: a source of many is looked at once.
  using Place = std::pair<std::string, haddr_t>;
  using Heights = std::map<Place, int>;
  int check_storage(hid_t dataset, const Where& where, int depth, Heights& heights) const;
  int check_blocks(hid_t inside, const std::string& file, const std::string& name, const Where& where, int depth,
                   Heights& heights) const;
  int check_source(hid_t inside, const Source& source, const Where& where, Heights& heights) const;
  Handle open_source(hid_t inside, const std::string& file, const std::string& name, const Where& where) const;
  /// The numbers of the blocks that are there.
  std::set<uint64_t> blocks_of_files(const std::string& from, const SourceName& file, const Where& where) const;
  std::set<uint64_t> blocks_of_group(hid_t inside, const std::string& file, const SourceName& name,
                                     const Where& where) const;
  static herr_t on_link(const char* file, const char* group, const char* target, const char* object, unsigned* flags,
                        hid_t access, void* self);

  const std::string path_;
  const std::string folder_;
  const bool allow_external_;
};

/// With space for `cache_bytes` of chunks that are read again (0: the library's default). `reach`: null allows
/// everything.
Handle open_dataset(hid_t file, const std::string& name, size_t cache_bytes, const LinkPolicy* reach,
                    const Where& where);

}  // namespace moonhalo::io::h5
