// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "moonhalo/engine/comm/comm_observer.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/pollable.h"

namespace moonhalo {
namespace {

class ObservedWork final : public Work, public Pollable {
 public:
  ObservedWork(WorkPtr work, CommObserver* observer, uint32_t call)
      : work_(std::move(work)), observer_(observer), call_(call) {}
  void do_wait() override {
    if (comm_observer() != observer_) return work_->wait();
    observer_->begin_wait(this, call_);
    struct End {
      ObservedWork* work;
      ~End() {
        if (comm_observer() == work->observer_) work->observer_->end_call(work);
      }
    } const end{this};
    work_->wait();
  }
  bool ready() override { return is_ready(*work_); }

 private:
  WorkPtr work_;
  CommObserver* observer_;
  uint32_t call_;
};

}  // namespace

WorkPtr observed_work(WorkPtr work, CommObserver* observer, uint32_t call) {
  return std::make_unique<ObservedWork>(std::move(work), observer, call);
}

}  // namespace moonhalo
