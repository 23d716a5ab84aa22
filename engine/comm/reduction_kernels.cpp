// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/reduction_kernels.h"

#include <ATen/Functions.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <c10/util/SmallVector.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <type_traits>

namespace moonhalo {
namespace {

// Fits the first-level cache beside one source.
constexpr int64_t kChunkBytes = 8192;

template <typename T>
constexpr bool kIsComplex = !std::is_arithmetic_v<T>;

// Integers wrap round, as everywhere in LibTorch; signed overflow would be undefined.
template <typename Acc>
Acc add(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    return static_cast<Acc>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename Acc>
Acc multiply(Acc a, Acc b) {
  if constexpr (std::is_integral_v<Acc>) {
    return static_cast<Acc>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

// In blocks, because the compiler vectorises loops whose length it knows.
template <typename Body>
void repeat(int64_t count, const Body& body) {
  constexpr int64_t kBlock = 64;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) body(i + j);
  }
  for (; i < count; ++i) body(i);
}

template <typename T, typename Acc, typename Combine>
void reduce_chunks(c10::ArrayRef<const void*> sources, int64_t n, c10::ArrayRef<void*> destinations, bool average,
                   Combine combine) {
  constexpr int64_t kChunk = kChunkBytes / static_cast<int64_t>(sizeof(Acc));
  alignas(64) Acc acc[kChunk];
  for (int64_t begin = 0; begin < n; begin += kChunk) {
    const int64_t m = std::min(kChunk, n - begin);
    const T* first = static_cast<const T*>(sources[0]) + begin;
    repeat(m, [&](int64_t i) { acc[i] = static_cast<Acc>(first[i]); });
    for (size_t s = 1; s < sources.size(); ++s) {
      const T* next = static_cast<const T*>(sources[s]) + begin;
      repeat(m, [&](int64_t i) { acc[i] = combine(acc[i], static_cast<Acc>(next[i])); });
    }
    if constexpr (!std::is_integral_v<Acc>) {
      if (average) {
        const Acc count = static_cast<Acc>(static_cast<float>(sources.size()));
        repeat(m, [&](int64_t i) { acc[i] /= count; });
      }
    }
    for (void* destination : destinations) {
      T* out = static_cast<T*>(destination) + begin;
      repeat(m, [&](int64_t i) { out[i] = static_cast<T>(acc[i]); });
    }
  }
}

template <typename T, typename Acc = T>
void reduce_typed(ReduceOp op, c10::ArrayRef<const void*> sources, int64_t n, c10::ArrayRef<void*> destinations) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return reduce_chunks<T, Acc>(sources, n, destinations, op == ReduceOp::kAvg,
                                   [](Acc a, Acc b) { return add(a, b); });
    case ReduceOp::kProduct:
      return reduce_chunks<T, Acc>(sources, n, destinations, false, [](Acc a, Acc b) { return multiply(a, b); });
    case ReduceOp::kMax:
      if constexpr (!kIsComplex<Acc>) {
        return reduce_chunks<T, Acc>(sources, n, destinations, false,
                                     [](Acc a, Acc b) { return b > a || b != b ? b : a; });
      }
      break;
    case ReduceOp::kMin:
      if constexpr (!kIsComplex<Acc>) {
        return reduce_chunks<T, Acc>(sources, n, destinations, false,
                                     [](Acc a, Acc b) { return b < a || b != b ? b : a; });
      }
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "reduce_elements: check_reducible was not asked about ", name(op));
}

void reduce_bools(ReduceOp op, c10::ArrayRef<const void*> sources, int64_t n, c10::ArrayRef<void*> destinations) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMax) {
    return reduce_chunks<bool, uint8_t>(sources, n, destinations, false,
                                        [](uint8_t a, uint8_t b) { return uint8_t(a | b); });
  }
  reduce_chunks<bool, uint8_t>(sources, n, destinations, false, [](uint8_t a, uint8_t b) { return uint8_t(a & b); });
}

template <typename T>
at::Scalar worst(bool of_max) {
  return of_max ? std::numeric_limits<T>::lowest() : std::numeric_limits<T>::max();
}

}  // namespace

at::Scalar neutral_value(ReduceOp op, at::ScalarType dtype) {
  if (op == ReduceOp::kSum) return 0;
  if (op == ReduceOp::kProduct) return 1;
  const bool of_max = op == ReduceOp::kMax;
  switch (dtype) {
    case at::kBool:
      return !of_max;
    case at::kByte:
      return worst<uint8_t>(of_max);
    case at::kChar:
      return worst<int8_t>(of_max);
    case at::kShort:
      return worst<int16_t>(of_max);
    case at::kInt:
      return worst<int32_t>(of_max);
    case at::kLong:
      return worst<int64_t>(of_max);
    default:
      return of_max ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  }
}

void check_reducible(const char* verb, ReduceOp op, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return;
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      TORCH_CHECK_TYPE(op != ReduceOp::kAvg, verb, ": cannot average values of type ", dtype,
                       "\n  have  op \"avg\" and a tensor of ", dtype,
                       "\n  fix   use op \"sum\", or convert to a floating type first");
      return;
    case at::kComplexFloat:
    case at::kComplexDouble:
      TORCH_CHECK_TYPE(op != ReduceOp::kMax && op != ReduceOp::kMin, verb, ": complex numbers have no ",
                       name(op), "\n  have  op \"", name(op), "\" and a tensor of ", dtype,
                       "\n  fix   reduce the absolute values or the real part");
      return;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, verb, ": cannot reduce values of type ", dtype, "\n  have  op \"",
                                  name(op), "\" and a tensor of ", dtype,
                                  "\n  fix   convert to a floating, integer or bool type first");
  }
}

void reduce_elements(ReduceOp op, at::ScalarType dtype, c10::ArrayRef<const void*> sources, int64_t n,
                     c10::ArrayRef<void*> destinations) {
  switch (dtype) {
    case at::kFloat:
      return reduce_typed<float>(op, sources, n, destinations);
    case at::kDouble:
      return reduce_typed<double>(op, sources, n, destinations);
    case at::kHalf:
      return reduce_typed<c10::Half, float>(op, sources, n, destinations);
    case at::kBFloat16:
      return reduce_typed<c10::BFloat16, float>(op, sources, n, destinations);
    case at::kByte:
      return reduce_typed<uint8_t>(op, sources, n, destinations);
    case at::kChar:
      return reduce_typed<int8_t>(op, sources, n, destinations);
    case at::kShort:
      return reduce_typed<int16_t>(op, sources, n, destinations);
    case at::kInt:
      return reduce_typed<int32_t>(op, sources, n, destinations);
    case at::kLong:
      return reduce_typed<int64_t>(op, sources, n, destinations);
    case at::kComplexFloat:
      return reduce_typed<c10::complex<float>>(op, sources, n, destinations);
    case at::kComplexDouble:
      return reduce_typed<c10::complex<double>>(op, sources, n, destinations);
    case at::kBool:
      return reduce_bools(op, sources, n, destinations);
    default:
      TORCH_INTERNAL_ASSERT(false, "reduce_elements: no kernel for ", dtype);
  }
}

void reduce_tensors(ReduceOp op, const std::vector<at::Tensor>& sources, at::Tensor& out) {
  constexpr int64_t kShortRun = 16;  // elements; below, packing is quicker
  for (const at::Tensor& source : sources) {
    TORCH_INTERNAL_ASSERT(source.sizes() == out.sizes() && source.scalar_type() == out.scalar_type(), "reduce_tensors of ",
                          source.sizes(), " into ", out.sizes());
  }
  const int64_t ndim = out.dim();
  std::vector<int64_t> order(ndim);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return out.stride(a) > out.stride(b); });
  const auto in_a_row = [&](const at::Tensor& tensor, int64_t dim, int64_t run) {
    return tensor.size(dim) == 1 || tensor.stride(dim) == run;
  };
  int64_t run = 1;
  for (; !order.empty(); order.pop_back()) {
    const int64_t dim = order.back();
    const bool joins =
        in_a_row(out, dim, run) && std::all_of(sources.begin(), sources.end(),
                                               [&](const at::Tensor& source) { return in_a_row(source, dim, run); });
    if (!joins) break;
    run *= out.size(dim);
  }
  if (run < std::min(kShortRun, out.numel())) {
    std::vector<at::Tensor> packed;
    c10::SmallVector<const void*, 16> addresses;
    for (const at::Tensor& source : sources)
      addresses.push_back(packed.emplace_back(source.contiguous()).const_data_ptr());
    at::Tensor result = out.is_contiguous() ? out : at::empty(out.sizes(), out.options());
    reduce_elements(op, out.scalar_type(), addresses, out.numel(), result.mutable_data_ptr());
    if (!out.is_contiguous()) out.copy_(result);
    return;
  }
  std::vector<int64_t> at(order.size(), 0);
  c10::SmallVector<const void*, 16> addresses(sources.size());
  const auto offset = [&](const at::Tensor& tensor) {
    int64_t elements = 0;
    for (size_t i = 0; i < order.size(); ++i) elements += at[i] * tensor.stride(order[i]);
    return elements * static_cast<int64_t>(tensor.itemsize());
  };
  for (int64_t left = out.numel(); left > 0; left -= run) {
    for (size_t s = 0; s < sources.size(); ++s)
      addresses[s] = static_cast<const char*>(sources[s].const_data_ptr()) + offset(sources[s]);
    reduce_elements(op, out.scalar_type(), addresses, run,
                    static_cast<void*>(static_cast<char*>(out.mutable_data_ptr()) + offset(out)));
    for (size_t i = order.size(); i-- > 0;) {
      if (++at[i] < out.size(order[i])) break;
      at[i] = 0;
    }
  }
}

}  // namespace moonhalo
