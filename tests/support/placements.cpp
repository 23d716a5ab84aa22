// SPDX-License-Identifier: Apache-2.0
#include "tests/support/placements.h"

#include <c10/util/Exception.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>

#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "tests/support/refusals.h"

namespace moonhalo::testing {
namespace {

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
  const std::vector<int64_t> sizes = uneven(draw, tensor.size(dim), ranks);
  return kind == 9 ? stored(dim, sizes) : shard(dim, sizes);
}

// Sizes of a dim that two mesh dims cut are given for the outer one only.
std::vector<Placement> any_placements(Draw& draw, const at::Tensor& tensor, const std::vector<int64_t>& mesh) {
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

class Silent final : public c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

Draw::Draw(const std::string& name) {
  for (const char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
}

int64_t Draw::below(int64_t n) {
  state_ = state_ * 6364136223846793005u + 1442695040888963407u;
  return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(n));
}

bool Way::all_plain() const {
  return std::all_of(inputs.begin(), inputs.end(), [](const Input& i) { return i.plain; });
}

std::string Way::to_string() const {
  std::ostringstream text;
  text << "mesh " << at::IntArrayRef(mesh);
  for (const Input& input : inputs) {
    text << "; " << at::IntArrayRef(input.full.sizes());
    if (input.plain) text << " plain";
    for (const Placement& p : input.placements) text << " " << p.to_string();
  }
  return text.str();
}

Way draw_way(Draw& draw, const List& tensors, std::vector<int64_t> mesh, size_t first, int64_t dim,
             const std::vector<bool>& never_plain) {
  Way way{std::move(mesh), {}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    Input input{.full = tensors[i]};
    if (i == first && dim >= 0) {
      input.placements = {shard(dim, uneven(draw, input.full.size(dim), way.mesh[0]))};
    } else if (i > 0 && input.full.sizes() == tensors[0].sizes() && draw.percent(40) && !way.inputs[0].plain &&
               (may_be_partial(input.full) || !way.inputs[0].placements[0].is_partial())) {
      input.placements = way.inputs[0].placements;
    } else if (i != first && draw.percent(30) && (never_plain.empty() || !never_plain[i])) {
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

std::vector<Way> draw_ways(Draw& draw, const List& tensors, const std::vector<bool>& never_plain) {
  std::vector<Way> all;
  int64_t ranks = draw.below(2);
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t dim = 0; dim < tensors[i].dim(); ++dim)
      all.push_back(draw_way(draw, tensors, {2 + ranks++ % 2}, i, dim, never_plain));
  }
  all.push_back(draw_way(draw, tensors, {4}, 0, -1, never_plain));
  all.push_back(draw_way(draw, tensors, {2, 2}, 0, -1, never_plain));
  all.push_back(draw_way(draw, tensors, {2, 2}, draw.below(static_cast<int64_t>(tensors.size())), -1, never_plain));
  std::erase_if(all, [](const Way& way) { return way.all_plain(); });
  return all;
}

Verdict::Kind Verdict::kind() const {
  return !wrong.empty()      ? Kind::kWrong
         : !refusal.empty()  ? Kind::kRefused
         : !gathered.empty() ? Kind::kGathered
                             : Kind::kRight;
}

bool is_clear(const std::string& error) {
  return error.find("\n  have") != std::string::npos && error.find("\n  fix") != std::string::npos &&
         error.find("INTERNAL ASSERT") == std::string::npos;
}

Verdict judge(const Way& way, const Program& program, Oracle options) {
  Verdict verdict;
  struct Gathered {
    std::mutex mutex;
    std::map<std::string, int64_t> operators;
    void add_those_of_this_thread() {
      const std::lock_guard lock(mutex);
      for (const auto& [name, times] : Dispatch::of_this_thread().gathered) operators[name] += times;
    }
  };
  // Where ranks are processes, this thread is the rank, and its end is that of the program.
  const auto gathered = std::make_shared<Gathered>();
  Dispatch::of_this_thread().gathered.clear();
  const Program watched = [&](const List& t) {
    if (!std::any_of(t.begin(), t.end(), is_shard_tensor)) return program(t);
    static Silent silent;
    c10::WarningUtils::set_warning_handler(&silent);
    at_rank_exit([gathered] { gathered->add_those_of_this_thread(); });
    return program(t);
  };
  options.fallback = Fallback::kReplicate;
  ::testing::TestPartResultArray failures;
  // Ranks that are processes cannot see each other here.
  std::optional<Refusals> refusals;
  if (std::getenv("MOONHALO_TEST_RANKS") == nullptr) refusals.emplace();
  try {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
    expect_same_as_plain(way.mesh, way.inputs, watched, options);
  } catch (const CommError& error) {
    verdict.wrong = error.what();
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    (is_clear(text) ? verdict.refusal : verdict.wrong) = text;
  } catch (const std::exception& error) {
    verdict.wrong = error.what();
  }
  for (int i = 0; i < failures.size(); ++i) verdict.wrong += failures.GetTestPartResult(i).message();
  if (refusals && !verdict.refusal.empty() && !refusals->alone().empty())
    verdict.wrong += refusals->alone() + "\n" + verdict.refusal;
  gathered->add_those_of_this_thread();
  for (const auto& [name, times] : gathered->operators) verdict.gathered[name] += times;
  return verdict;
}

}  // namespace moonhalo::testing
