// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/training/gradient_sync.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/comm/device/ordered_reduction.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/reduction_kernels.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/exchange/equal_copies.h"
#include "moonhalo/engine/model/model_context.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/front_parameters.h"
#include "moonhalo/engine/tensor/shard_tensor_impl.h"
#include "moonhalo/engine/training/local_loss_mesh.h"
#include "moonhalo/engine/training/unit_reducer.h"

namespace moonhalo {
namespace {

constexpr int64_t kSmallBytes = 256 << 10;
constexpr int64_t kMessageBytes = 128 << 10;  // what may be sent more for one message less

// A gradient and one mesh dim that it is to be summed over.
struct PartialGrad {
  at::Tensor grad;
  int64_t mesh_dim;
  ReduceOp op;
  SpecPtr leaf;     // null: the sum is required whole
  int64_t cut = 0;  // else the dim along which the leaf is cut there
  std::optional<at::ScalarType> reduce_dtype = {};
  std::shared_ptr<const SumHooks> hooks = {};
};

// True if the leaf's cut of a dim is that of this mesh dim alone, so that its blocks are rows of the gradient's.
std::optional<int64_t> dim_cut_by(const ShardSpec& leaf, const ShardSpec& grad, int64_t mesh_dim) {
  for (int64_t d = 0; d < leaf.ndim(); ++d) {
    if (leaf.cut(d).mesh_dims == std::vector<int64_t>{mesh_dim} && !grad.is_cut(d)) return d;
  }
  return std::nullopt;
}

// Dims that cut the leaf come first: what is left to be summed over the others is a block. Dims of one rank, whose sums
// cost nothing, come last.
std::vector<PartialGrad> find_partials(const std::vector<at::Tensor>& parameters,
                                       const GradientSyncOptions& options = {}) {
  std::vector<PartialGrad> scattered, reduced;
  std::set<const void*> seen;
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& grad = parameter.grad();
    if (!is_shard_tensor(grad) || !spec(grad)->has_partial() || !seen.insert(grad.unsafeGetTensorImpl()).second)
      continue;
    const SpecPtr leaf = is_shard_tensor(parameter) ? spec(parameter) : nullptr;
    const bool one_mesh = leaf && leaf->mesh() == spec(grad)->mesh();
    auto [bucket_bytes, reduce_dtype, hooks] = options;
    if (const auto unit = UnitReducer::of(parameter)) {
      if (!reduce_dtype) reduce_dtype = unit->options().reduce_dtype;
      if (!hooks) hooks = unit->options().hooks;
    }
    for (int64_t m = 0; m < spec(grad)->mesh()->ndim(); ++m) {
      const auto& op = spec(grad)->partial(m);
      if (!op) continue;
      const auto cut = one_mesh ? dim_cut_by(*leaf, *spec(grad), m) : std::nullopt;
      if (cut) {
        scattered.push_back({grad, m, *op, leaf, *cut, reduce_dtype, hooks});
      } else {
        reduced.push_back({grad, m, *op, nullptr, 0, reduce_dtype, hooks});
      }
    }
  }
  scattered.insert(scattered.end(), reduced.begin(), reduced.end());
  std::stable_partition(scattered.begin(), scattered.end(),
                        [](const PartialGrad& one) { return spec(one.grad)->mesh()->size(one.mesh_dim) > 1; });
  return scattered;
}

bool same_bucket(const PartialGrad& a, const PartialGrad& b) {
  return a.mesh_dim == b.mesh_dim && a.op == b.op && (a.leaf == nullptr) == (b.leaf == nullptr) &&
         spec(a.grad)->mesh() == spec(b.grad)->mesh() && a.grad.scalar_type() == b.grad.scalar_type() &&
         a.grad.device() == b.grad.device() && a.reduce_dtype == b.reduce_dtype && a.hooks == b.hooks;
}

const at::Tensor& block_of(const PartialGrad& one) { return shard_impl(one.grad)->local(); }

// Returns the number of rows that a rank keeps of each gradient.
std::vector<int64_t> sizes_of(const std::vector<PartialGrad>& bucket, int rank) {
  std::vector<int64_t> sizes;
  for (const PartialGrad& one : bucket) sizes.push_back(one.leaf->cut(one.cut).sizes[rank]);
  return sizes;
}

// The rows of a gradient that each rank keeps. Rows of the first dim are numbers in a row, which are not looked at
// rank by rank.
std::vector<at::Tensor> rows_by_rank(const PartialGrad& one) {
  const at::Tensor& block = block_of(one);
  std::vector<int64_t> sizes = one.leaf->cut(one.cut).sizes;
  if (one.cut > 0 || !block.is_contiguous()) return split_block(block, sizes, one.cut);
  const int64_t row = c10::multiply_integers(block.sizes().slice(1));
  for (int64_t& size : sizes) size *= row;
  return split_block(block.view({-1}), sizes);
}

// The shape of what this rank keeps of a gradient.
std::vector<int64_t> kept_shape(const PartialGrad& one, const Communicator& group) {
  std::vector<int64_t> shape = block_of(one).sizes().vec();
  if (one.leaf) shape[one.cut] = one.leaf->cut(one.cut).sizes[group.rank()];
  return shape;
}

// The blocks of all gradients one behind the other; where leaves are cut, first the rows of the first rank of all of
// them. `counts`: elements by rank, `shapes`: of what this rank keeps.
at::Tensor pack(const std::vector<PartialGrad>& bucket, const Communicator& group, std::vector<int64_t>& counts,
                std::vector<std::vector<int64_t>>& shapes) {
  const bool cut = bucket[0].leaf != nullptr;
  const int ranks = cut ? group.size() : 1;
  std::vector<std::vector<at::Tensor>> rows;
  for (const PartialGrad& one : bucket) {
    shapes.push_back(kept_shape(one, group));
    rows.push_back(cut ? rows_by_rank(one) : std::vector{block_of(one)});
  }
  counts.assign(group.size(), 0);
  const auto calls = calls_by_rank(group, ranks, [&](int rank) { return sizes_of(bucket, rank); });
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const std::vector<at::Tensor>& of_grad : rows) {
      at::Tensor part = of_grad[rank];
      counts[rank] += part.numel();
      if (part.dim() != 1) {
        const SeenAs seen(calls[rank]);
        part = part.reshape({-1});
      }
      parts.push_back(std::move(part));
    }
  }
  return at::cat(parts);
}

// The spec of a gradient when it is summed.
SpecPtr summed_spec(const PartialGrad& one) {
  Layout layout = spec(one.grad)->layout();
  layout.partials[one.mesh_dim].reset();
  if (one.leaf) {
    layout.cuts[one.cut] = one.leaf->cut(one.cut);
    layout.stored |= one.leaf->layout().stored & uint64_t{1} << one.mesh_dim;
  }
  return intern(std::move(layout));
}

void unpack(const std::vector<PartialGrad>& bucket, const at::Tensor& flat,
            const std::vector<std::vector<int64_t>>& shapes) {
  int64_t start = 0;
  for (size_t i = 0; i < bucket.size(); ++i) {
    const int64_t count = c10::multiply_integers(shapes[i]);
    // A bucket of one keeps its memory; the parts of others must not keep the whole bucket alive.
    at::Tensor part = flat.narrow(0, start, count).view(shapes[i]);
    shard_impl(bucket[i].grad)->replace(bucket.size() == 1 ? part : part.clone(), summed_spec(bucket[i]));
    start += count;
  }
}

// The call's tag and text go with what the function sends.
template <typename Send>
void in_scope(const std::vector<PartialGrad>& bucket, const Send& send) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::vector<at::Tensor> grads;
  for (const PartialGrad& one : bucket) grads.push_back(one.grad);
  const auto describe = [&grads] { return specs_of(grads); };
  const CallScope scope(fingerprint_of(grads), "reduce_gradients", describe);
  const TrafficScope moving(Traffic::kGradients);
  send();
}

bool is_half(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

// Returns the type that a bucket is summed in: double stays.
at::ScalarType sum_dtype(at::ScalarType dtype, const std::optional<at::ScalarType>& reduce_dtype) {
  if (!reduce_dtype) return dtype;
  return is_half(dtype) || (dtype == at::kFloat && is_half(*reduce_dtype)) ? *reduce_dtype : dtype;
}

}  // namespace

// Gradients that are summed in one message, from packing to the new blocks.
struct PendingGradientSync::Bucket {
  std::vector<PartialGrad> grads;
  Communicator& group;
  std::vector<int64_t> counts = {};               // elements by rank; of a sum that is required whole: none
  std::vector<std::vector<int64_t>> shapes = {};  // of what this rank keeps
  at::Tensor flat = {};
  std::vector<at::Tensor> addends = {};  // by rank, of this rank's part
  WorkPtr work = nullptr;

  explicit Bucket(std::vector<PartialGrad> waiting)
      : grads(std::move(waiting)), group(spec(grads[0].grad)->mesh()->group(grads[0].mesh_dim)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    flat = pack(grads, group, counts, shapes);
    flat = flat.to(sum_dtype(flat.scalar_type(), grads[0].reduce_dtype));
    if (hooks() && hooks()->before) hooks()->before(flat);
  }

  const std::shared_ptr<const SumHooks>& hooks() const { return grads[0].hooks; }

  bool scatters() const { return grads[0].leaf != nullptr; }
  // True if all ranks send all their addends in one message, instead of parts and then sums in two. The bits are the
  // same.
  bool is_small() const {
    const auto bytes = static_cast<int64_t>(flat.nbytes());
    return bytes <= kSmallBytes && bytes * (group.size() - 2) * (group.size() - 1) <= kMessageBytes * group.size();
  }

  void reduce() {
    in_scope(grads, [&] {
      if (scatters()) {
        at::Tensor mine = at::empty({counts[group.rank()]}, flat.options());
        group.reduce_scatter(flat, counts, mine, grads[0].op);
        flat = mine;
      } else if (is_small()) {
        at::Tensor all = at::empty({flat.numel() * group.size()}, flat.options());
        group.all_gather(flat, std::vector<int64_t>(group.size(), flat.numel()), all);
        add_up(all.tensor_split(group.size()), flat);
      } else {
        group.all_reduce(flat, grads[0].op);
      }
    });
    put_back();
  }

  void post() {
    const std::vector<int64_t> parts = scatters() ? counts : balanced_sizes(flat.numel(), group.size());
    const int64_t mine = parts[group.rank()];
    addends = split_block(at::empty({(group.size() - 1) * mine}, flat.options()), std::vector(group.size() - 1, mine));
    const std::vector<at::Tensor> own = split_block(flat, parts);
    addends.insert(addends.begin() + group.rank(), own[group.rank()]);
    std::vector<Message> sends, receives;
    for (int rank = 0; rank < group.size(); ++rank) {
      if (rank == group.rank()) continue;
      if (parts[rank] > 0) sends.push_back({rank, own[rank]});
      if (mine > 0) receives.push_back({rank, addends[rank]});
    }
    in_scope(grads, [&] { work = group.exchange_async(std::move(sends), std::move(receives)); });
  }

  void finish() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    work->wait();
    at::Tensor mine = at::empty_like(addends[0]);
    mine.resize_({addends[group.rank()].numel()});
    add_up(addends, mine);
    addends.clear();
    if (scatters()) {
      flat = mine;
    } else {
      in_scope(grads, [&] { group.all_gather(mine, balanced_sizes(flat.numel(), group.size()), flat); });
    }
    put_back();
  }

  // The kernels are for memory of the host.
  void add_up(const std::vector<at::Tensor>& parts, at::Tensor& sum) const {
    if (sum.is_cpu()) {
      reduce_tensors(grads[0].op, parts, sum);
    } else {
      sum.copy_(reduced_in_order(grads[0].op, parts));
    }
  }

  void put_back() {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (hooks() && hooks()->after) hooks()->after(flat);
    unpack(grads, flat.to(grads[0].grad.scalar_type()), shapes);
  }
};

namespace {

// One bucket after the other of those that wait; what is left over waits for the next round.
std::vector<std::vector<PartialGrad>> buckets_of(std::vector<PartialGrad> waiting, int64_t bucket_bytes) {
  std::vector<std::vector<PartialGrad>> buckets;
  while (!waiting.empty()) {
    std::vector<PartialGrad> bucket, rest;
    int64_t bytes = 0;
    for (PartialGrad& one : waiting) {
      const auto size = static_cast<int64_t>(block_of(one).nbytes());
      const bool fits = bucket.empty() || (same_bucket(bucket[0], one) && bytes + size <= bucket_bytes);
      if (fits) bytes += size;
      (fits ? bucket : rest).push_back(std::move(one));
    }
    buckets.push_back(std::move(bucket));
    waiting = std::move(rest);
  }
  return buckets;
}

// Over a mesh dim of one rank the sum of a gradient is the gradient. It is copied where others have its memory.
bool take_alone(const PartialGrad& one) {
  const at::ScalarType dtype = one.grad.scalar_type();
  if (spec(one.grad)->mesh()->size(one.mesh_dim) > 1 || one.hooks || sum_dtype(dtype, one.reduce_dtype) != dtype)
    return false;
  ShardTensorImpl* impl = shard_impl(one.grad);
  const at::Tensor& local = impl->local();
  const bool own = local.use_count() == 1 && local.storage().use_count() == 1 && local.is_contiguous();
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  impl->replace(own ? local : local.clone(at::MemoryFormat::Contiguous), summed_spec(one));
  return true;
}

void check_in_use(const std::vector<at::Tensor>& parameters) {
  const auto& replaced = model_context->replaced;
  if (replaced.empty()) return;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto found = replaced.find(parameters[i].unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(found == replaced.end() || found->second.expired(), "parameter ", i + 1, " of ",
                      parameters.size(), ", of shape ", parameters[i].sizes(),
                      ", is no longer the module's: fully_shard or replicate has put another in its place",
                      "\n  fix   make the optimizer after fully_shard and replicate");
  }
}

}  // namespace

void note_replaced(const at::Tensor& parameter) {
  auto& replaced = model_context->replaced;
  std::erase_if(replaced, [](const auto& entry) { return entry.second.expired(); });
  replaced.emplace(parameter.unsafeGetTensorImpl(), parameter.getIntrusivePtr());
}

PendingGradientSync::PendingGradientSync(const std::vector<at::Tensor>& parameters, bool copies,
                                         const GradientSyncOptions& options) {
  std::vector<PartialGrad> waiting = find_partials(parameters, options);
  std::set<const void*> seen;
  std::erase_if(waiting, [&](const PartialGrad& one) {
    if (one.leaf == nullptr && !copies) return true;
    return !seen.insert(one.grad.unsafeGetTensorImpl()).second;
  });
  for (const at::Tensor& parameter : parameters) {
    if (seen.erase(parameter.grad().unsafeGetTensorImpl()) == 0) continue;
    taken_.emplace_back(parameter, parameter.grad());
    parameter.mutable_grad() = at::Tensor();
  }
  for (std::vector<PartialGrad>& bucket : buckets_of(std::move(waiting), options.bucket_bytes)) {
    buckets_.push_back(std::make_unique<Bucket>(std::move(bucket)));
    buckets_.back()->post();
  }
}

PendingGradientSync::~PendingGradientSync() = default;

void PendingGradientSync::finish() {
  const c10::AutoGradMode no_grad(false);
  for (const auto& bucket : buckets_) bucket->finish();
  buckets_.clear();
  for (auto& [parameter, grad] : taken_) {
    at::Tensor& now = parameter.mutable_grad();
    now = now.defined() ? grad.add_(now) : grad;
  }
  taken_.clear();
}

void finish_grad_sync(const std::vector<at::Tensor>& parameters, const GradientSyncOptions& options) {
  check_in_use(parameters);
  check_no_own_data(parameters);
  average_local_gradients(parameters);
  std::vector<PartialGrad> waiting = find_partials(parameters, options);
  std::erase_if(waiting, take_alone);
  for (std::vector<PartialGrad>& bucket : buckets_of(std::move(waiting), options.bucket_bytes))
    PendingGradientSync::Bucket(std::move(bucket)).reduce();
}

bool awaits_gradient_sync(const std::vector<at::Tensor>& parameters) { return !find_partials(parameters).empty(); }

}  // namespace moonhalo
