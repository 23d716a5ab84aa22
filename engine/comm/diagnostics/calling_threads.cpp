// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/diagnostics/calling_threads.h"

#include <atomic>

namespace moonhalo {
namespace {

std::atomic<int> count{0};

struct ThisThread {
  bool calls = false;
  int elsewhere = 0;

  int counts() const { return calls && elsewhere == 0 ? 1 : 0; }
  template <typename Change>
  void change(const Change& how) {
    const int before = counts();
    how();
    count += counts() - before;
  }
  ~ThisThread() { count -= counts(); }
};
// Not a RankLocal, since a thread may work as one rank after another (AsRank), and each as several threads.
thread_local ThisThread this_thread;

}  // namespace

int calling_threads() { return count; }
void count_calling_thread() {
  if (!this_thread.calls) this_thread.change([] { this_thread.calls = true; });
}

ActiveCall::ActiveCall() { ++count; }
ActiveCall::~ActiveCall() { --count; }

CountedElsewhere::CountedElsewhere() {
  this_thread.change([] { ++this_thread.elsewhere; });
}
CountedElsewhere::~CountedElsewhere() {
  this_thread.change([] { --this_thread.elsewhere; });
}

}  // namespace moonhalo
