// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/launch/job_key.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/launch/sha256.h"

namespace moonhalo {
namespace {

constexpr size_t kLeast = 16, kMost = 4096;
constexpr const char* kMake = "openssl rand -hex 32";

std::string without_end_of_line(std::string text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string contents_of_private_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const int open_error = errno;
  TORCH_CHECK_VALUE(file >= 0, "launch: cannot read the job key\n  have  MOONHALO_JOB_KEY_FILE=", path, ": ",
                    std::strerror(open_error), "\n  fix   (umask 077; ", kMake, " > FILE), where all ranks see it");
  struct stat facts {};
  std::array<char, kMost> bytes;
  const bool known = ::fstat(file, &facts) == 0;
  const ssize_t got = ::read(file, bytes.data(), bytes.size());
  ::close(file);
  TORCH_CHECK_VALUE(known && S_ISREG(facts.st_mode) && got >= 0,
                    "launch: the job key is not in a file\n  have  MOONHALO_JOB_KEY_FILE=", path,
                    "\n  fix   (umask 077; ", kMake, " > FILE)");
  TORCH_CHECK_VALUE((facts.st_mode & 077) == 0 && (facts.st_uid == ::geteuid() || facts.st_uid == 0),
                    "launch: others may read or change the file of the job key\n  have  MOONHALO_JOB_KEY_FILE=", path,
                    "\n  fix   make a new one: (umask 077; ", kMake, " > FILE)");
  return {bytes.data(), static_cast<size_t>(got)};
}

std::string digest_text(const std::string& key, const char* use, const std::string& text) {
  return hex(hmac_sha256(key, std::string(use) + "\n" + text));
}

}  // namespace

std::string job_key(const std::function<const char*(const char*)>& getenv) {
  const auto text = [&](const char* variable) -> std::string {
    const char* value = getenv(variable);
    return value == nullptr ? "" : value;
  };
  const std::string given = text("MOONHALO_JOB_KEY"), path = text("MOONHALO_JOB_KEY_FILE");
  if (given.empty() && path.empty()) return "";
  TORCH_CHECK_VALUE(given.empty() || path.empty(),
                    "launch: two job keys\n  have  MOONHALO_JOB_KEY and MOONHALO_JOB_KEY_FILE=", path,
                    "\n  fix   unset one of them");
  const std::string key = without_end_of_line(path.empty() ? given : contents_of_private_file(path));
  TORCH_CHECK_VALUE(key.size() >= kLeast, "launch: the job key can be guessed\n  have  ", key.size(),
                    " bytes\n  fix   give at least ", kLeast, " random ones, as ", kMake, " does");
  return key;
}

std::string printable(const std::string& text) {
  constexpr size_t kLongest = 2000;
  std::string shown = text.substr(0, kLongest);
  for (char& letter : shown) {
    if (letter != '\n' && (letter < 0x20 || letter > 0x7e))
      letter = '?';  // where char is signed, beyond ASCII is below 0
  }
  return shown;
}

std::string Seal::name(const std::string& entry) const {
  return "moonhalo/" + run_ + "/" + (has_key() ? digest_text(key_, "name", run_ + "\n" + entry) : entry);
}

std::string Seal::close(const std::string& entry, const std::string& value) const {
  return has_key() ? digest_text(key_, "value", run_ + "\n" + entry + "\n" + value) + value : value;
}

std::string Seal::open(const std::string& entry, const std::string& closed, const std::string& place) const {
  if (!has_key()) return closed;
  constexpr size_t kDigits = 2 * sizeof(Digest);
  const std::string value = closed.size() < kDigits ? "" : closed.substr(kDigits);
  // Compared by their digests, so that the time does not depend on the place where they differ.
  if (closed.size() >= kDigits && same_digest(sha256(closed), sha256(close(entry, value)))) return value;
  throw CommError("launch: the store at " + place +
                  " holds what no rank of this job has written\n  have  the entry \"" + entry +
                  "\"\n  fix   another program writes there; give the job a MASTER_PORT that others do not reach");
}

}  // namespace moonhalo
