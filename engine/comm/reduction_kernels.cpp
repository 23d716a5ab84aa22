// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/reduction_kernels.h"

#include <ATen/Functions.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>
#include <c10/util/SmallVector.h>
#include <c10/util/complex.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/comm/sum_tree.h"

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

// In blocks, because the compiler vectorises loops of known length.
template <typename Body>
void repeat(int64_t count, const Body& body) {
  constexpr int64_t kBlock = 64;
  int64_t i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (int64_t j = 0; j < kBlock; ++j) body(i + j);
  }
  for (; i < count; ++i) body(i);
}

// The compiler vectorises loops over local memory, since nothing else can be stored there.
template <typename Acc>
struct Chunk {
  static constexpr int64_t kSize = kChunkBytes / static_cast<int64_t>(sizeof(Acc));
  alignas(64) Acc values[kSize];
};

// Where nothing else is stored to, values need not go by way of a Chunk.
template <typename A, typename B, typename Acc, typename Combine>
void combine_apart(const A* __restrict a, const B* __restrict b, int64_t n, Acc* __restrict to, Combine combine) {
  repeat(n, [&](int64_t i) { to[i] = combine(static_cast<Acc>(a[i]), static_cast<Acc>(b[i])); });
}
template <typename B, typename Acc, typename Combine>
void combine_onto(Acc* __restrict to, const B* __restrict b, int64_t n, Combine combine) {
  repeat(n, [&](int64_t i) { to[i] = combine(to[i], static_cast<Acc>(b[i])); });
}

template <typename A, typename B, typename Acc, typename Combine>
void combine_chunk(const A* a, const B* b, int64_t m, Acc* to, Combine combine) {
  repeat(m, [&](int64_t i) { to[i] = combine(static_cast<Acc>(a[i]), static_cast<Acc>(b[i])); });
}

// Reduces the `m` elements from `begin` of the ranks that 2^level leaves of the tree have.
template <typename T, typename Acc, typename Combine>
void reduce_leaves(const SumTree& tree, int leaf, int level, c10::ArrayRef<const void*> sources, int64_t begin,
                   int64_t m, Acc* to, Combine combine) {
  const auto source = [&](int rank) { return static_cast<const T*>(sources[rank]) + begin; };
  const int first = tree.first_rank(leaf), end = tree.first_rank(leaf + (1 << level));
  if (end - first == 1) {
    const T* one = source(first);
    return repeat(m, [&](int64_t i) { to[i] = static_cast<Acc>(one[i]); });
  }
  if (end - first == 2) return combine_chunk(source(first), source(first + 1), m, to, combine);
  const int half = leaf + (1 << (level - 1)), middle = tree.first_rank(half);
  reduce_leaves<T>(tree, leaf, level - 1, sources, begin, m, to, combine);
  if (end - middle == 1) return combine_chunk(to, source(middle), m, to, combine);
  Chunk<Acc> right;
  reduce_leaves<T>(tree, half, level - 1, sources, begin, m, right.values, combine);
  combine_chunk(to, right.values, m, to, combine);
}

template <typename Acc>
void divide(Acc* values, int64_t m, size_t ranks) {
  if constexpr (!std::is_integral_v<Acc>) {
    const Acc count = static_cast<Acc>(static_cast<float>(ranks));
    repeat(m, [&](int64_t i) { values[i] /= count; });
  }
}

template <typename T, typename Acc>
struct Kernel {
  // This reduces all ranks' values.
  struct Whole {
    c10::ArrayRef<const void*> sources;
    c10::ArrayRef<void*> destinations;
  };
  // This reduces two values. Each is one rank's own (T) or has been reduced (Acc).
  struct Two {
    Operand a, b;
    void* out;
  };

  template <typename Combine>
  static void run(const Whole& whole, int64_t n, bool average, Combine combine) {
    const SumTree tree(static_cast<int>(whole.sources.size()));
    Chunk<Acc> acc;
    for (int64_t begin = 0; begin < n; begin += acc.kSize) {
      const int64_t m = std::min(acc.kSize, n - begin);
      reduce_leaves<T>(tree, 0, tree.levels(), whole.sources, begin, m, acc.values, combine);
      if (average) divide(acc.values, m, whole.sources.size());
      for (void* destination : whole.destinations) {
        T* out = static_cast<T*>(destination) + begin;
        repeat(m, [&](int64_t i) { out[i] = static_cast<T>(acc.values[i]); });
      }
    }
  }

  template <typename Combine>
  static void run(const Two& two, int64_t n, bool, Combine combine) {
    if (two.a.raw && two.b.raw) return run<T, T>(two, n, combine);
    if (two.a.raw) return run<T, Acc>(two, n, combine);
    if (two.b.raw) return run<Acc, T>(two, n, combine);
    run<Acc, Acc>(two, n, combine);
  }
  template <typename A, typename B, typename Combine>
  static void run(const Two& two, int64_t n, Combine combine) {
    const auto* const a = static_cast<const A*>(two.a.data);
    const auto* const b = static_cast<const B*>(two.b.data);
    auto* const out = static_cast<Acc*>(two.out);
    if (two.out != two.a.data && two.out != two.b.data) return combine_apart(a, b, n, out, combine);
    if constexpr (std::is_same_v<A, Acc>) {
      if (two.out == two.a.data) return combine_onto(out, b, n, combine);
    }
    if constexpr (std::is_same_v<B, Acc>) {
      if (two.out == two.b.data) return combine_onto(out, a, n, [&](Acc to, Acc first) { return combine(first, to); });
    }
    // `out` is an operand of bools, another type than Acc.
    Chunk<Acc> acc;
    for (int64_t begin = 0; begin < n; begin += acc.kSize) {
      const int64_t m = std::min(acc.kSize, n - begin);
      combine_chunk(a + begin, b + begin, m, acc.values, combine);
      repeat(m, [&](int64_t i) { out[begin + i] = acc.values[i]; });
    }
  }
};

template <typename T, typename Acc, typename Job>
void reduce_typed(ReduceOp op, const Job& job, int64_t n) {
  using K = Kernel<T, Acc>;
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return K::run(job, n, op == ReduceOp::kAvg, [](Acc a, Acc b) { return add(a, b); });
    case ReduceOp::kProduct:
      return K::run(job, n, false, [](Acc a, Acc b) { return multiply(a, b); });
    case ReduceOp::kMax:
      if constexpr (!kIsComplex<Acc>) {
        return K::run(job, n, false, [](Acc a, Acc b) { return b > a || b != b ? b : a; });
      }
      break;
    case ReduceOp::kMin:
      if constexpr (!kIsComplex<Acc>) {
        return K::run(job, n, false, [](Acc a, Acc b) { return b < a || b != b ? b : a; });
      }
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "reduce_elements: check_reducible was not asked about ", name(op));
}

template <typename Job>
void reduce_bools(ReduceOp op, const Job& job, int64_t n) {
  using K = Kernel<bool, uint8_t>;
  if (op == ReduceOp::kSum || op == ReduceOp::kMax) {
    return K::run(job, n, false, [](uint8_t a, uint8_t b) { return uint8_t(a | b); });
  }
  K::run(job, n, false, [](uint8_t a, uint8_t b) { return uint8_t(a & b); });
}

// Calls run(T{}, Acc{}): the type of the elements, and the one that they are reduced in.
template <typename Run>
void run_by_dtype(at::ScalarType dtype, const Run& run) {
  switch (dtype) {
    case at::kFloat:
      return run(float{}, float{});
    case at::kDouble:
      return run(double{}, double{});
    case at::kHalf:
      return run(c10::Half{}, float{});
    case at::kBFloat16:
      return run(c10::BFloat16{}, float{});
    case at::kByte:
      return run(uint8_t{}, uint8_t{});
    case at::kChar:
      return run(int8_t{}, int8_t{});
    case at::kShort:
      return run(int16_t{}, int16_t{});
    case at::kInt:
      return run(int32_t{}, int32_t{});
    case at::kLong:
      return run(int64_t{}, int64_t{});
    case at::kComplexFloat:
      return run(c10::complex<float>{}, c10::complex<float>{});
    case at::kComplexDouble:
      return run(c10::complex<double>{}, c10::complex<double>{});
    case at::kBool:
      return run(bool{}, uint8_t{});
    default:
      TORCH_INTERNAL_ASSERT(false, "reduce_elements: no kernel for ", dtype);
  }
}

// `make` gives the job for the dtype's Kernel.
template <typename Make>
void reduce_by_dtype(ReduceOp op, at::ScalarType dtype, int64_t n, const Make& make) {
  run_by_dtype(dtype, [&](auto value, auto accumulated) {
    using T = decltype(value);
    using Acc = decltype(accumulated);
    if constexpr (std::is_same_v<T, bool>) {
      reduce_bools(op, make(Kernel<T, Acc>{}), n);
    } else {
      reduce_typed<T, Acc>(op, make(Kernel<T, Acc>{}), n);
    }
  });
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
      TORCH_CHECK_TYPE(op != ReduceOp::kMax && op != ReduceOp::kMin, verb, ": complex numbers have no ", name(op),
                       "\n  have  op \"", name(op), "\" and a tensor of ", dtype,
                       "\n  fix   reduce the absolute values or the real part");
      return;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, verb, ": cannot reduce values of type ", dtype, "\n  have  op \"", name(op),
                                  "\" and a tensor of ", dtype,
                                  "\n  fix   convert to a floating, integer or bool type first");
  }
}

void reduce_elements(ReduceOp op, at::ScalarType dtype, c10::ArrayRef<const void*> sources, int64_t n,
                     c10::ArrayRef<void*> destinations) {
  reduce_by_dtype(op, dtype, n, [&](auto kernel) { return typename decltype(kernel)::Whole{sources, destinations}; });
}

at::ScalarType partial_dtype(at::ScalarType dtype) {
  return dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
}

void reduce_two(ReduceOp op, at::ScalarType dtype, Operand a, Operand b, int64_t n, void* out) {
  reduce_by_dtype(op, dtype, n, [&](auto kernel) { return typename decltype(kernel)::Two{a, b, out}; });
}

void finish_reduction(ReduceOp op, at::ScalarType dtype, const void* partial, int ranks, int64_t n, void* out) {
  if (op != ReduceOp::kAvg && partial_dtype(dtype) == dtype) {
    if (n > 0 && out != partial) std::memmove(out, partial, static_cast<size_t>(n) * c10::elementSize(dtype));
    return;
  }
  TORCH_INTERNAL_ASSERT(!at::isIntegralType(dtype, /*includeBool=*/true),
                        "finish_reduction: check_reducible was not asked about ", dtype);
  run_by_dtype(dtype, [&](auto value, auto accumulated) {
    using T = decltype(value);
    using Acc = decltype(accumulated);
    Chunk<Acc> acc;
    for (int64_t begin = 0; begin < n; begin += acc.kSize) {
      const int64_t m = std::min(acc.kSize, n - begin);
      std::memcpy(acc.values, static_cast<const Acc*>(partial) + begin, static_cast<size_t>(m) * sizeof(Acc));
      if (op == ReduceOp::kAvg) divide(acc.values, m, static_cast<size_t>(ranks));
      T* to = static_cast<T*>(out) + begin;
      repeat(m, [&](int64_t i) { to[i] = static_cast<T>(acc.values[i]); });
    }
  });
}

void reduce_tensors(ReduceOp op, const std::vector<at::Tensor>& sources, at::Tensor& out) {
  constexpr int64_t kShortRun = 16;  // elements; below, packing is quicker
  for (const at::Tensor& source : sources) {
    TORCH_INTERNAL_ASSERT(source.sizes() == out.sizes() && source.scalar_type() == out.scalar_type(),
                          "reduce_tensors of ", source.sizes(), " into ", out.sizes());
  }
  for (const at::Tensor& source : sources) {
    if (is_fake(source)) return void(out.copy_(source));
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
