// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/c_transport.h"

#include <memory>
#include <string>
#include <utility>

#include "moonhalo/scripting/embed/float_environment.h"
#include "moonhalo/scripting/embed/outcome.h"

namespace moonhalo::scripting {
namespace {

/// A message of the caller's, and the rank that it comes from or goes to, which errors name.
struct Pending {
  void* request;
  int peer;
  int failed = 0;  // status of a test: the program's request may be gone, and is used no more
};

void check(int status, const char* function, int peer) {
  if (status == 0) return;
  throw CommError("transport: " + std::string(function) + " failed, for a message with rank " + std::to_string(peer) +
                  "\n  have  status " + std::to_string(status) +
                  " from the program's own function\n  fix   0 means success; look whether that rank still runs, and "
                  "whether its MPI has been finalised");
}

/// Calls a function of the program's.
template <typename... Given, typename... Values>
int ask(int (*function)(Given...), Values... values) {
  const CallersFloatEnvironment as_the_caller;
  return function(values...);
}

class CallersTransport final : public Transport {
 public:
  explicit CallersTransport(const mh_transport& given)
      : given_(given), rank_(ask(given.rank, given.context)), size_(ask(given.ranks, given.context)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool any_thread() const override { return given_.any_thread != 0; }
  void* send(const void* data, size_t bytes, int peer, int tag) override {
    auto pending = std::make_unique<Pending>(Pending{.request = nullptr, .peer = peer});
    check(ask(given_.isend, given_.context, data, bytes, peer, tag, &pending->request), "isend", peer);
    return pending.release();
  }
  void* receive(void* data, size_t bytes, int peer, int tag) override {
    auto pending = std::make_unique<Pending>(Pending{.request = nullptr, .peer = peer});
    check(ask(given_.irecv, given_.context, data, bytes, peer, tag, &pending->request), "irecv", peer);
    return pending.release();
  }
  bool test(void*& request) override {
    auto* const pending = static_cast<Pending*>(request);
    int done = 0;
    if (pending->failed == 0) pending->failed = ask(given_.test, given_.context, &pending->request, &done);
    check(pending->failed, "test", pending->peer);
    if (done == 0) return false;
    delete pending;
    request = nullptr;
    return true;
  }
  void cancel(void*& request) override {
    const std::unique_ptr<Pending> pending(static_cast<Pending*>(std::exchange(request, nullptr)));
    if (!pending) return;  // its receive could not begin
    check(pending->failed, "test", pending->peer);
    check(ask(given_.cancel, given_.context, &pending->request), "cancel", pending->peer);
  }

 private:
  mh_transport given_;
  int rank_, size_;
};

}  // namespace

TransportPtr make_c_transport(const mh_transport& given) {
  if (given.size != sizeof(mh_transport)) {
    throw HostError(MH_USAGE,
                    "mh_open: a transport of an unknown size\n  have  size " + std::to_string(given.size) +
                        ", this library's is " + std::to_string(sizeof(mh_transport)) +
                        "\n  fix   set transport.size = sizeof(mh_transport), with the header of this library");
  }
  if (!given.rank || !given.ranks || !given.isend || !given.irecv || !given.test || !given.cancel) {
    throw HostError(MH_USAGE,
                    "mh_open: a transport without all of its functions\n  have  a null pointer among rank, ranks, "
                    "isend, irecv, test and cancel\n  fix   fill it with mh_mpi_transport of moonhalo_mpi.h");
  }
  auto transport = std::make_shared<CallersTransport>(given);
  if (transport->rank() < 0 || transport->rank() >= transport->size()) {
    throw HostError(MH_USAGE, "mh_open: a transport of no ranks\n  have  rank " + std::to_string(transport->rank()) +
                                  " of " + std::to_string(transport->size()) +
                                  "\n  fix   ranks count from 0 to ranks - 1");
  }
  return transport;
}

}  // namespace moonhalo::scripting
