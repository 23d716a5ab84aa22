// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <string>
#include <vector>

// Small models of four kinds, for fields [N, kFieldChannels, H, W] whose sides are multiples of 32. Each gives one
// channel of the field's size, the classifiers ten numbers; all weights are the same in every instance.
namespace moonhalo::bench {

constexpr int64_t kFieldChannels = 3;

namespace nn = torch::nn;

inline void same_weights(nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& p : module.parameters()) {
    const at::Tensor numbers = (at::arange(p.numel() * (p.is_complex() ? 2 : 1), at::kFloat) * 0.7).sin() * 0.1;
    p.copy_(p.is_complex() ? at::view_as_complex(numbers.view({-1, 2})).view(p.sizes()) : numbers.view(p.sizes()));
  }
  for (const auto& m : module.modules()) {
    if (auto* norm = m->as<nn::GroupNorm>()) norm->weight.fill_(1);
    if (auto* norm = m->as<nn::LayerNorm>()) norm->weight.fill_(1);
  }
}

inline nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t padding = 0,
                       int64_t groups = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).groups(groups));
}

/// Two convolutions with GroupNorm per level, down by pooling, up by bilinear interpolation.
struct UNetImpl : nn::Module {
  UNetImpl() {
    const auto stage = [&](int64_t in, int64_t out) {
      stages.push_back(register_module("stage" + std::to_string(stages.size()),
                                       nn::Sequential(conv(in, out, 3, 1, 1), nn::GroupNorm(4, out), nn::SiLU(),
                                                      conv(out, out, 3, 1, 1), nn::GroupNorm(4, out), nn::SiLU())));
    };
    stage(kFieldChannels, 16);
    stage(16, 32);
    stage(32, 64);
    stage(64 + 32, 32);
    stage(32 + 16, 16);
    head = register_module("head", conv(16, 1, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor a = stages[0]->forward(x), b = stages[1]->forward(at::max_pool2d(a, 2));
    const at::Tensor c = stages[2]->forward(at::max_pool2d(b, 2));
    const at::Tensor d = stages[3]->forward(at::cat({twice(c), b}, 1));
    return head->forward(stages[4]->forward(at::cat({twice(d), a}, 1)));
  }
  static at::Tensor twice(const at::Tensor& x) {
    return at::upsample_bilinear2d(x, {2 * x.size(2), 2 * x.size(3)}, false);
  }
  std::vector<nn::Sequential> stages;
  nn::Conv2d head = nullptr;
};
TORCH_MODULE(UNet);

/// Four layers of 12 x 12 modes. Source: Z. Li et al., Fourier Neural Operator, arXiv:2010.08895.
struct FnoImpl : nn::Module {
  static constexpr int64_t kWidth = 16, kModes = 12;
  static constexpr int kLayers = 4;
  FnoImpl() {
    embed_in_mesh = register_module("lift", conv(kFieldChannels, kWidth, 1));
    for (int i = 0; i < kLayers; ++i) {
      const std::string n = std::to_string(i);
      beside.push_back(register_module("beside" + n, conv(kWidth, kWidth, 1)));
      for (const char* part : {"low", "high"}) {
        modes.push_back(register_parameter(part + n, at::zeros({kWidth, kWidth, kModes, kModes}, at::kComplexFloat)));
      }
    }
    drop = register_module("drop", conv(kWidth, 1, 1));
  }
  at::Tensor forward(const at::Tensor& field) {
    at::Tensor x = embed_in_mesh->forward(field);
    for (int i = 0; i < kLayers; ++i) x = at::gelu(spectral(x, modes[2 * i], modes[2 * i + 1]) + beside[i]->forward(x));
    return drop->forward(x);
  }
  static at::Tensor spectral(const at::Tensor& x, const at::Tensor& low, const at::Tensor& high) {
    const int64_t height = x.size(2), width = x.size(3);
    const at::Tensor f = at::fft_rfft2(x).narrow(3, 0, kModes);
    const at::Tensor first = at::einsum("bixy,ioxy->boxy", {f.narrow(2, 0, kModes), low});
    const at::Tensor last = at::einsum("bixy,ioxy->boxy", {f.narrow(2, height - kModes, kModes), high});
    const at::Tensor rows = at::constant_pad_nd(first, {0, width / 2 + 1 - kModes, 0, height - kModes}) +
                            at::constant_pad_nd(last, {0, width / 2 + 1 - kModes, height - kModes, 0});
    return at::fft_irfft2(rows, at::OptionalIntArrayRef({height, width}));
  }
  nn::Conv2d embed_in_mesh = nullptr, drop = nullptr;
  std::vector<nn::Conv2d> beside;
  std::vector<at::Tensor> modes;
};
TORCH_MODULE(Fno);

/// Patches of 8 x 8 (16 x 16 from 256 on), four blocks of attention among all of them. Source: A. Dosovitskiy et al.,
/// arXiv:2010.11929.
struct VisionTransformerImpl : nn::Module {
  static constexpr int64_t kWidth = 128, kHeads = 4;
  static constexpr int kBlocks = 4;
  explicit VisionTransformerImpl(int64_t side) {
    const int64_t patch = side < 256 ? 8 : 16;
    patches = register_module("patches", conv(kFieldChannels, kWidth, patch, patch));
    places = register_parameter("places", at::zeros({1, (side / patch) * (side / patch), kWidth}));
    for (int i = 0; i < kBlocks; ++i) {
      const std::string n = std::to_string(i);
      first.push_back(register_module("first" + n, nn::LayerNorm(nn::LayerNormOptions({kWidth}))));
      second.push_back(register_module("second" + n, nn::LayerNorm(nn::LayerNormOptions({kWidth}))));
      qkv.push_back(register_module("qkv" + n, nn::Linear(kWidth, 3 * kWidth)));
      out.push_back(register_module("out" + n, nn::Linear(kWidth, kWidth)));
      mlp.push_back(register_module(
          "mlp" + n, nn::Sequential(nn::Linear(kWidth, 4 * kWidth), nn::GELU(), nn::Linear(4 * kWidth, kWidth))));
    }
    head = register_module("head", nn::Linear(kWidth, 10));
  }
  at::Tensor forward(const at::Tensor& field) {
    at::Tensor x = patches->forward(field).flatten(2).transpose(1, 2) + places;
    for (int i = 0; i < kBlocks; ++i) {
      const auto parts = qkv[i]->forward(first[i]->forward(x)).chunk(3, -1);
      const auto heads = [&](const at::Tensor& t) {
        return t.unflatten(-1, {kHeads, kWidth / kHeads}).transpose(1, 2);
      };
      const at::Tensor mixed = at::scaled_dot_product_attention(heads(parts[0]), heads(parts[1]), heads(parts[2]));
      x = x + out[i]->forward(mixed.transpose(1, 2).flatten(2));
      x = x + mlp[i]->forward(second[i]->forward(x));
    }
    return head->forward(x.mean(1));
  }
  nn::Conv2d patches = nullptr;
  at::Tensor places;
  std::vector<nn::LayerNorm> first, second;
  std::vector<nn::Linear> qkv, out;
  std::vector<nn::Sequential> mlp;
  nn::Linear head = nullptr;
};
TORCH_MODULE(VisionTransformer);

/// Three stages of two blocks: depthwise 7 x 7, LayerNorm over channels, two linear layers. Source: Z. Liu et al.,
/// arXiv:2201.03545.
struct ConvNextImpl : nn::Module {
  ConvNextImpl() {
    int64_t in = kFieldChannels;
    for (const int64_t width : {32, 64, 128}) {
      const std::string n = std::to_string(enter.size());
      enter.push_back(
          register_module("enter" + n, in == kFieldChannels ? conv(in, width, 4, 4) : conv(in, width, 2, 2)));
      for (int i = 0; i < 2; ++i) {
        const std::string at = std::to_string(deep.size());
        deep.push_back(register_module("deep" + at, conv(width, width, 7, 1, 3, width)));
        norm.push_back(register_module("norm" + at, nn::LayerNorm(nn::LayerNormOptions({width}))));
        mlp.push_back(register_module(
            "mlp" + at, nn::Sequential(nn::Linear(width, 4 * width), nn::GELU(), nn::Linear(4 * width, width))));
      }
      in = width;
    }
    head = register_module("head", nn::Linear(in, 10));
  }
  at::Tensor forward(const at::Tensor& field) {
    at::Tensor x = field;
    for (size_t s = 0; s < enter.size(); ++s) {
      x = enter[s]->forward(x);
      for (size_t i = 2 * s; i < 2 * s + 2; ++i) {
        const at::Tensor y = norm[i]->forward(deep[i]->forward(x).permute({0, 2, 3, 1}));
        x = x + mlp[i]->forward(y).permute({0, 3, 1, 2});
      }
    }
    return head->forward(x.mean({2, 3}));
  }
  std::vector<nn::Conv2d> enter, deep;
  std::vector<nn::LayerNorm> norm;
  std::vector<nn::Sequential> mlp;
  nn::Linear head = nullptr;
};
TORCH_MODULE(ConvNext);

}  // namespace moonhalo::bench
