// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <exception>

namespace moonhalo {

/// For destructors: waits for an exchange that was dropped, or its messages would match the wrong receives. An
/// error is printed.
template <typename Work>
void finish_dropped(Work& work) {
  try {
    work.wait();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moonhalo: error in an exchange that was destroyed before wait(): %s\n", error.what());
  }
}

}  // namespace moonhalo
