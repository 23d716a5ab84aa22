// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/profile/profiler.h"

#include <c10/util/Exception.h>

#include <utility>

#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/profile/gather_records.h"

namespace moonhalo {

Profiler::Profiler(CommunicatorPtr world, Recorder::LineReader read_line, int64_t most_events, bool nvtx)
    : world_(std::move(world)), read_line_(std::move(read_line)), most_events_(most_events), nvtx_(nvtx) {
  TORCH_CHECK_VALUE(most_events > 0, "profiler: at most ", most_events, " events\n  have  ", most_events,
                    "\n  fix   give a number above 0");
}

Profiler::~Profiler() { drop(); }

void Profiler::drop() {
  stop_watching();
  recorder_.reset();
}

void Profiler::stop_watching() {
  if (std::exchange(watches_, false)) watch_steps(this, nullptr);
}

void Profiler::begin(int64_t step) { recorder_ = std::make_unique<Recorder>(step, read_line_, most_events_, nvtx_); }

void Profiler::start() {
  begin(1);
  stopped_ = false;
  watch_steps(this, [this](int64_t ended) { recorder_->next_step(ended + 1); });
  watches_ = true;
}

void Profiler::record_steps(int64_t first, int64_t last, std::function<void()> done) {
  TORCH_CHECK_VALUE(first >= 1 && last >= first, "profile: steps from ", first, " to ", last, "\n  have  steps = {",
                    first, ", ", last, "}\n  fix   steps count from 1, and the last is not before the first");
  TORCH_CHECK_VALUE(last <= RankRecord::kLastStep, "profile: step ", last, " is above ", RankRecord::kLastStep,
                    ", the largest number in a profile\n  have  steps = {", first, ", ", last,
                    "}\n  fix   record earlier steps, or start and stop a profiler around the later ones");
  stopped_ = false;
  if (first == 1) begin(1);
  watch_steps(this, [this, first, last, done = std::move(done)](int64_t ended) {
    if (ended == last) {
      finish(true);
      done();
    } else if (ended + 1 == first) {
      begin(first);
      no_step_yet_ = true;
    } else if (ended >= first) {
      no_step_yet_ = false;
      recorder_->next_step(ended + 1);
    }
  });
  watches_ = true;
}

void Profiler::stop() { finish(false); }

void Profiler::finish(bool step_ended) {
  stop_watching();
  RankRecord mine;
  if (recorder_ != nullptr) mine = recorder_->stop(step_ended);
  if (std::exchange(no_step_yet_, false) && !step_ended) mine = {};
  recorder_.reset();
  records_ = gather_records(*world_, std::move(mine));
  const ScopedStatsPause not_counted;
  std::string text;
  fail_together(*world_, [&] {
    if (records_.empty()) return;
    ProfileSummary summary = summarize(records_);
    if (world_->is_fake())
      summary.notes.push_back("rank " + std::to_string(world_->rank()) + " of " + std::to_string(world_->size()) +
                              " in a dry run: no rank is waited for");
    text = summary.to_json();
  });
  summary_ = ProfileSummary::from_json(broadcast_text(*world_, text), "of rank 0");
  stopped_ = true;
}

const ProfileSummary& Profiler::summary() const {
  TORCH_CHECK(stopped_,
              "profiler: nothing is recorded yet\n  have  a profiler that was not stopped\n"
              "  fix   call start, then stop");
  return summary_;
}

}  // namespace moonhalo
