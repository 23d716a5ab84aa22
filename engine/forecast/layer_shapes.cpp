// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/shape_rules.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "moonhalo/engine/forecast/convolution_memory.h"
#include "moonhalo/engine/forecast/work_space.h"

namespace moonhalo {
namespace {

// An entry of a list that may have one number for all dims.
int64_t entry(const std::vector<int64_t>& list, size_t i) { return list.size() == 1 ? list[0] : list.at(i); }

// As LibTorch's kernels of the CPU choose it: channels last where the input or the weight is, but not for float64.
at::MemoryFormat convolution_format(const at::Tensor& input, const at::Tensor& weight) {
  if (input.scalar_type() == at::kDouble || weight.scalar_type() == at::kDouble) return at::MemoryFormat::Contiguous;
  const auto last = input.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
  return input.suggest_memory_format() == last || weight.suggest_memory_format() == last ? last
                                                                                         : at::MemoryFormat::Contiguous;
}

// Arguments from `first` on: stride, padding, dilation, transposed, output padding, groups. The result has no sizes
// yet.
ConvolutionShape convolution_shape(const ShapeCall& call, size_t first, const at::Tensor& x, const at::Tensor& w) {
  ConvolutionShape shape{x.sizes().vec(), w.sizes().vec()};
  for (size_t i = 0; i + 2 < shape.x.size(); ++i) {
    shape.stride.push_back(entry(call.ints(first), i));
    shape.padding.push_back(entry(call.ints(first + 1), i));
    shape.dilation.push_back(entry(call.ints(first + 2), i));
    shape.output_padding.push_back(entry(call.ints(first + 4), i));
  }
  shape.transposed = call.value(first + 3).toBool();
  shape.groups = call.value(first + 5).toInt();
  shape.dtype = x.scalar_type();
  return shape;
}

void convolution(ShapeCall& call) {
  const at::Tensor &x = call.tensor(0), &w = call.tensor(1);
  ConvolutionShape shape = convolution_shape(call, 3, x, w);
  shape.y = {x.size(0), shape.transposed ? w.size(1) * shape.groups : w.size(0)};
  for (size_t i = 0; i < shape.stride.size(); ++i) {
    const int64_t rows = shape.x[2 + i], reach = (shape.weight[2 + i] - 1) * shape.dilation[i];
    const int64_t pads = 2 * shape.padding[i];
    shape.y.push_back(shape.transposed ? (rows - 1) * shape.stride[i] - pads + reach + shape.output_padding[i] + 1
                                       : (rows + pads - reach - 1) / shape.stride[i] + 1);
    TORCH_CHECK(shape.y.back() >= 0, "convolution: the kernel is larger than the input");
  }
  const at::MemoryFormat format = convolution_format(x, w);
  call.give(shape.y, x.scalar_type(), format);
  if (format != at::MemoryFormat::Contiguous) return;
  call.use_work_space(convolution_work_space(shape) + bytes_of_contiguous_copy(x));
}

void convolution_backward(ShapeCall& call) {
  const at::Tensor &grad = call.tensor(0), &x = call.tensor(1), &w = call.tensor(2);
  const auto mask = call.value(10).toBoolList();
  const at::MemoryFormat format = convolution_format(x, w);
  if (format == at::MemoryFormat::Contiguous && (mask[0] || mask[1])) {
    ConvolutionShape shape = convolution_shape(call, 4, x, w);
    shape.y = grad.sizes().vec();
    call.use_work_space(convolution_backward_work_space(shape, mask[0], mask[1]) + bytes_of_contiguous_copy(x) +
                        bytes_of_contiguous_copy(grad));
  }
  const auto give = [&](bool wanted, const at::Tensor& like) {
    wanted ? call.give(like.sizes(), like.scalar_type(), format) : call.give(at::Tensor());
  };
  give(mask[0], x);
  give(mask[1], w);
  mask[2] ? call.give({grad.size(1)}, w.scalar_type()) : call.give(at::Tensor());
}

// [N, heads, rows, channels], in memory [N, rows, heads, channels].
at::Tensor heads_inside(const at::Tensor& query, int64_t channels) {
  return at::Tensor(
             at::detail::empty_meta({query.size(0), query.size(2), query.size(1), channels}, query.scalar_type()))
      .transpose(1, 2);
}

// Scores that a thread of LibTorch's kernel holds at a time. Source: its native/cpu/FlashAttentionKernel.cpp.
struct ScoreBlock {
  int64_t queries, keys;

  ScoreBlock(const at::Tensor& query, const at::Tensor& key) {
    const int64_t length = query.size(2);
    queries = std::min<int64_t>(length, length >= 768 ? 256 : length >= 192 ? 64 : 32);
    keys = std::min<int64_t>(key.size(2), 512);
  }
  // `scores`: of numbers in it that are kept for each score; `others`: numbers beside them. Half types are computed in
  // float32, and the factors of products converted.
  int64_t bytes(at::ScalarType dtype, int64_t scores, int64_t others) const {
    const at::ScalarType wide = at::toOpMathType(dtype);
    const auto item = [](at::ScalarType type) { return static_cast<int64_t>(c10::elementSize(type)); };
    const int64_t all = scores * queries * keys;
    return at::get_num_threads() * ((all + others) * item(wide) + (wide != dtype ? all * item(dtype) : 0));
  }
};

void flash_attention(ShapeCall& call) {
  const at::Tensor& query = call.tensor(0);
  const ScoreBlock block(query, call.tensor(1));
  call.use_work_space(block.bytes(query.scalar_type(), 1, block.queries * (2 + query.size(3))));
  call.give(at::empty_like(query));
  const std::vector<int64_t> sums{query.size(0), query.size(2), query.size(1)};
  call.give(at::Tensor(at::detail::empty_meta(sums, at::toOpMathType(query.scalar_type()))).transpose(1, 2));
}

void flash_attention_backward(ShapeCall& call) {
  const at::Tensor& grad = call.tensor(0);
  const bool copies = !grad.transpose(1, 2).is_contiguous();
  const ScoreBlock block(call.tensor(1), call.tensor(2));
  call.use_work_space(block.bytes(grad.scalar_type(), 2, block.queries) +
                      (copies ? static_cast<int64_t>(grad.numel() * grad.element_size()) : 0));
  for (size_t i = 1; i <= 3; ++i) call.give(heads_inside(call.tensor(i), call.tensor(i).size(3)));
}

at::ScalarType statistics_dtype(const at::Tensor& x, const c10::IValue& weight) {
  const bool mixed =
      weight.isTensor() && weight.toTensor().defined() && weight.toTensor().scalar_type() != x.scalar_type();
  return mixed ? at::kFloat : x.scalar_type();
}

void group_norm(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  const int64_t samples = call.value(3).toInt(), groups = call.value(6).toInt();
  call.give(x.sizes(), x.scalar_type(), x.suggest_memory_format());
  for (int i = 0; i < 2; ++i) call.give({samples, groups}, statistics_dtype(x, call.value(1)));
}

void group_norm_backward(ShapeCall& call) {
  const at::Tensor& x = call.tensor(1);
  const auto mask = call.value(9).toBoolList();
  mask[0] ? call.give(x.sizes(), x.scalar_type(), x.suggest_memory_format()) : call.give(at::Tensor());
  const at::Tensor per_channel = at::detail::empty_meta({call.value(6).toInt()}, x.scalar_type());
  for (const size_t i : {size_t{1}, size_t{2}}) call.give_like(per_channel, mask[i]);
}

void layer_norm(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  std::vector<int64_t> outer = x.sizes().vec();
  std::fill(outer.end() - static_cast<int64_t>(call.ints(1).size()), outer.end(), 1);
  call.use_work_space(bytes_of_row_major_copy(x));
  call.give_like(x);
  for (int i = 0; i < 2; ++i) call.give(outer, statistics_dtype(x, call.value(2)));
}

void layer_norm_backward(ShapeCall& call) {
  const auto mask = call.value(7).toBoolList();
  call.use_work_space(bytes_of_row_major_copy(call.tensor(0)) + bytes_of_row_major_copy(call.tensor(1)));
  call.give_like(call.tensor(1), mask[0]);
  for (const size_t i : {size_t{1}, size_t{2}}) {
    const c10::IValue& parameter = call.value(4 + i);
    const bool wanted = mask[i] && parameter.isTensor() && parameter.toTensor().defined();
    wanted ? call.give_like(parameter.toTensor()) : call.give(at::Tensor());
  }
}

// Rows of outputs along one dim.
int64_t window_rows(int64_t rows, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation, bool ceil) {
  const int64_t last = rows + 2 * padding - dilation * (kernel - 1) - 1;
  const int64_t outputs = (last + (ceil ? stride - 1 : 0)) / stride + 1;
  return ceil && (outputs - 1) * stride >= rows + padding ? outputs - 1 : outputs;
}

struct WindowArguments {
  std::vector<int64_t> kernel, stride, padding, dilation;
};

// `channels` of the result, or those of the input if 0.
void give_windows(ShapeCall& call, const WindowArguments& given, int64_t channels, bool ceil, at::ScalarType dtype) {
  const at::Tensor& x = call.tensor(0);
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t dims = given.kernel.size(), first = sizes.size() - dims;
  if (channels > 0) sizes[first - 1] = channels;
  for (size_t i = 0; i < dims; ++i) {
    const int64_t stride = given.stride.empty() ? given.kernel[i] : entry(given.stride, i);
    sizes[first + i] =
        window_rows(sizes[first + i], given.kernel[i], stride, entry(given.padding, i), entry(given.dilation, i), ceil);
  }
  call.give(sizes, dtype, x.suggest_memory_format());
}

void max_pool3d(ShapeCall& call) {
  call.use_work_space(bytes_of_contiguous_copy(call.tensor(0)));
  std::vector<int64_t> kernel = call.ints(1);
  kernel.resize(3, kernel[0]);
  const WindowArguments given{kernel, call.ints(2), call.ints(3), call.ints(4)};
  give_windows(call, given, 0, call.value(5).toBool(), call.tensor(0).scalar_type());
  give_windows(call, given, 0, call.value(5).toBool(), at::kLong);
}

void slow_convolution(ShapeCall& call) {
  const WindowArguments given{call.ints(2), call.ints(4), call.ints(5),
                              call.size() > 6 && call.value(6).isIntList() ? call.ints(6) : std::vector<int64_t>{1}};
  give_windows(call, given, call.tensor(1).size(0), false, call.tensor(0).scalar_type());
}

void slow_transposed_convolution(ShapeCall& call) {
  const at::Tensor &x = call.tensor(0), &w = call.tensor(1);
  const auto kernel = call.ints(2), stride = call.ints(4), padding = call.ints(5), extra = call.ints(6),
             dilation = call.ints(7);
  std::vector<int64_t> sizes = x.sizes().vec();
  const size_t first = sizes.size() - kernel.size();
  sizes[first - 1] = w.size(1);
  for (size_t i = 0; i < kernel.size(); ++i)
    sizes[first + i] = (sizes[first + i] - 1) * entry(stride, i) - 2 * entry(padding, i) +
                       (kernel[i] - 1) * entry(dilation, i) + entry(extra, i) + 1;
  call.give(sizes, x.scalar_type());
}

void adaptive_pool(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  std::vector<int64_t> sizes = x.sizes().vec(), outputs = call.ints(1);
  const size_t dims = call.value(1).toIntVector().size();
  call.use_work_space(bytes_of_contiguous_copy(x));
  for (size_t i = 0; i < dims; ++i) sizes[sizes.size() - dims + i] = outputs[i];
  call.give(sizes, x.scalar_type(), x.suggest_memory_format());
}

void batch_norm(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  const int64_t statistics = call.value(5).toBool() ? x.size(1) : 0;
  call.give(at::empty_like(x));
  for (int i = 0; i < 2; ++i) call.give({statistics}, statistics_dtype(x, call.value(1)));
}

void batch_norm_backward(ShapeCall& call) {
  const at::Tensor& x = call.tensor(1);
  const auto mask = call.value(9).toBoolList();
  call.give(mask[0] ? at::empty_like(x) : at::Tensor());
  if (mask[0] && x.is_contiguous() && call.tensor(0).is_contiguous())
    call.use_work_space(static_cast<int64_t>(x.nbytes()));
  for (const size_t i : {size_t{1}, size_t{2}})
    mask[i] ? call.give({x.size(1)}, statistics_dtype(x, call.value(2))) : call.give(at::Tensor());
}

void batch_norm_statistics(ShapeCall& call) {
  for (int i = 0; i < 2; ++i) call.give({call.tensor(0).size(1)}, call.tensor(0).scalar_type());
}

void grid_sampler(ShapeCall& call) {
  std::vector<int64_t> sizes = call.tensor(0).sizes().slice(0, 2).vec();
  for (int64_t d = 1; d + 1 < call.tensor(1).dim(); ++d) sizes.push_back(call.tensor(1).size(d));
  call.give(sizes, call.tensor(0).scalar_type());
}

void grid_sampler_backward(ShapeCall& call) {
  call.give_like(call.tensor(1), call.value(6).toBoolList()[0]);
  call.give(at::empty_like(call.tensor(2)));
}

void grid_sampler_2d_backward(ShapeCall& call) {
  call.use_work_space(bytes_of_row_major_copy(call.tensor(0)));
  grid_sampler_backward(call);
}

void loss_2d(ShapeCall& call) {
  const at::Tensor &x = call.tensor(0), &target = call.tensor(1);
  constexpr int64_t kNone = 0;
  call.use_work_space(bytes_of_contiguous_copy(x) + bytes_of_contiguous_copy(target));
  call.value(3).toInt() == kNone ? call.give(target.sizes(), x.scalar_type()) : call.give({}, x.scalar_type());
  call.give({}, x.scalar_type());
}

// Losses of [N, classes] with one number a row.
void margin_loss(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  const bool mean = call.value(call.size() - 1).toInt() != 0;
  mean || x.dim() < 2 ? call.give({}, x.scalar_type()) : call.give({x.size(0)}, x.scalar_type());
}

void multilabel_margin_loss(ShapeCall& call) {
  margin_loss(call);
  call.give(call.tensor(1).sizes(), call.tensor(0).scalar_type());
}

int64_t reduction_of(const ShapeCall& call) {
  size_t i = 2;
  while (!call.value(i).isInt()) ++i;
  return call.value(i).toInt();
}

// The loss of each element, and another tensor with their sum.
void huber_loss(ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  if (reduction_of(call) == at::Reduction::None) return call.give(at::empty_like(x));
  call.give({}, x.scalar_type());
  call.use_work_space(static_cast<int64_t>(x.nbytes()));
}

// The loss of each element, whose memory then has the sum.
void binary_cross_entropy(ShapeCall& call) {
  at::Tensor loss = at::empty_like(call.tensor(0));
  if (reduction_of(call) != at::Reduction::None) loss.resize_({});
  call.give(loss);
}

void max_unpool(ShapeCall& call) {
  std::vector<int64_t> sizes = call.tensor(0).sizes().vec();
  const std::vector<int64_t> outputs = call.ints(2);
  std::copy(outputs.begin(), outputs.end(), sizes.end() - static_cast<int64_t>(outputs.size()));
  call.give(sizes, call.tensor(0).scalar_type(), call.tensor(0).suggest_memory_format());
}

void reflection_pad2d(ShapeCall& call) {
  call.use_work_space(bytes_of_contiguous_copy(call.tensor(0)));
  std::vector<int64_t> sizes = call.tensor(0).sizes().vec();
  const std::vector<int64_t> pads = call.ints(1);
  for (size_t i = 0; 2 * i < pads.size(); ++i) sizes[sizes.size() - 1 - i] += pads[2 * i] + pads[2 * i + 1];
  call.give(sizes, call.tensor(0).scalar_type(), call.tensor(0).suggest_memory_format());
}

// im2col(self, kernel, dilation, padding, stride)
void windows_as_columns(ShapeCall& call) {
  call.use_work_space(static_cast<int64_t>(call.tensor(0).nbytes()) + bytes_of_row_major_copy(call.tensor(0)));
  std::vector<int64_t> sizes = call.tensor(0).sizes().vec();
  const auto kernel = call.ints(1), dilation = call.ints(2), padding = call.ints(3), stride = call.ints(4);
  int64_t windows = 1;
  for (size_t i = 0; i < 2; ++i)
    windows *= window_rows(sizes[sizes.size() - 2 + i], kernel[i], stride[i], padding[i], dilation[i], false);
  sizes.pop_back();
  sizes.back() = windows;
  sizes[sizes.size() - 2] *= kernel[0] * kernel[1];
  call.give(sizes, call.tensor(0).scalar_type());
}

// col2im(self, output_size, kernel, ...), whose result is a tensor of the size of the columns, shrunk.
void columns_as_windows(ShapeCall& call) {
  call.use_work_space(bytes_of_row_major_copy(call.tensor(0)));
  std::vector<int64_t> sizes = call.tensor(0).sizes().vec();
  const auto outputs = call.ints(1), kernel = call.ints(2);
  sizes[sizes.size() - 2] /= kernel[0] * kernel[1];
  sizes.back() = outputs[0];
  sizes.push_back(outputs[1]);
  const at::Tensor windows = at::empty_like(call.tensor(0));
  call.give(windows.resize_(sizes));
}

// Bytes that oneDNN keeps for the derivative of an LSTM: of a call with `steps` steps, which is made. Its memory is not
// that of the program.
int64_t bytes_kept_by_call(const ShapeCall& call, int64_t steps) {
  const c10::DebugInfoGuard uncounted(c10::DebugInfoKind::PROFILER_STATE, nullptr);
  const auto zeros = [&](size_t i, at::IntArrayRef sizes) { return at::zeros(sizes, call.tensor(i).scalar_type()); };
  const at::Tensor& x = call.tensor(0);
  const at::Tensor input = zeros(0, {steps, x.size(1), x.size(2)});
  std::vector<at::Tensor> others;
  for (size_t i = 1; i <= 6; ++i) others.push_back(zeros(i, call.tensor(i).sizes()));
  const at::Tensor kept = std::get<3>(at::mkldnn_rnn_layer(
      input, others[0], others[1], others[2], others[3], others[4], others[5], call.value(7).toBool(), {},
      call.value(9).toInt(), call.value(10).toInt(), call.value(11).toInt(), call.value(12).toBool(),
      call.value(13).toBool(), call.value(14).toBool(), call.value(15).toBool()));
  return static_cast<int64_t>(kept.nbytes());
}

// Each call is made once in the process.
int64_t kept_bytes(const ShapeCall& call, int64_t steps) {
  static std::mutex mutex;
  static auto* known = new std::map<std::vector<int64_t>, int64_t>;
  std::vector<int64_t> key{steps, at::get_num_threads(), static_cast<int64_t>(call.tensor(0).scalar_type())};
  for (size_t i = 0; i <= 6; ++i) {
    const at::IntArrayRef sizes = call.tensor(i).sizes().slice(i == 0 ? 1 : 0);
    key.insert(key.end(), sizes.begin(), sizes.end());
  }
  const std::lock_guard lock(mutex);
  const auto found = known->find(key);
  if (found != known->end()) return found->second;
  return known->emplace(std::move(key), bytes_kept_by_call(call, steps)).first->second;
}

// Gates of all steps, and weights in the layout of oneDNN.
int64_t work_space_of_lstm(const ShapeCall& call) {
  const at::Tensor& x = call.tensor(0);
  const int64_t gates = x.size(0) * x.size(1) * call.tensor(1).size(0) * static_cast<int64_t>(x.element_size());
  return gates + static_cast<int64_t>(call.tensor(1).nbytes() + call.tensor(2).nbytes());
}

// The memory that is kept grows with the steps: two short calls show by how much. oneDNN has no other answer.
void lstm(ShapeCall& call) {
  constexpr int64_t kFew = 4, kMore = 12;
  const at::Tensor& x = call.tensor(0);
  const int64_t steps = x.size(0);
  call.give({steps, x.size(1), call.value(10).toInt()}, x.scalar_type());
  call.give(at::empty_like(call.tensor(5)));
  call.give(at::empty_like(call.tensor(6)));
  call.use_work_space(work_space_of_lstm(call));
  if (!at::GradMode::is_enabled()) return call.give(at::Tensor());  // nothing is kept
  const int64_t few = kept_bytes(call, std::min(steps, kFew));
  const int64_t more = steps <= kFew ? few : kept_bytes(call, std::min(steps, kMore));
  call.give({steps <= kMore ? more : more + (more - few) * (steps - kMore) / (kMore - kFew)}, at::kByte);
}

void lstm_backward(ShapeCall& call) {
  for (size_t i = 0; i <= 6; ++i) call.give_like(call.tensor(i));
  call.use_work_space(work_space_of_lstm(call));
}

void weight_norm(ShapeCall& call) {
  call.give(at::empty_like(call.tensor(0)));
  call.give(at::empty_like(call.tensor(1)));
}

// The bags, the bag of each word, the size of each bag, and which row was the largest.
void embedding_bag(ShapeCall& call, bool differentiable) {
  constexpr int64_t kSum = 0, kMax = 2;
  const at::Tensor &weight = call.tensor(0), &offsets = call.tensor(2);
  const int64_t mode = call.value(4).toInt(), bags = offsets.size(0) - (call.value(7).toBool() ? 1 : 0);
  const at::Tensor scales = call.value(6).isNone() ? at::Tensor() : call.tensor(6);
  // LibTorch's fast kernel for sums does not need the bag of each word.
  const bool is_fast = mode == kSum && weight.scalar_type() != at::kDouble && weight.stride(1) == 1 &&
                       (!scales.defined() || scales.stride(0) == 1) && call.value(8).toInt() < 0;
  const int64_t sizes = mode == kSum && !differentiable ? offsets.size(0) : bags;
  call.give({bags, weight.size(1)}, weight.scalar_type());
  call.give({is_fast ? 0 : call.tensor(1).size(0)}, offsets.scalar_type());
  call.give({sizes}, call.tensor(1).scalar_type());
  mode == kMax ? call.give({bags, weight.size(1)}, call.tensor(1).scalar_type())
               : call.give({sizes}, call.tensor(1).scalar_type());
}

}  // namespace

const ShapeRules& layer_shape_rules() {
  static const ShapeRules rules = {
      {"aten::convolution", convolution},
      {"aten::_convolution", convolution},
      {"aten::convolution_overrideable", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward},
      {"aten::_embedding_bag", [](ShapeCall& call) { embedding_bag(call, true); }},
      {"aten::_embedding_bag_forward_only", [](ShapeCall& call) { embedding_bag(call, false); }},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::batch_norm_update_stats", batch_norm_statistics},
      {"aten::_slow_conv2d_forward", slow_convolution},
      {"aten::slow_conv3d_forward", slow_convolution},
      {"aten::slow_conv_dilated2d", slow_convolution},
      {"aten::slow_conv_dilated3d", slow_convolution},
      {"aten::slow_conv_transpose3d", slow_transposed_convolution},
      {"aten::max_pool3d_with_indices", max_pool3d},
      {"aten::_adaptive_avg_pool2d", adaptive_pool},
      {"aten::adaptive_avg_pool2d", adaptive_pool},
      {"aten::_adaptive_avg_pool3d", adaptive_pool},
      {"aten::adaptive_avg_pool3d", adaptive_pool},
      {"aten::max_unpool2d", max_unpool},
      {"aten::max_unpool3d", max_unpool},
      {"aten::reflection_pad2d", reflection_pad2d},
      {"aten::im2col", windows_as_columns},
      {"aten::col2im", columns_as_windows},
      {"aten::grid_sampler_2d", grid_sampler},
      {"aten::grid_sampler_3d", grid_sampler},
      {"aten::grid_sampler_2d_backward", grid_sampler_2d_backward},
      {"aten::grid_sampler_3d_backward", grid_sampler_backward},
      {"aten::nll_loss2d_forward", loss_2d},
      {"aten::multi_margin_loss", margin_loss},
      {"aten::multilabel_margin_loss_forward", multilabel_margin_loss},
      {"aten::huber_loss", huber_loss},
      {"aten::binary_cross_entropy", binary_cross_entropy},
      {"aten::mkldnn_rnn_layer", lstm},
      {"aten::mkldnn_rnn_layer_backward", lstm_backward},
      {"aten::_weight_norm_interface", weight_norm},
  };
  return rules;
}

}  // namespace moonhalo
