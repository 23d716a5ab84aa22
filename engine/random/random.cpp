// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/random/random.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <mutex>

#include "moonhalo/engine/base/base_context.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/last_draw.h"
#include "moonhalo/engine/base/work_note.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/random/fill_kernel.h"

namespace moonhalo {
namespace {

at::Generator& generator_of_this_thread() {
  at::Generator& generator = base_context->generator;
  if (!generator.defined())
    generator = at::make_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator().current_seed());
  return generator;
}

std::array<FillKernel, c10::COMPILE_TIME_MAX_DEVICE_TYPES>& kernels() {
  static std::array<FillKernel, c10::COMPILE_TIME_MAX_DEVICE_TYPES> all{};
  return all;
}

// Its data is that of the block's parts, contiguous or not.
random_fill::Launch launch_of(const at::Tensor& parts, bool is_complex, const ShardSpec& spec) {
  random_fill::Launch launch{};
  launch.to = parts.mutable_data_ptr();
  launch.dims = static_cast<int>(spec.ndim());
  launch.parts = is_complex ? 2 : 1;
  launch.elements = parts.numel() / launch.parts;
  uint64_t stride = 1;
  for (int d = launch.dims - 1; d >= 0; --d) {
    launch.shape[d] = parts.size(d);
    launch.stride[d] = parts.stride(d);
    launch.offset[d] = spec.offsets()[d];
    launch.global_stride[d] = stride;
    stride *= static_cast<uint64_t>(spec.global_shape()[d]);
  }
  return launch;
}

}  // namespace

at::Generator default_generator() { return generator_of_this_thread(); }

void manual_seed(uint64_t seed) {
  at::Generator& generator = generator_of_this_thread();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

uint64_t ElementRandom::draw_key(const std::optional<at::Generator>& generator) {
  at::Generator source = generator && generator->defined() ? *generator : default_generator();
  TORCH_CHECK_VALUE(
      source.device().is_cpu(), "random: a generator of ", source.device(), "\n  have  ", source.device(),
      "\n  fix   give a generator of the CPU, also for tensors of devices: numbers depend on its seed alone");
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(source);
  const std::lock_guard lock(source.mutex());
  return cpu->random64();
}

ElementRandom::ElementRandom(const std::optional<at::Generator>& generator)
    : key_(base_context->replayed_key ? *base_context->replayed_key : draw_key(generator)) {
  LastDraw& last = base_context->last_draw;
  last = {last.count + 1, key_};
  if (CallScope* scope = CallScope::innermost()) scope->depends_on(key_);
}

void register_fill_kernel(c10::DeviceType type, FillKernel kernel) { kernels()[static_cast<size_t>(type)] = kernel; }

void ElementRandom::fill(const at::Tensor& block, const ShardSpec& spec, const Distribution& distribution) const {
  note_work("random_fill", 0, static_cast<int64_t>(block.nbytes()));
  if (is_fake(block)) return;
  const FillKernel kernel = kernels()[static_cast<size_t>(block.device().type())];
  if (kernel != nullptr && block.dim() <= random_fill::kMostDims) {
    if (block.numel() == 0) return;
    const at::Tensor parts = block.is_complex() ? at::view_as_real(block) : block;
    random_fill::Launch launch = launch_of(parts, block.is_complex(), spec);
    launch.key = key_;
    launch.distribution = distribution;
    return kernel(launch, parts.scalar_type(), block.device());
  }
  if (distribution.kind == Distribution::kInteger) {
    fill(block, spec, [&](Draws& draws) { return draw_integer(distribution, draws); });
  } else {
    fill(block, spec, [&](Draws& draws) { return draw(distribution, draws); });
  }
}

const LastDraw& last_draw() { return base_context->last_draw; }

ReplayedKey::ReplayedKey(uint64_t key) : before_(base_context->replayed_key) { base_context->replayed_key = key; }
ReplayedKey::~ReplayedKey() { base_context->replayed_key = before_; }

OwnedElements::OwnedElements(const ShardSpec& spec) : spec_(spec), count_(c10::multiply_integers(spec.local_shape())) {
  // Dims behind the last cut one are whole, so the elements of a run follow one another in the global tensor too.
  for (int64_t d = spec.ndim() - 1; d >= 0; --d) {
    run_ *= spec.local_shape()[d];
    if (spec.local_shape()[d] != spec.global_shape()[d]) break;
  }
  run_ = std::max<int64_t>(1, run_);
}

uint64_t OwnedElements::global_index(int64_t position) const {
  uint64_t index = 0, stride = 1;
  for (int64_t d = spec_.ndim() - 1; d >= 0; --d) {
    const int64_t rows = spec_.local_shape()[d];
    index += static_cast<uint64_t>(spec_.offsets()[d] + position % rows) * stride;
    position /= rows;
    stride *= static_cast<uint64_t>(spec_.global_shape()[d]);
  }
  return index;
}

}  // namespace moonhalo
