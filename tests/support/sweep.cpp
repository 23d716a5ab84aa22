// SPDX-License-Identifier: Apache-2.0
#include "tests/support/sweep.h"

#include <c10/util/Exception.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "engine/communicator.h"
#include "engine/dispatch.h"

namespace moonhalo::testing {
namespace {

class Draw {
 public:
  explicit Draw(const std::string& name) {
    for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  int64_t below(int64_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(n));
  }
  bool percent(int64_t chance) { return below(100) < chance; }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

std::vector<int64_t> uneven(Draw& draw, int64_t extent, int64_t blocks) {
  std::vector<int64_t> ends;
  for (int64_t i = 1; i < blocks; ++i) ends.push_back(draw.below(extent + 1));
  ends.push_back(extent);
  std::sort(ends.begin(), ends.end());
  for (int64_t i = blocks - 1; i > 0; --i) ends[i] -= ends[i - 1];
  return ends;
}

bool may_be_partial(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();  // low precision would round the addends
  return dtype == at::kDouble || dtype == at::kComplexDouble || dtype == at::kLong;
}

Placement any_placement(Draw& draw, const at::Tensor& tensor, int64_t ranks) {
  const int64_t kind = draw.below(10);
  if (kind < 2) return replicate();
  if (kind < 4 && may_be_partial(tensor)) {
    if (tensor.is_complex() || kind == 2) return partial();
    return partial(draw.percent(50) ? ReduceOp::kMax : ReduceOp::kMin);
  }
  if (tensor.dim() == 0) return replicate();
  const int64_t dim = draw.below(tensor.dim());
  return shard(dim, uneven(draw, tensor.size(dim), ranks));
}

// Sizes of a dim that two mesh dims cut are given for the outer one only.
std::vector<Placement> any_placements(Draw& draw, const at::Tensor& tensor,
                                      const std::vector<int64_t>& mesh) {
  std::vector<Placement> placements;
  for (const int64_t ranks : mesh) {
    Placement next = any_placement(draw, tensor, ranks);
    for (const Placement& before : placements) {
      if (next.is_shard() && before.is_shard() && before.dim == next.dim) next.sizes = {};
      if (next.is_partial() && before.is_partial()) next.op = before.op;
    }
    placements.push_back(next);
  }
  return placements;
}

struct Way {
  std::vector<int64_t> mesh;
  std::vector<Input> inputs;

  std::string to_string() const {
    std::ostringstream text;
    text << "mesh " << at::IntArrayRef(mesh);
    for (const Input& input : inputs) {
      text << "; " << at::IntArrayRef(input.full.sizes());
      if (input.plain) text << " plain";
      for (const Placement& p : input.placements) text << " " << p.to_string();
    }
    return text.str();
  }
};

// A way with input `first` cut on dim `dim` of a line of ranks (`dim` -1: whatever comes).
Way any_way(Draw& draw, const Row& row, std::vector<int64_t> mesh, size_t first, int64_t dim) {
  Way way{std::move(mesh), {}};
  for (size_t i = 0; i < row.inputs.size(); ++i) {
    Input input{.full = row.inputs[i]};
    if (i == first && dim >= 0) {
      input.placements = {shard(dim, uneven(draw, input.full.size(dim), way.mesh[0]))};
    } else if (i > 0 && input.full.sizes() == row.inputs[0].sizes() && draw.percent(40) &&
               !way.inputs[0].plain &&
               (may_be_partial(input.full) || !way.inputs[0].placements[0].is_partial())) {
      input.placements = way.inputs[0].placements;
    } else if (i != first && draw.percent(30)) {
      input.plain = true;
    } else {
      input.placements = any_placements(draw, input.full, way.mesh);
    }
    for (Placement& p : input.placements) {
      if (p.is_partial() && input.full.is_complex()) p = partial();
      if (p.is_partial() && !may_be_partial(input.full)) p = replicate();
    }
    way.inputs.push_back(std::move(input));
  }
  return way;
}

std::vector<Way> ways(const Row& row) {
  const char* more = std::getenv("MOONHALO_SWEEP");
  const int times = more != nullptr ? std::max(1, std::atoi(more)) : 1;
  Draw draw(row.name);
  std::vector<Way> all;
  for (int time = 0; time < times; ++time) {
    int64_t ranks = draw.below(2);
    for (size_t i = 0; i < row.inputs.size(); ++i) {
      for (int64_t dim = 0; dim < row.inputs[i].dim(); ++dim)
        all.push_back(any_way(draw, row, {2 + ranks++ % 2}, i, dim));
    }
    all.push_back(any_way(draw, row, {4}, 0, -1));
    all.push_back(any_way(draw, row, {2, 2}, 0, -1));
    all.push_back(any_way(draw, row, {2, 2}, draw.below(row.inputs.size()), -1));
  }
  return all;
}

class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

struct Tally {
  int right = 0, gathered = 0, refused = 0, wrong = 0;
  std::map<std::string, int> gathers;
  std::string refusal;
};

struct Verdict {
  std::string wrong;    // values, or an error that is not clear
  std::string refusal;  // a clear error
  std::map<std::string, int64_t> gathered;
};

Verdict judge(const Row& row, const Way& way) {
  Verdict verdict;
  std::mutex mutex;
  const auto run = [&](const List& t) {
    if (!std::any_of(t.begin(), t.end(), is_shard_tensor)) return row.run(t);
    static Silent silent;
    c10::WarningUtils::set_warning_handler(&silent);
    at_rank_exit([&] {
      const std::lock_guard lock(mutex);
      for (const auto& [name, times] : Dispatch::of_this_thread().gathered)
        verdict.gathered[name] += times;
    });
    return row.run(t);
  };
  ::testing::TestPartResultArray failures;
  try {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
    expect_same_as_plain(way.mesh, way.inputs, run,
                         {.tolerance = row.allowed.tolerance,
                          .backward = row.allowed.backward,
                          .fallback = Fallback::kReplicate,
                          .same_cut_gradients = !row.allowed.other_cut});
  } catch (const CommError& error) {
    verdict.wrong = error.what();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    const bool clear = text.find("\n  have") != std::string::npos &&
                       text.find("\n  fix") != std::string::npos &&
                       text.find("INTERNAL ASSERT") == std::string::npos;
    (clear ? verdict.refusal : verdict.wrong) = text;
  } catch (const std::exception& error) {
    verdict.wrong = error.what();
  }
  for (int i = 0; i < failures.size(); ++i)
    verdict.wrong += failures.GetTestPartResult(i).message();
  return verdict;
}

}  // namespace

void sweep(const std::vector<Row>& rows) {
  std::ostringstream table;
  for (const Row& row : rows) {
    Tally tally;
    for (const Way& way : ways(row)) {
      if (std::all_of(way.inputs.begin(), way.inputs.end(), [](const Input& i) { return i.plain; }))
        continue;
      const Verdict verdict = judge(row, way);
      for (const auto& [name, times] : verdict.gathered) ++tally.gathers[name];
      if (!verdict.wrong.empty()) {
        ++tally.wrong;
        ADD_FAILURE() << row.name << " on " << way.to_string() << ":\n" << verdict.wrong;
      } else if (!verdict.refusal.empty()) {
        ++tally.refused;
        tally.refusal = verdict.refusal.substr(0, verdict.refusal.find('\n'));
        if (!row.allowed.refuse)
          ADD_FAILURE() << row.name << " refuses " << way.to_string() << ":\n" << verdict.refusal;
      } else if (!verdict.gathered.empty()) {
        ++tally.gathered;
        if (!row.allowed.gather)
          ADD_FAILURE() << row.name << " gathers " << verdict.gathered.begin()->first << " on "
                        << way.to_string();
      } else {
        ++tally.right;
      }
    }
    char line[160];
    std::snprintf(line, sizeof line, "%-28s %3d on blocks %3d gathered %3d refused %3d wrong ",
                  row.name.c_str(), tally.right, tally.gathered, tally.refused, tally.wrong);
    table << line;
    for (const auto& [name, times] : tally.gathers) table << " " << name << " x" << times;
    if (!tally.refusal.empty()) table << "  " << tally.refusal;
    table << "\n";
  }
  std::fputs(table.str().c_str(), stdout);
}

}  // namespace moonhalo::testing
