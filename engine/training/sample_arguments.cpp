// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/sample_arguments.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/dispatch/check_replicated.h"
#include "moonhalo/engine/exchange/replicated_values.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/tensor/embed_in_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"

namespace moonhalo {
namespace {

// The ranks compare these numbers of each argument.
struct Claim {
  int64_t values, numel, rows, first_rows;
};
constexpr int64_t kWords = sizeof(Claim) / sizeof(int64_t);

Claim claim_of(const SampleArgument& one, int64_t first_rows) {
  const at::Tensor block = is_shard_tensor(one.tensor) ? to_local(one.tensor) : one.tensor;
  return {checksum(block), has_values(block) ? block.numel() : 0, one.tensor.dim() > 0 ? one.tensor.size(0) : 1,
          first_rows};
}

// The claims of all ranks about all arguments: [rank][argument].
std::vector<std::vector<Claim>> gather(const std::vector<SampleArgument>& arguments, Communicator& group) {
  int64_t first_rows = -1;
  std::vector<int64_t> mine;
  for (const SampleArgument& one : arguments) {
    if (meaning_of(one.tensor).said == Said::kNothing && one.tensor.dim() > 0 && first_rows < 0)
      first_rows = one.tensor.size(0);
    const Claim claim = claim_of(one, first_rows);
    mine.insert(mine.end(), {claim.values, claim.numel, claim.rows, claim.first_rows});
  }
  const at::Tensor all = group.facts_of_all(at::tensor(mine, at::kLong));
  const auto* given = all.const_data_ptr<int64_t>();
  std::vector<std::vector<Claim>> claims(group.size());
  for (std::vector<Claim>& of_rank : claims) {
    for (size_t i = 0; i < arguments.size(); ++i, given += kWords)
      of_rank.push_back({given[0], given[1], given[2], given[3]});
  }
  return claims;
}

}  // namespace

at::Tensor constant_of_samples(const at::Tensor& tensor, const MeshPtr& data) {
  const MeshPtr mesh = whole_mesh(data);
  if (!is_shard_tensor(tensor)) return from_local(tensor, replicated(mesh, tensor.sizes()));
  const MeshPtr& own = spec(tensor)->mesh();
  const std::vector<int64_t> has = dims_of_slice(*mesh, *own);
  if (own == mesh || has.empty()) return tensor;
  return embed_in_mesh(tensor, mesh, std::vector<Placement>(mesh->ndim() - static_cast<int64_t>(has.size())));
}

bool check_sample_arguments(const std::vector<SampleArgument>& arguments, const MeshPtr& data, const std::string& who) {
  const MeshPtr mesh = whole_mesh(data);
  if (data->size() == 1 || mesh->group().is_fake() || arguments.empty()) return true;
  const c10::AutoGradMode no_grad(false);
  const ScopedStatsPause stats_pause;
  const auto claims = gather(arguments, mesh->group());
  const std::vector<int64_t> dims = dims_of_slice(*mesh, *data);
  // Ranks that differ along other dims may hold other rows of the same samples.
  const auto first_along_data = [&](int64_t rank) {
    for (int64_t other = 0;; ++other) {
      bool along = true;
      for (int64_t m = 0; m < mesh->ndim() && along; ++m) {
        const bool is_data = std::find(dims.begin(), dims.end(), m) != dims.end();
        along = is_data || mesh->coordinate(other, m) == mesh->coordinate(rank, m);
      }
      if (along) return other;
    }
  };
  bool seen = true;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const SampleArgument& one = arguments[i];
    bool same = true, empty = true;
    std::string other_rows;
    for (int64_t rank = 0; rank < mesh->size(); ++rank) {
      const Claim &claim = claims[rank][i], &first = claims[first_along_data(rank)][i];
      same = same && claim.values == first.values;
      empty = empty && claim.numel == 0;
      if (claim.rows != claim.first_rows && other_rows.empty()) {
        other_rows = std::to_string(claim.rows) + " rows where the first has " + std::to_string(claim.first_rows) +
                     ", on rank " + std::to_string(rank);
      }
    }
    const Said said = meaning_of(one.tensor).said;
    if (said == Said::kConstant || one.tensor.dim() == 0) {
      if (!same && !is_shard_tensor(one.tensor))
        expect_replicated(one.tensor, mesh, who + ": " + one.name + ", a constant");
      continue;
    }
    if (said == Said::kOwn) continue;
    TORCH_CHECK_VALUE(other_rows.empty(), who, ": ", one.name,
                      " has another number of rows than the first tensor, so its rows seem to be no samples",
                      "\n  have  ", other_rows, fix(Remedy::kMarkArgument));
    TORCH_CHECK_VALUE(!same || empty, who, ": ", one.name, " is the same on all ", data->size(),
                      " ranks, and its rows would count as samples of each", "\n  have  a plain tensor of shape ",
                      shape_string(one.tensor.sizes()), fix(Remedy::kMarkArgument));
    seen = seen && !empty;
  }
  return seen;
}

}  // namespace moonhalo
