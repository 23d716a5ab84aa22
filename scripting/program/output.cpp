// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/program/output.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/scripting/program/session.h"

namespace moonhalo::scripting {

namespace {

// The C library remembers that a write failed, not why.
std::atomic<int> first_error = 0;

void note_error() {
  int none = 0;
  first_error.compare_exchange_strong(none, errno);
}

}  // namespace

void write_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) note_error();
}

int checked_output(int status) {
  if (std::fflush(stdout) != 0) note_error();
  const int error = first_error.exchange(0);
  if (error == 0 && !std::ferror(stdout)) return status;
  std::clearerr(stdout);
  const std::string why = error != 0 ? std::strerror(error) : "a write failed";
  std::fprintf(stderr, "moonhalo: standard output was not written: %s%s\n", why.c_str(),
               io::disk_remedy(error).c_str());
  return status == kDone ? static_cast<int>(kScriptFailed) : status;
}

}  // namespace moonhalo::scripting
