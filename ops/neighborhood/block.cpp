// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention of one block: arguments, memory, and on the CPU slabs and threads around the kernels.
#include "moonhalo/ops/neighborhood/block.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/ops/neighborhood/kernels/cuda.h"

namespace moonhalo {
namespace {

using neighborhood::Axis;
using neighborhood::Kernels;
using neighborhood::KernelSet;
using neighborhood::Problem;
using neighborhood::Strided;

// Bytes of packed keys and values that a slab of a single dim aims at, to stay in the second cache. (In more dims a few
// rows are kept packed at a time.)
constexpr int64_t kSlabBytes = int64_t{1} << 18;
// Slabs in all that keep the threads of a machine busy, where slabs can be cut so small.
constexpr int64_t kTasks = 32;

const Kernels& kernels_for(const KernelSet& set, at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return set.float32;
    case at::kDouble:
      return set.float64;
    default:
      return set.bfloat16;
  }
}

neighborhood::cuda::Element element_of(at::ScalarType type) {
  using Element = neighborhood::cuda::Element;
  switch (type) {
    case at::kFloat:
      return Element::kFloat32;
    case at::kDouble:
      return Element::kFloat64;
    case at::kHalf:
      return Element::kFloat16;
    default:
      return Element::kBFloat16;
  }
}

using DeviceKernels = std::array<NeighborhoodDeviceKernels, static_cast<size_t>(c10::COMPILE_TIME_MAX_DEVICE_TYPES)>;
DeviceKernels& all_device_kernels() {
  static DeviceKernels kernels = [] {
    DeviceKernels known;
    known[static_cast<size_t>(c10::kCUDA)] = {neighborhood::cuda::forward, neighborhood::cuda::backward};
    return known;
  }();
  return kernels;
}
const NeighborhoodDeviceKernels& device_kernels(c10::Device device) {
  return all_device_kernels()[static_cast<size_t>(device.type())];
}

at::Tensor features_adjacent(const at::Tensor& tensor) {
  return tensor.size(-1) == 1 || tensor.stride(-1) == 1 ? tensor : tensor.contiguous();
}

int64_t group_queries(const Axis& axis, int64_t group) {
  return neighborhood::rows_before(axis, group, axis.query_begin + axis.queries) -
         neighborhood::rows_before(axis, group, axis.query_begin);
}

// Slab s and slab s + 2 share no key in any group, so every other slab can add to the sums of keys at once.
bool every_other_apart(const Axis& axis, int64_t slab_queries) {
  for (int64_t g = 0; g < axis.dilation; ++g) {
    const int64_t length = neighborhood::rows_before(axis, g, axis.extent), count = group_queries(axis, g);
    const int64_t first = neighborhood::rows_before(axis, g, axis.query_begin);
    for (int64_t q = 2 * slab_queries; q < count; q += slab_queries) {
      const Interval before = neighborhood::window_of(axis, length, first + q - slab_queries - 1);
      if (neighborhood::window_of(axis, length, first + q).begin < before.end) return false;
    }
  }
  return true;
}

// Facts of sizes alone, so that sums are made in the same way by any number of threads.
void choose_slabs(Problem& p, int64_t element_bytes) {
  p.slab_axis = 2;
  for (int i = 1; i >= 0; --i) {
    if (neighborhood::group_rows(p.axes[i], p.axes[i].queries) > 1) p.slab_axis = i;
  }
  const Axis& axis = p.axes[p.slab_axis];
  const int64_t row_bytes = (p.head_dim + p.value_dim) * element_bytes;
  const int64_t count = neighborhood::group_rows(axis, axis.queries);
  const int64_t required = std::max<int64_t>(1, kTasks / std::max<int64_t>(1, p.units()));
  int64_t size = (count + required - 1) / required;
  if (p.slab_axis == 2) size = std::min(size, kSlabBytes / row_bytes - axis.window);
  size = std::clamp<int64_t>(std::max(size, 2 * (axis.window + axis.stride)), 1, std::max<int64_t>(count, 1));
  while (size < count && !every_other_apart(axis, size)) size = std::min(count, 2 * size);
  p.slab_queries = size;
  p.slabs = std::max<int64_t>(1, (count + size - 1) / size);
}

Problem problem_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const NeighborhoodCall& call) {
  Problem p;
  p.batch = query.size(0);
  p.heads = query.size(-2);
  p.head_dim = query.size(-1);
  p.value_dim = value.size(-1);
  std::copy(call.axes.begin(), call.axes.end(), p.axes);
  p.scale = call.scale;
  p.query = neighborhood_strided(query, call.spatial, 1);
  p.key = neighborhood_strided(key, call.spatial, 1);
  p.value = neighborhood_strided(value, call.spatial, 1);
  return p;
}

// Runs `work(unit, part, scratch)` for the parts first, first + step, ... before `end` of every unit: slabs, or strips
// of them. The same part of all heads shares its pages.
template <typename Work>
void for_parts(const Problem& p, int64_t first, int64_t step, int64_t end, int64_t scratch_bytes, const Work& work) {
  const int64_t parts = (end - first + step - 1) / step;
  if (parts <= 0) return;
  parallel_for(0, p.units() * parts, 1, [&](int64_t begin_index, int64_t end_index) {
    const at::Tensor scratch = at::empty({scratch_bytes}, at::kByte);
    for (int64_t i = begin_index; i < end_index; ++i)
      work(i % p.units(), first + i / p.units() * step, scratch.data_ptr());
  });
}

std::vector<int64_t> per_dim(std::vector<int64_t> values, int64_t count, int64_t otherwise) {
  if (values.empty()) values = {otherwise};
  return values.size() == 1 ? std::vector<int64_t>(count, values[0]) : values;
}

}  // namespace

NeighborhoodDeviceKernels register_neighborhood_kernels(c10::DeviceType type,
                                                        const NeighborhoodDeviceKernels& kernels) {
  return std::exchange(all_device_kernels()[static_cast<size_t>(type)], kernels);
}

NeighborhoodCall check_neighborhood(at::IntArrayRef query, at::IntArrayRef key, at::IntArrayRef value,
                                    const Neighborhood& neighborhood, std::optional<double> scale,
                                    const std::string& blocks) {
  constexpr const char* kLayout = " (batch, 1 to 3 dims, heads, head_dim)";
  const auto have = [&] {
    return "\n  have  query " + shape_string(query) + ", key " + shape_string(key) + ", value " + shape_string(value) +
           kLayout + blocks;
  };
  const auto ndim = static_cast<int64_t>(query.size()), spatial = ndim - 3;
  TORCH_CHECK_VALUE(spatial >= 1 && spatial <= 3, "neighborhood_attention: a query of ", ndim, " dims", have(),
                    "\n  fix   give tensors of 4, 5 or 6 dims", kLayout);
  TORCH_CHECK_VALUE(query == key, "neighborhood_attention: query and key differ in shape", have(),
                    "\n  fix   every query needs a key at its own place");
  TORCH_CHECK_VALUE(query.slice(0, ndim - 1) == value.slice(0, std::min<size_t>(ndim - 1, value.size())) &&
                        value.size() == query.size(),
                    "neighborhood_attention: value differs in more than its last dim", have(),
                    "\n  fix   every key needs a value at its own place");
  TORCH_CHECK_VALUE(query.back() > 0, "neighborhood_attention: a head_dim of zero", have());

  NeighborhoodCall call;
  call.spatial = spatial;
  call.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(query.back()));
  const std::vector<int64_t> causal_numbers(neighborhood.is_causal.begin(), neighborhood.is_causal.end());
  TORCH_CHECK_VALUE(!neighborhood.window.empty(), "neighborhood_attention: no window given", have(),
                    "\n  fix   give one number, or one for each of the ", spatial, " dims");
  const auto window = per_dim(neighborhood.window, spatial, 0), stride = per_dim(neighborhood.stride, spatial, 1),
             dilation = per_dim(neighborhood.dilation, spatial, 1), causal = per_dim(causal_numbers, spatial, 0);
  const std::pair<const char*, const std::vector<int64_t>*> lists[] = {
      {"window", &window}, {"stride", &stride}, {"dilation", &dilation}, {"is_causal", &causal}};
  for (const auto& [name, list] : lists) {
    TORCH_CHECK_VALUE(static_cast<int64_t>(list->size()) == spatial, "neighborhood_attention: ", name, " has ",
                      list->size(), " numbers for ", spatial, " dims", have(), "\n  fix   give one number, or ",
                      spatial);
  }
  for (int64_t i = 0; i < spatial; ++i) {
    const int64_t extent = query[i + 1];
    TORCH_CHECK_VALUE(window[i] > 0 && stride[i] > 0 && dilation[i] > 0, "neighborhood_attention: window ", window[i],
                      ", stride ", stride[i], ", dilation ", dilation[i], " along dim ", i + 1, have(),
                      "\n  fix   use positive numbers");
    TORCH_CHECK_VALUE(window[i] <= extent, "neighborhood_attention: window ", window[i], " along dim ", i + 1,
                      " is larger than the domain of ", extent, have(), "\n  fix   use a window of at most ", extent,
                      " there, or pad the field first");
    TORCH_CHECK_VALUE(dilation[i] <= extent / window[i], "neighborhood_attention: window ", window[i], " of dilation ",
                      dilation[i], " along dim ", i + 1, " needs ",
                      static_cast<double>(window[i]) * static_cast<double>(dilation[i]), " rows of the domain's ",
                      extent, have(), "\n  fix   use a dilation of at most ", extent / window[i],
                      ", or a smaller window");
    TORCH_CHECK_VALUE(stride[i] <= window[i], "neighborhood_attention: stride ", stride[i], " along dim ", i + 1,
                      " is larger than the window of ", window[i], have(), "\n  fix   use a stride of at most ",
                      window[i]);
    call.axis(i) = {.extent = extent,
                    .window = window[i],
                    .stride = stride[i],
                    .dilation = dilation[i],
                    .causal = causal[i] != 0,
                    .queries = extent,
                    .keys = extent};
  }
  return call;
}

NeighborhoodCall checked_neighborhood(const NeighborhoodOperand& query, const NeighborhoodOperand& key,
                                      const NeighborhoodOperand& value, at::IntArrayRef window, at::IntArrayRef stride,
                                      at::IntArrayRef dilation, const c10::List<bool>& is_causal,
                                      std::optional<double> scale, const std::string& blocks) {
  const at::ScalarType type = query.type;
  TORCH_CHECK_TYPE(type == key.type && type == value.type, "neighborhood_attention: query is ", type, ", key ",
                   key.type, ", value ", value.type, "\n  fix   convert them to one type");
  TORCH_CHECK_NOT_IMPLEMENTED(!at::isAccelerator(query.device.type()) || device_kernels(query.device).forward,
                              "neighborhood_attention: no kernels for ", query.device,
                              "\n  have  kernels for the CPU and for CUDA",
                              "\n  fix   move query, key and value to the CPU");
  const bool half = type == at::kHalf && !query.device.is_cpu();
  TORCH_CHECK_TYPE(half || type == at::kFloat || type == at::kDouble || type == at::kBFloat16,
                   "neighborhood_attention: no kernel for ", type, " on ", query.device.type(),
                   "\n  fix   use float32, float64 or bfloat16, or float16 on a GPU");
  TORCH_CHECK_VALUE(key.device == query.device && value.device == query.device, "neighborhood_attention: query is on ",
                    query.device, ", key on ", key.device, ", value on ", value.device,
                    "\n  fix   move them to one device");
  return check_neighborhood(
      query.shape, key.shape, value.shape,
      {window.vec(), stride.vec(), dilation.vec(), std::vector<bool>(is_causal.begin(), is_causal.end())}, scale,
      blocks);
}

void check_neighborhood_extras(const char* op, const NeighborhoodOperand& query, const NeighborhoodOperand& value,
                               at::ArrayRef<NeighborhoodExtra> extras) {
  using Like = NeighborhoodExtra::Like;
  for (const auto& [name, like, given] : extras) {
    const at::IntArrayRef shape = like == Like::kValue   ? value.shape
                                  : like == Like::kQuery ? query.shape
                                                         : query.shape.slice(0, query.shape.size() - 1);
    const at::ScalarType required = like == Like::kLogsumexp ? neighborhood_sum_type(query.type) : query.type;
    TORCH_CHECK_VALUE(given.device == query.device, op, ": query is on ", query.device, ", ", name, " on ",
                      given.device, "\n  fix   move them to one device");
    TORCH_CHECK_VALUE(given.shape == shape, op, ": ", name, " has shape ", shape_string(given.shape), " instead of ",
                      shape_string(shape), "\n  have  query ", shape_string(query.shape), ", value ",
                      shape_string(value.shape),
                      "\n  fix   give what the forward call took and returned, and gradients of that");
    TORCH_CHECK_TYPE(given.type == required, op, ": ", name, " is ", given.type, " instead of ", required,
                     "\n  have  query of ", query.type, "\n  fix   convert it to ", required);
  }
}

at::ScalarType neighborhood_sum_type(at::ScalarType query) { return query == at::kDouble ? at::kDouble : at::kFloat; }

std::tuple<at::Tensor, at::Tensor> neighborhood_results(const at::Tensor& query, const at::Tensor& value) {
  std::vector<int64_t> shape = query.sizes().vec();
  shape.pop_back();
  at::Tensor logsumexp = at::empty(shape, query.options().dtype(neighborhood_sum_type(query.scalar_type())));
  shape.push_back(value.size(-1));
  return {empty_block(shape, query.options()), std::move(logsumexp)};
}

Interval keys_reached(const Axis& axis, const Interval& queries) {
  if (queries.begin >= queries.end) return {0, 0};
  Interval reached{axis.extent, 0};
  const auto add = [&](int64_t query) {
    const int64_t group = query % axis.dilation, length = neighborhood::rows_before(axis, group, axis.extent);
    const Interval window = neighborhood::window_of(axis, length, query / axis.dilation);
    reached.begin = std::min(reached.begin, window.begin * axis.dilation + group);
    reached.end = std::max(reached.end, (window.end - 1) * axis.dilation + group + 1);
  };
  // Windows move on with their queries, so a group's first and last query tell.
  for (int64_t i = 0; i < std::min(axis.dilation, queries.end - queries.begin); ++i) {
    add(queries.begin + i);
    add(queries.end - 1 - i);
  }
  return reached;
}

Strided neighborhood_strided(const at::Tensor& tensor, int64_t spatial, int64_t feature_dims) {
  Strided result{tensor.data_ptr(), tensor.stride(0), {0, 0, 0}, tensor.stride(-1 - feature_dims)};
  for (int64_t i = 0; i < spatial; ++i) result.dims[3 - spatial + i] = tensor.stride(i + 1);
  return result;
}

namespace {

int64_t keys_of_query(const NeighborhoodCall& call) {
  int64_t keys = 1;
  for (int64_t i = 0; i < call.spatial; ++i) keys *= call.axis(i).window;
  return keys;
}

void note_backward(const at::Tensor& query, const at::Tensor& key, const NeighborhoodCall& call) {
  note_work("neighborhood_attention_backward", 5 * query.numel() * keys_of_query(call),
            3 * memory_bytes({query}) + 4 * memory_bytes({key}));
}

void forward_into(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, const at::Tensor& output,
                  const at::Tensor& logsumexp, const NeighborhoodCall& call, const std::function<void(Problem&)>& run) {
  if (logsumexp.numel() == 0) return;
  note_work("neighborhood_attention", 2 * query.numel() * keys_of_query(call),
            memory_bytes({query, key, value, output}));
  if (any_fake({query, key, value})) {
    forget_values(output);
    return forget_values(logsumexp);
  }
  const at::Tensor q = features_adjacent(query), k = features_adjacent(key), v = features_adjacent(value);
  Problem p = problem_of(q, k, v, call);
  p.output = neighborhood_strided(output, call.spatial, 1);
  p.logsumexp = neighborhood_strided(logsumexp, call.spatial, 0);
  run(p);
}

// The tensors that the backward reads beside query, key and value, and the gradient that it writes per query.
void set_gradients(Problem& p, const at::Tensor& grad_output, const at::Tensor& grad_logsumexp,
                   const at::Tensor& output, const at::Tensor& logsumexp, const at::Tensor& grad_query,
                   const NeighborhoodCall& call) {
  p.output = neighborhood_strided(output, call.spatial, 1);
  p.logsumexp = neighborhood_strided(logsumexp, call.spatial, 0);
  p.grad_output = neighborhood_strided(grad_output, call.spatial, 1);
  if (grad_logsumexp.defined()) p.grad_logsumexp = neighborhood_strided(grad_logsumexp, call.spatial, 0);
  p.grad_query = neighborhood_strided(grad_query, call.spatial, 1);
}

void run_forward(Problem& p, const at::Tensor& query, const KernelSet& set) {
  const at::ScalarType type = query.scalar_type();
  if (!query.is_cpu()) return device_kernels(query.device()).forward(p, element_of(type), query.get_device());
  const Kernels& kernels = kernels_for(set, type);
  choose_slabs(p, kernels.accumulator_bytes);
  const int64_t strips = kernels.strips(p);
  const auto forward = strips > 0 ? kernels.forward_strip : kernels.forward;
  for_parts(p, 0, 1, p.slabs * std::max<int64_t>(1, strips),
            strips > 0 ? kernels.strip_scratch_bytes(p) : kernels.scratch_bytes(p),
            [&](int64_t unit, int64_t part, void* scratch) { forward(p, unit, part, scratch); });
}

void run_backward(Problem& p, const Kernels& kernels, const at::Tensor& key_sums, const at::Tensor& value_sums) {
  choose_slabs(p, kernels.accumulator_bytes);
  p.key_sums = key_sums.data_ptr();
  p.value_sums = value_sums.data_ptr();
  for (const int64_t first : {0, 1}) {
    for_parts(p, first, 2, p.slabs, kernels.scratch_bytes(p),
              [&](int64_t unit, int64_t slab, void* scratch) { kernels.backward(p, unit, slab, scratch); });
  }
}

std::pair<at::Tensor, at::Tensor> sums_for(const Problem& p, const Kernels& kernels, const at::TensorOptions& options) {
  const int64_t rows = p.units() * neighborhood::unit_keys(p);
  return {empty_block({rows, kernels.padded(p.head_dim)}, options).zero_(),
          empty_block({rows, kernels.padded(p.value_dim)}, options).zero_()};
}

void store_sums(const Problem& p, const Kernels& kernels) {
  parallel_for(0, p.units(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) kernels.store_sums(p, unit);
  });
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> neighborhood_forward_by(const at::Tensor& query, const at::Tensor& key,
                                                           const at::Tensor& value, const NeighborhoodCall& call,
                                                           const std::function<void(Problem&)>& run) {
  const auto [output, logsumexp] = neighborhood_results(query, value);
  forward_into(query, key, value, output, logsumexp, call, run);
  return {output, logsumexp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> neighborhood_backward_by(
    const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& logsumexp, const NeighborhoodCall& call,
    const std::function<void(Problem&)>& run) {
  const auto contiguous = at::MemoryFormat::Contiguous;
  if (logsumexp.numel() == 0) {
    return {at::zeros_like(query, {}, contiguous), at::zeros_like(key, {}, contiguous),
            at::zeros_like(value, {}, contiguous)};
  }
  const at::Tensor q = features_adjacent(query), k = features_adjacent(key), v = features_adjacent(value);
  const at::Tensor grad = features_adjacent(grad_output), out = features_adjacent(output);
  const at::Tensor grad_query = empty_block(query.sizes(), query.options()),
                   grad_key = empty_block(key.sizes(), key.options()),
                   grad_value = empty_block(value.sizes(), value.options());
  note_backward(query, key, call);
  if (any_fake({query, key, value, grad_output, output})) {
    for (const at::Tensor& gradient : {grad_query, grad_key, grad_value}) forget_values(gradient);
    return {grad_query, grad_key, grad_value};
  }
  Problem p = problem_of(q, k, v, call);
  set_gradients(p, grad, grad_logsumexp, out, logsumexp, grad_query, call);
  p.grad_key = neighborhood_strided(grad_key, call.spatial, 1);
  p.grad_value = neighborhood_strided(grad_value, call.spatial, 1);
  run(p);
  return {grad_query, grad_key, grad_value};
}

std::tuple<at::Tensor, at::Tensor> neighborhood_forward(const at::Tensor& query, const at::Tensor& key,
                                                        const at::Tensor& value, const NeighborhoodCall& call,
                                                        const KernelSet& set) {
  return neighborhood_forward_by(query, key, value, call, [&](Problem& p) { run_forward(p, query, set); });
}

void neighborhood_forward_into(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const at::Tensor& output, const at::Tensor& logsumexp, const NeighborhoodCall& call,
                               const KernelSet& set) {
  forward_into(query, key, value, output, logsumexp, call, [&](Problem& p) { run_forward(p, query, set); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> neighborhood_backward(
    const at::Tensor& grad_output, const at::Tensor& grad_logsumexp, const at::Tensor& query, const at::Tensor& key,
    const at::Tensor& value, const at::Tensor& output, const at::Tensor& logsumexp, const NeighborhoodCall& call,
    const KernelSet& set) {
  const at::ScalarType type = query.scalar_type();
  const auto run = [&](Problem& p) {
    if (!query.is_cpu()) {
      const at::Tensor delta = at::empty_like(logsumexp, at::MemoryFormat::Contiguous);
      return device_kernels(query.device())
          .backward(p, neighborhood_strided(delta, call.spatial, 0), element_of(type), query.get_device());
    }
    const Kernels& kernels = kernels_for(set, type);
    const auto [key_sums, value_sums] = sums_for(p, kernels, logsumexp.options());
    run_backward(p, kernels, key_sums, value_sums);
    store_sums(p, kernels);
  };
  return neighborhood_backward_by(grad_output, grad_logsumexp, query, key, value, output, logsumexp, call, run);
}

NeighborhoodGradients::NeighborhoodGradients(const at::Tensor& key, const at::Tensor& value, const KernelSet& set)
    : set_(set), key_(features_adjacent(key)), value_(features_adjacent(value)) {}

void NeighborhoodGradients::add(const at::Tensor& grad_output, const at::Tensor& grad_logsumexp,
                                const at::Tensor& query, const at::Tensor& output, const at::Tensor& logsumexp,
                                const at::Tensor& grad_query, const NeighborhoodCall& call) {
  if (logsumexp.numel() == 0) return;
  const at::Tensor q = features_adjacent(query), grad = features_adjacent(grad_output), out = features_adjacent(output);
  Problem& p = problem_;
  p = problem_of(q, key_, value_, call);
  set_gradients(p, grad, grad_logsumexp, out, logsumexp, grad_query, call);
  if (!query.is_cpu()) return add_on_device(p, logsumexp, call);
  const Kernels& kernels = kernels_for(set_, query.scalar_type());
  if (!grad_key_.defined()) {
    grad_key_ = empty_block(key_.sizes(), key_.options());
    grad_value_ = empty_block(value_.sizes(), value_.options());
    std::tie(key_sums_, value_sums_) = sums_for(p, kernels, logsumexp.options());
  }
  p.grad_key = neighborhood_strided(grad_key_, call.spatial, 1);
  p.grad_value = neighborhood_strided(grad_value_, call.spatial, 1);
  note_backward(query, key_, call);
  if (any_fake({query, key_, value_, grad_output, output})) {
    for (const at::Tensor& gradient : {grad_query, grad_key_, grad_value_}) forget_values(gradient);
  } else {
    run_backward(p, kernels, key_sums_, value_sums_);
  }
}

// The kernels of devices write whole sums.
void NeighborhoodGradients::add_on_device(Problem& p, const at::Tensor& logsumexp, const NeighborhoodCall& call) {
  const at::Tensor of_key = at::empty_like(key_, at::MemoryFormat::Contiguous),
                   of_value = at::empty_like(value_, at::MemoryFormat::Contiguous),
                   delta = at::empty_like(logsumexp, at::MemoryFormat::Contiguous);
  p.grad_key = neighborhood_strided(of_key, call.spatial, 1);
  p.grad_value = neighborhood_strided(of_value, call.spatial, 1);
  device_kernels(key_.device())
      .backward(p, neighborhood_strided(delta, call.spatial, 0), element_of(key_.scalar_type()), key_.get_device());
  grad_key_ = grad_key_.defined() ? grad_key_.add_(of_key) : of_key;
  grad_value_ = grad_value_.defined() ? grad_value_.add_(of_value) : of_value;
}

std::tuple<at::Tensor, at::Tensor> NeighborhoodGradients::finish() {
  if (!grad_key_.defined()) {
    return {at::zeros_like(key_, {}, at::MemoryFormat::Contiguous),
            at::zeros_like(value_, {}, at::MemoryFormat::Contiguous)};
  }
  if (key_sums_.defined() && !is_fake(grad_key_)) store_sums(problem_, kernels_for(set_, key_.scalar_type()));
  return {std::move(grad_key_), std::move(grad_value_)};
}

}  // namespace moonhalo
