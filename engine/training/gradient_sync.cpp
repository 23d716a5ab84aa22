// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/gradient_sync.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "moonhalo/engine/comm/call_tag.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/gradient_hooks.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"

namespace moonhalo {
namespace {

// A gradient and one mesh dim that it is to be summed over.
struct PartialGrad {
  at::Tensor grad;
  int64_t mesh_dim;
  ReduceOp op;
  SpecPtr leaf;     // null: the sum is wanted whole
  int64_t cut = 0;  // else the dim along which the leaf is cut there
};

// True if the leaf's cut of a dim is that of this mesh dim alone, so that its blocks are rows of the gradient's.
std::optional<int64_t> dim_cut_by(const ShardSpec& leaf, const ShardSpec& grad, int64_t mesh_dim) {
  for (int64_t d = 0; d < leaf.ndim(); ++d) {
    if (leaf.cut(d).mesh_dims == std::vector<int64_t>{mesh_dim} && !grad.is_cut(d)) return d;
  }
  return std::nullopt;
}

// Dims that cut the leaf come first: what is left to be summed over the others is a block.
std::vector<PartialGrad> find_partials(const std::vector<at::Tensor>& parameters) {
  std::vector<PartialGrad> scattered, reduced;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& grad = parameter.grad();
    if (!is_shard_tensor(grad) || !seen.insert(grad.unsafeGetTensorImpl()).second) continue;
    const SpecPtr leaf = is_shard_tensor(parameter) ? spec(parameter) : nullptr;
    const bool one_mesh = leaf && leaf->mesh() == spec(grad)->mesh();
    for (int64_t m = 0; m < spec(grad)->mesh()->ndim(); ++m) {
      const auto& op = spec(grad)->partial(m);
      if (!op) continue;
      const auto cut = one_mesh ? dim_cut_by(*leaf, *spec(grad), m) : std::nullopt;
      if (cut) {
        scattered.push_back({grad, m, *op, leaf, *cut});
      } else {
        reduced.push_back({grad, m, *op, nullptr});
      }
    }
  }
  scattered.insert(scattered.end(), reduced.begin(), reduced.end());
  return scattered;
}

bool same_bucket(const PartialGrad& a, const PartialGrad& b) {
  return a.mesh_dim == b.mesh_dim && a.op == b.op && (a.leaf == nullptr) == (b.leaf == nullptr) &&
         spec(a.grad)->mesh() == spec(b.grad)->mesh() && a.grad.scalar_type() == b.grad.scalar_type() &&
         a.grad.device() == b.grad.device();
}

const at::Tensor& block_of(const PartialGrad& one) { return shard_impl(one.grad)->local(); }

// The blocks of all gradients one behind the other; where leaves are cut, first the rows of the first rank of all of
// them. `counts`: elements by rank, `shapes`: of what this rank keeps.
at::Tensor pack(const std::vector<PartialGrad>& bucket, const Communicator& group, std::vector<int64_t>& counts,
                std::vector<std::vector<int64_t>>& shapes) {
  std::vector<at::Tensor> parts;
  const bool cut = bucket[0].leaf != nullptr;
  std::vector<int64_t> begins(bucket.size(), 0);
  counts.assign(group.size(), 0);
  for (int rank = 0; rank < (cut ? group.size() : 1); ++rank) {
    for (size_t i = 0; i < bucket.size(); ++i) {
      const PartialGrad& one = bucket[i];
      at::Tensor part = block_of(one);
      if (cut) {
        const int64_t rows = one.leaf->cut(one.cut).sizes[rank];
        part = part.narrow(one.cut, std::exchange(begins[i], begins[i] + rows), rows);
      }
      counts[rank] += part.numel();
      if (!cut || rank == group.rank()) shapes.push_back(part.sizes().vec());
      parts.push_back(part.reshape({-1}));
    }
  }
  return at::cat(parts);
}

void unpack(const std::vector<PartialGrad>& bucket, const at::Tensor& flat,
            const std::vector<std::vector<int64_t>>& shapes) {
  int64_t start = 0;
  for (size_t i = 0; i < bucket.size(); ++i) {
    ShardTensorImpl* impl = shard_impl(bucket[i].grad);
    Layout layout = impl->spec()->layout();
    layout.partials[bucket[i].mesh_dim].reset();
    if (const SpecPtr& leaf = bucket[i].leaf) {
      layout.cuts[bucket[i].cut] = leaf->cut(bucket[i].cut);
      layout.stored |= leaf->layout().stored & uint64_t{1} << bucket[i].mesh_dim;
    }
    const int64_t count = c10::multiply_integers(shapes[i]);
    // A bucket of one keeps its memory; the parts of others must not keep the whole bucket alive.
    at::Tensor part = flat.narrow(0, start, count).view(shapes[i]);
    impl->replace(bucket.size() == 1 ? part : part.clone(), intern(std::move(layout)));
    start += count;
  }
}

void reduce_bucket(const std::vector<PartialGrad>& bucket, const GradientSyncOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  uint64_t tag = 0;
  for (const PartialGrad& one : bucket) {
    tag = combine_tag(combine_tag(tag, tag_of(*spec(one.grad))),
                      CallLog::of_this_thread().shared_origin(shard_impl(one.grad)->origin));
  }
  const auto describe = [&bucket] {
    std::string text;
    for (const PartialGrad& one : bucket) text += (text.empty() ? "" : "; ") + spec(one.grad)->to_string();
    return text;
  };
  const CallScope scope(tag, "reduce_gradients", describe);
  Communicator& group = spec(bucket[0].grad)->mesh()->group(bucket[0].mesh_dim);
  std::vector<int64_t> counts;
  std::vector<std::vector<int64_t>> shapes;
  at::Tensor flat = pack(bucket, group, counts, shapes);
  const at::ScalarType dtype = flat.scalar_type();
  const bool is_half = dtype == at::kHalf || dtype == at::kBFloat16;
  if (is_half && options.reduce_dtype) flat = flat.to(*options.reduce_dtype);
  if (options.before) options.before(flat);
  if (bucket[0].leaf) {
    at::Tensor mine = at::empty({counts[group.rank()]}, flat.options());
    group.reduce_scatter(flat, counts, mine, bucket[0].op);
    flat = mine;
  } else {
    group.all_reduce(flat, bucket[0].op);
  }
  if (options.after) options.after(flat);
  unpack(bucket, flat.to(dtype), shapes);
}

}  // namespace

void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options) {
  std::vector<PartialGrad> waiting = find_partials(parameters);
  while (!waiting.empty()) {
    std::vector<PartialGrad> bucket, rest;
    int64_t bytes = 0;
    for (PartialGrad& one : waiting) {
      const auto size = static_cast<int64_t>(block_of(one).nbytes());
      // A gradient's second mesh dim waits for the next round.
      const bool fits = bucket.empty() || (same_bucket(bucket[0], one) && bytes + size <= options.bucket_bytes);
      if (fits) bytes += size;
      (fits ? bucket : rest).push_back(std::move(one));
    }
    reduce_bucket(bucket, options);
    waiting = std::move(rest);
  }
}

void set_requires_gradient_sync(const std::vector<at::Tensor>& parameters, bool sync) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.requires_grad() && is_shard_tensor(parameter)) keep_gradient_sums(parameter, !sync);
  }
}

bool awaits_gradient_sync(const std::vector<at::Tensor>& parameters) { return !find_partials(parameters).empty(); }

}  // namespace moonhalo
