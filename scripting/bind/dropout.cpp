// SPDX-License-Identifier: Apache-2.0
// The dropout family: LibTorch's own take no generator and draw from the process-wide one, which
// thread ranks share.
#include <ATen/ATen.h>

#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/scripting/core/binding.h"

namespace moonhalo::scripting {

namespace {

struct DropoutKind {
  const char* name;
  bool feature;  ///< whole channels: one draw per (batch, channel)
  bool alpha;    ///< dropped values keep a SELU's mean and variance
};

/// The engine's rules know how to draw for the elements of a ShardTensor.
at::Tensor through_engine(const DropoutKind& kind, const at::Tensor& input, double p, bool train) {
  if (kind.feature) {
    return kind.alpha ? at::feature_alpha_dropout(input, p, train) : at::feature_dropout(input, p, train);
  }
  return kind.alpha ? at::alpha_dropout(input, p, train) : at::dropout(input, p, train);
}

/// Klambauer et al. 2017, "Self-Normalizing Neural Networks", eq. 14: dropped values become -scale
/// * alpha, then an affine map restores mean 0 and variance 1.
at::Tensor alpha_scaled(const at::Tensor& input, const at::Tensor& kept, double p) {
  constexpr double kAlpha = 1.7580993408473766;
  const double a = 1.0 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  const at::Tensor shift = (kept - 1).mul(kAlpha * a) + kAlpha * a * p;
  return input * (kept * a) + shift;
}

/// x:dropout(p = 0.5, train = true) -> Tensor
/// x:dropout_(p = 0.5, train = true) -> Tensor
/// x:feature_dropout(p = 0.5, train = true) -> Tensor
/// x:feature_dropout_(p = 0.5, train = true) -> Tensor
/// x:alpha_dropout(p = 0.5, train = true) -> Tensor
/// x:alpha_dropout_(p = 0.5, train = true) -> Tensor
/// x:feature_alpha_dropout(p = 0.5, train = true) -> Tensor
/// x:feature_alpha_dropout_(p = 0.5, train = true) -> Tensor
/// mh.dropout_(x, p = 0.5, train = true) -> Tensor
/// mh.feature_dropout(x, p = 0.5, train = true) -> Tensor
/// mh.feature_dropout_(x, p = 0.5, train = true) -> Tensor
/// mh.alpha_dropout_(x, p = 0.5, train = true) -> Tensor
/// mh.feature_alpha_dropout(x, p = 0.5, train = true) -> Tensor
/// mh.feature_alpha_dropout_(x, p = 0.5, train = true) -> Tensor
///   Sets elements to zero with probability p and scales the others by 1 / (1 - p). `feature` drops whole channels (dim
///   1), `alpha` keeps mean and variance after SELU, and a name that ends in _ works in place. Blocks of a ShardTensor
///   draw what the whole tensor would.
///   x           Tensor      floating point or complex
///   p           number      probability from 0 to 1
///   train       boolean     false returns x
///   returns     Tensor      shape, dtype and placements of x
///   collective  no
///   errors      ValueError: p is not within 0 and 1; TypeError: a tensor of integers
///   example
///     mh.ones{3}:dropout(0.5, false):tolist()    --> {1.0, 1.0, 1.0}
template <const DropoutKind& kKind, bool kInPlace>
int dropout(lua_State* lua) {
  const at::Tensor input = check_tensor(lua, 1);
  const ElementwiseRandom random;
  const double p = is_nil(lua, 2) ? 0.5 : check_number(lua, 2);
  const bool train = is_nil(lua, 3) || check_bool(lua, 3);
  TORCH_CHECK_VALUE(p >= 0 && p <= 1, kKind.name, ": probability ", p, " is not within 0 and 1");
  TORCH_CHECK_VALUE(!kKind.feature || input.dim() >= 2, kKind.name,
                    ": needs at least 2 dimensions (batch, channel), have ", input.sizes());
  TORCH_CHECK_TYPE(!train || p == 0 || input.is_floating_point() || input.is_complex(), kKind.name, ": ",
                   describe(input), " cannot hold the result\n  fix   x:float()");
  at::Tensor output = input;
  if (train && p > 0 && is_shard_tensor(input)) {
    output = through_engine(kKind, input, p, train);
  } else if (train && p > 0 && input.numel() > 0) {
    std::vector<int64_t> shape = input.sizes().vec();
    if (kKind.feature) std::fill(shape.begin() + 2, shape.end(), 1);
    at::Tensor kept = at::empty(shape, input.options());
    kept.bernoulli_(1 - p, default_generator());
    if (p == 1) {
      output = input * at::zeros({}, input.options());
    } else {
      output = kKind.alpha ? alpha_scaled(input, kept, p) : input * kept.div_(1 - p);
    }
  }
  if (kInPlace) {
    if (!output.is_same(input)) input.copy_(output);
    lua_settop(lua, 1);
  } else {
    push(lua, output);
  }
  return 1;
}

constexpr DropoutKind kPlain{"dropout", false, false};
constexpr DropoutKind kAlpha{"alpha_dropout", false, true};
constexpr DropoutKind kFeature{"feature_dropout", true, false};
constexpr DropoutKind kFeatureAlpha{"feature_alpha_dropout", true, true};

void open_dropout(lua_State* lua) {
  static const luaL_Reg functions[] = {{"dropout", guard<dropout<kPlain, false>>},
                                       {"dropout_", guard<dropout<kPlain, true>>},
                                       {"alpha_dropout", guard<dropout<kAlpha, false>>},
                                       {"alpha_dropout_", guard<dropout<kAlpha, true>>},
                                       {"feature_dropout", guard<dropout<kFeature, false>>},
                                       {"feature_dropout_", guard<dropout<kFeature, true>>},
                                       {"feature_alpha_dropout", guard<dropout<kFeatureAlpha, false>>},
                                       {"feature_alpha_dropout_", guard<dropout<kFeatureAlpha, true>>},
                                       {nullptr, nullptr}};
  add_functions(lua, functions);
  add_tensor_methods(lua, functions);
}

const Binding dropout_binding{"dropout", open_dropout};

}  // namespace

}  // namespace moonhalo::scripting
