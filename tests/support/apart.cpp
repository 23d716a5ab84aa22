// SPDX-License-Identifier: Apache-2.0
#include "tests/support/apart.h"

#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace moonhalo::testing {
namespace {

constexpr char kRecord = '\x1e';

void write_all(int file, const std::string& text) {
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t now = write(file, text.data() + sent, text.size() - sent);
    if (now <= 0) _exit(1);
    sent += static_cast<size_t>(now);
  }
}

std::string how_it_ended(int status) {
  return "ends the process" +
         (WIFSIGNALED(status) ? " with signal " + std::to_string(WTERMSIG(status)) : std::string());
}

}  // namespace

void run_apart(size_t count, const std::function<std::string(size_t)>& task,
               const std::function<void(size_t, const std::string& text, const std::string& ended)>& done,
               int patience_ms) {
  for (size_t next = 0; next < count;) {
    int ends[2];
    TORCH_INTERNAL_ASSERT(pipe(ends) == 0, "no pipe");
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      for (size_t i = next; i < count; ++i) write_all(ends[1], task(i) + kRecord);
      _exit(0);
    }
    close(ends[1]);
    std::string text;
    char buffer[4096];
    bool hangs = false;
    while (true) {
      pollfd wait{.fd = ends[0], .events = POLLIN, .revents = 0};
      hangs = poll(&wait, 1, patience_ms) == 0;
      const ssize_t got = hangs ? 0 : read(ends[0], buffer, sizeof buffer);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
      for (size_t end; (end = text.find(kRecord)) != std::string::npos; text.erase(0, end + 1))
        done(next++, text.substr(0, end), "");
    }
    close(ends[0]);
    if (hangs) kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    if (next == count) continue;
    done(next++, "", hangs ? "hangs for " + std::to_string(patience_ms / 1000) + " s" : how_it_ended(status));
  }
}

}  // namespace moonhalo::testing
