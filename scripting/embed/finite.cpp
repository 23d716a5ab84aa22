// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/embed/finite.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/exchange/interval_map.h"
#include "moonhalo/engine/tensor/shard_tensor.h"

namespace moonhalo::scripting {
namespace {

const char* word(double value) { return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; }

/// One pass that makes no tensor of the block's size: a NaN is the smallest and the largest of its block.
bool all_finite(const at::Tensor& real) {
  if (real.numel() == 0) return true;
  const auto [low, high] = at::aminmax(real);
  return std::isfinite(low.item<double>()) && std::isfinite(high.item<double>());
}

}  // namespace

std::string not_finite(const char* what, std::span<const double> numbers) {
  const auto found = std::find_if(numbers.begin(), numbers.end(), [](double value) { return !std::isfinite(value); });
  if (found == numbers.end()) return "";
  return what + (" " + std::to_string(found - numbers.begin() + 1)) + " is " + word(*found);
}

std::string not_finite(const std::string& name, const at::Tensor& field) {
  if (!field.is_floating_point() && !field.is_complex()) return "";
  const at::NoGradGuard plain;
  const at::Tensor block = to_local(field).detach();
  const at::Tensor real = block.is_complex() ? at::view_as_real(block) : block;
  if (all_finite(real)) return "";
  const at::Tensor place = at::isfinite(real).logical_not().nonzero()[0];
  at::Tensor value = real;
  std::vector<int64_t> index;
  const Box box = block_box(*spec(field), static_cast<int>(spec(field)->mesh()->rank()));
  for (int64_t d = 0; d < real.dim(); ++d) {
    const int64_t row = place[d].item<int64_t>();
    value = value[row];
    if (d < block.dim()) index.push_back(row + box[d].begin);
  }
  return "field '" + name + "' is " + word(value.item<double>()) + " at " + shape_string(index);
}

void refuse_together(Communicator& world, mh_status status, const std::string& what, const std::string& mine,
                     const std::string& when) {
  const ScopedStatsPause stats_pause;
  at::Tensor any = at::full({1}, int64_t{mine.empty() ? 0 : 1}, at::kLong);
  world.all_reduce(any, ReduceOp::kMax);
  if (any.item<int64_t>() == 0) return;
  const std::vector<std::string> all = world.all_gather_strings(mine);
  const auto first = std::find_if(all.begin(), all.end(), [](const std::string& text) { return !text.empty(); });
  const std::string of = " of " + std::to_string(world.size());
  const std::string rank = world.size() == 1 ? "" : "\n  rank  " + std::to_string(first - all.begin()) + of;
  throw HostError(status, what + ": " + *first + " " + when +
                              "\n  have  a session with check_finite\n  fix   look for what made it: a time step too "
                              "long, a learning rate too large, a division by 0" +
                              rank);
}

}  // namespace moonhalo::scripting
