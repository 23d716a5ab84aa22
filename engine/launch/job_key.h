// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace moonhalo {

/// The key of MOONHALO_JOB_KEY, or of the file that MOONHALO_JOB_KEY_FILE names and that only this user may read; ""
/// where neither is set. ValueError for both, for a key of fewer than 16 bytes and for a file that others may read.
std::string job_key(const std::function<const char*(const char*)>& getenv);

/// Returns the text of another process for printing: bytes that are not printable ASCII, which may steer a terminal,
/// are
/// '?' there, and it ends after 2,000 bytes.
std::string printable(const std::string& text);

/// Protects the entries of a store that strangers can read and write, for ranks with the same key. Without a key
/// entries are as they were given.
class Seal {
 public:
  Seal(std::string key, std::string run) : key_(std::move(key)), run_(std::move(run)) {}
  bool has_key() const { return !key_.empty(); }
  /// Returns the name in the store, which cannot be guessed without the key.
  std::string name(const std::string& entry) const;
  std::string close(const std::string& entry, const std::string& value) const;
  /// The value. CommError for one that was not closed with the key for this entry. `place`: of the store, for the text.
  std::string open(const std::string& entry, const std::string& closed, const std::string& place) const;

 private:
  std::string key_, run_;
};

}  // namespace moonhalo
