// SPDX-License-Identifier: Apache-2.0
#include "engine/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <cmath>
#include <mutex>
#include <numbers>

namespace moonhalo {
namespace {

// Calls `write(position, global index)` for every element of this rank's block, row by row.
template <typename Write>
void for_each_owned(const ShardSpec& spec, const Write& write) {
  const auto& local = spec.local_shape();
  const auto& global = spec.global_shape();
  const int64_t ndim = spec.ndim();
  const int64_t numel = c10::multiply_integers(local);
  if (numel == 0) return;
  std::vector<int64_t> strides(ndim, 1), at(ndim, 0);
  for (int64_t d = ndim - 2; d >= 0; --d) strides[d] = strides[d + 1] * global[d + 1];
  const int64_t row = ndim == 0 ? 1 : local[ndim - 1];
  for (int64_t position = 0; position < numel;) {
    uint64_t index = 0;
    for (int64_t d = 0; d < ndim; ++d) index += static_cast<uint64_t>((spec.offsets()[d] + at[d]) * strides[d]);
    for (int64_t i = 0; i < row; ++i) write(position++, index + static_cast<uint64_t>(i));
    for (int64_t d = ndim - 2; d >= 0; --d) {
      if (++at[d] < local[d]) break;
      at[d] = 0;
    }
  }
}

at::Generator& generator_of_this_thread() {
  static thread_local at::Generator generator =
      at::make_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator().current_seed());
  return generator;
}

template <typename Scalar, typename Value>
at::Tensor filled(const ShardSpec& spec, uint64_t key, const Value& value) {
  at::Tensor block = at::empty(spec.local_shape(), at::TensorOptions().dtype(c10::CppTypeToScalarType<Scalar>::value));
  auto* data = block.mutable_data_ptr<Scalar>();
  for_each_owned(spec, [&](int64_t position, uint64_t index) {
    data[position] = static_cast<Scalar>(value(philox(key, index)));
  });
  return block;
}

}  // namespace

at::Generator default_generator() { return generator_of_this_thread(); }

void manual_seed(uint64_t seed) {
  at::Generator& generator = generator_of_this_thread();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter) {
  constexpr uint64_t kMultiply0 = 0xD2511F53, kMultiply1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiply0 * c[0], product1 = kMultiply1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

ElementRandom::ElementRandom(const std::optional<at::Generator>& generator) {
  at::Generator source = generator && generator->defined() ? *generator : default_generator();
  auto* cpu = at::check_generator<at::CPUGeneratorImpl>(source);
  const std::lock_guard lock(source.mutex());
  key_ = cpu->random64();
}

at::Tensor ElementRandom::fill(const ShardSpec& spec, const at::TensorOptions& options,
                               const std::function<double(const std::array<uint32_t, 4>&)>& value) const {
  const bool wide = options.dtype() == at::kDouble;
  return (wide ? filled<double>(spec, key_, value) : filled<float>(spec, key_, value)).to(options);
}

at::Tensor ElementRandom::fill_integers(const ShardSpec& spec, const at::TensorOptions& options,
                                        const std::function<int64_t(const std::array<uint32_t, 4>&)>& value) const {
  return filled<int64_t>(spec, key_, value).to(options);
}

double uniform(const std::array<uint32_t, 4>& words, int pair) {
  const uint64_t bits = static_cast<uint64_t>(words[2 * pair]) << 32 | words[2 * pair + 1];
  return static_cast<double>(bits >> 11) * 0x1.0p-53;
}

double normal(const std::array<uint32_t, 4>& words) {
  return std::sqrt(-2 * std::log(uniform_above_zero(words, 0))) * std::cos(2 * std::numbers::pi * uniform(words, 1));
}

}  // namespace moonhalo
