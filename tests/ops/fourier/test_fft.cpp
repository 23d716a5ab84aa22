// SPDX-License-Identifier: Apache-2.0
// Fourier transforms on cuts against the whole tensor, the bytes that they move, and what is made of them: short-time
// transforms and a spectral convolution.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "moonhalo/engine/comm/communicator.h"
#include "tests/support/fewest.h"
#include "tests/support/oracle.h"
#include "tests/support/placement_cases.h"
#include "tests/support/sent_bytes.h"

namespace moonhalo::testing::test_fft {
namespace {

using X = const at::Tensor&;
using Sizes = std::vector<int64_t>;

TEST(Fft, X08_ComplexTransformsInEveryNormAndDirection) {
  check({{"first", [](X x) { return List{at::fft_fft(x, {}, 0)}; }, {.double_backward = true}},
         {"cropped", [](X x) { return List{at::fft_ifft(x, 5, 1, "forward")}; }},
         {"padded", [](X x) { return List{at::fft_fft(x, 9, 1, "ortho")}; }},
         {"two",
          [](X x) {
            return List{at::fft_fft2(x, {}, {0, 1}, "ortho"), at::fft_ifft2(x)};
          },
          {.double_backward = true}},
         {"all",
          [](X x) {
            return List{at::fft_fftn(x), at::fft_ifftn(x, {}, {}, "forward")};
          }},
         {"shifted",
          [](X x) {
            return List{at::fft_fftshift(at::fft_fftn(x), {0, 1})};
          }}},
        make_tensor({9, 7, 2}, 1, at::kComplexDouble));
}

TEST(Fft, X08_RealTransformsHalveTheirLastDimAndBack) {
  check({{"first",
          [](X x) {
            return List{at::fft_rfft(x, {}, 0), at::fft_ihfft(x, {}, 0, "ortho")};
          },
          {.double_backward = true}},
         {"two",
          [](X x) {
            return List{at::fft_rfft2(x, {}, {0, 1}), at::fft_rfftn(x, {}, {1, 0}, "forward")};
          },
          {.double_backward = true}},
         {"all",
          [](X x) {
            return List{at::fft_rfftn(x, {}, {}, "ortho"), at::fft_ihfftn(x)};
          }},
         {"both_sides",
          [](X x) {
            return List{at::fft_fft(x, {}, 0), at::_fft_r2c(x, {0, 1}, 1, false)};
          }},
         {"there_and_back",
          [](X x) {
            return List{at::fft_irfft2(at::fft_rfft2(x, {}, {1, 0}), Sizes{7, 9}, {1, 0})};
          }},
         {"taken_as_half",
          [](X x) {
            return List{at::fft_hfft(x, {}, 0), at::fft_irfft(x, 7, 1)};
          }}},
        make_tensor({9, 7, 2}, 1));
  check({{"first",
          [](X x) {
            return List{at::fft_irfft(x, {}, 0), at::fft_hfft(x, 15, 0, "ortho")};
          },
          {.double_backward = true}},
         {"two",
          [](X x) {
            return List{at::fft_irfft2(x, {}, {0, 1}), at::fft_irfftn(x, Sizes{6, 13}, {0, 1}, "forward")};
          },
          {.double_backward = true}},
         {"all",
          [](X x) {
            return List{at::fft_irfftn(x, Sizes{4, 9, 7}, {2, 0, 1}), at::fft_hfftn(x)};
          }}},
        make_tensor({9, 7, 2}, 1, at::kComplexDouble));
}

TEST(Fft, OneDimAndSinglePrecision) {
  const auto program = [](const List& t) {
    return List{at::fft_fft(t[0]), at::fft_irfft(at::fft_rfft(t[0], {}, -1, "ortho"), 11, -1, "ortho"),
                at::fft_ihfft(t[0])};
  };
  for (const auto& placements :
       {std::vector{shard(0, {3, 6, 2})}, std::vector{shard(0, {11, 0, 0})}, std::vector{partial()}}) {
    expect_same_as_plain({3}, {{.full = make_tensor({11}, 1), .placements = placements}}, program,
                         {.double_backward = true});
    expect_same_as_plain({3}, {{.full = make_tensor({11}, 1, at::kFloat), .placements = placements}}, program,
                         {.tolerance = 1e-5});
  }
}

TEST(Fft, ThreeCutDimsOverACubeOfRanks) {
  const auto program = [](const List& t) {
    return List{at::fft_rfftn(t[0], {}, {1, 2, 3}), at::fft_fftn(t[0], {}, {2, 1})};
  };
  for (const int64_t batch : {1, 8}) {
    expect_same_as_plain(
        {2, 2, 2}, {{.full = make_tensor({batch, 5, 6, 3}, 1), .placements = {shard(1, {4, 1}), shard(2), shard(3)}}},
        program);
  }
}

// Checks where tensors stand between their moves, as pencil_transposes.h says, and that no more than the difference is
// sent.
struct Route {
  const char* name;
  Sizes mesh, shape;
  std::function<at::Tensor(X)> run;
  // Shapes and placements; consecutive ones of equal shape are a move.
  std::vector<std::pair<Sizes, std::vector<Placement>>> stages;
  int64_t bytes_before = 16,
          bytes_after = 16;  // of an element, before the extent changes and afterwards
};

std::vector<Route> routes() {
  const auto forward = [](Sizes dims) { return [dims](X x) { return at::_fft_c2c(x, dims, 0, true); }; };
  const auto halved = [](Sizes dims) { return [dims](X x) { return at::_fft_r2c(x, dims, 0, true); }; };
  const std::vector<Placement> rows{shard(0, {5, 4})}, columns{shard(1, {4, 3})};
  return {
      {"uncut_dims_stay", {2}, {9, 7}, forward({1}), {{{9, 7}, rows}}},
      {"one_dim", {2}, {9, 7}, forward({0}), {{{9, 7}, rows}, {{9, 7}, columns}, {{9, 7}, rows}}},
      {"both_dims", {2}, {9, 7}, forward({0, 1}), {{{9, 7}, rows}, {{9, 7}, columns}, {{9, 7}, rows}}},
      {"over_three",
       {3},
       {9, 7},
       forward({0}),
       {{{9, 7}, {shard(0, {4, 0, 5})}}, {{9, 7}, {shard(1, {3, 2, 2})}}, {{9, 7}, {shard(0, {4, 0, 5})}}}},
      {"onto_the_batch",
       {2, 2},
       {4, 9, 7},
       forward({1, 2}),
       {{{4, 9, 7}, {shard(1, {3, 6}), shard(2, {3, 4})}},
        {{4, 9, 7}, {shard(0), shard(0)}},
        {{4, 9, 7}, {shard(1, {3, 6}), shard(2, {3, 4})}}}},
      {"halved_where_it_is",
       {2},
       {9, 7},
       halved({0, 1}),
       {{{9, 4}, rows}, {{9, 4}, {shard(1, {2, 2})}}, {{9, 4}, rows}}},
      {"halved_on_pencils",
       {2},
       {4, 9, 8},
       halved({1, 2}),
       {{{4, 9, 8}, {shard(1, {5, 4})}},
        {{4, 9, 8}, {shard(0)}},
        {{4, 9, 5}, {shard(0)}},
        {{4, 9, 5}, {shard(1, {5, 4})}}},
       8},
      {"halved_after_a_move",
       {2},
       {9, 7},
       halved({1, 0}),
       {{{9, 7}, rows}, {{9, 7}, columns}, {{5, 7}, columns}, {{5, 7}, {shard(0, {3, 2})}}},
       8},
  };
}

// The bytes that all ranks must get, where every move brings what they do not hold yet.
int64_t fewest_bytes(const Route& route, const MeshPtr& mesh) {
  Sizes there(mesh->size());
  std::iota(there.begin(), there.end(), int64_t{0});
  int64_t fewest = 0;
  for (size_t i = 0; i + 1 < route.stages.size(); ++i) {
    const auto& [a, from] = route.stages[i];
    const auto& [b, to] = route.stages[i + 1];
    if (a != b) continue;
    const bool before = a == route.shape && route.bytes_before == 8;
    fewest += fewest_elements(*make_spec(mesh, a, from), *make_spec(mesh, b, to), there) * (before ? 8 : 16);
  }
  return fewest;
}

TEST(Fft, BytesAreTheFewestThatPencilsNeed) {
  for (const Route& route : routes()) {
    on_mesh(route.mesh, [&](const MeshPtr& mesh) {
      const bool real = route.bytes_before == 8 || route.stages[0].first != route.shape;
      const auto& placements = route.stages[0].second;
      const at::Tensor x =
          shard_of(make_tensor(route.shape, 1, real ? at::kDouble : at::kComplexDouble), mesh, placements);
      mesh->group().reset_stats();
      const at::Tensor y = route.run(x);
      const int64_t sent = bytes_of_all_ranks(*mesh);
      const auto& [shape, last] = route.stages.back();
      EXPECT_EQ(spec(y), make_spec(mesh, shape, last)) << route.name << spec(y)->to_string();
      if (mesh->rank() == 0) EXPECT_EQ(sent, fewest_bytes(route, mesh)) << route.name;
    });
  }
}

// LibTorch fills the other half with new zeros, which have more rows than the gradient: no rank holds all of them.
TEST(Fft, X08_TheGradientOfAHalvedDimStaysCut) {
  for (const Placement& cut : {shard(1, {6, 10}), shard(1), shard(0)}) {
    on_mesh({2}, [&](const MeshPtr& mesh) {
      const at::Tensor x = shard_of(make_tensor({4, 16}, 1), mesh, {cut}).requires_grad_().mul(2);
      const at::Tensor grad = torch::autograd::grad({at::view_as_real(at::fft_rfft(x)).square().sum()}, {x})[0];
      EXPECT_TRUE(spec(grad)->is_cut(cut.dim)) << spec(grad)->to_string();
    });
  }
}

TEST(Fft, ShortTimeTransformsOfSignalsCutAnywhere) {
  const at::Tensor window = make_tensor({6}, 2).abs();
  const auto there = [&](const List& t) {
    return List{at::stft(t[0], 6, 3, 6, t[1], false, std::nullopt, true),
                at::stft(t[0], 6, 2, 6, t[1], true, "reflect", true, std::nullopt, true),
                at::stft(t[0], 8, std::nullopt, 6, t[1], true, "constant", false, false, false)};
  };
  const auto back = [](const List& t) {
    return List{at::istft(t[0], 6, 2, 6, t[1]), at::istft(t[0], 6, 2, 6, t[1], true, true, true, 15)};
  };
  for (const auto& placements : {std::vector{shard(0)}, std::vector{shard(1, {5, 14})}, std::vector{partial()}}) {
    expect_same_as_plain({2},
                         {{.full = make_tensor({2, 19}, 1), .placements = placements}, {.full = window, .plain = true}},
                         there, {.double_backward = true});
  }
  for (const auto& placements : {std::vector{shard(0)}, std::vector{shard(1, {3, 1})}, std::vector{shard(2, {2, 6})}}) {
    expect_same_as_plain({2},
                         {{.full = make_tensor({2, 4, 8}, 1, at::kComplexDouble), .placements = placements},
                          {.full = window, .plain = true}},
                         back);
  }
}

TEST(Fft, ShortTimeTransformsInInferenceModeAndWhatTheyRefuse) {
  on_mesh({2}, [](const MeshPtr& mesh) {
    const c10::InferenceMode inference;
    const at::Tensor full = make_tensor({2, 19}, 1), window = make_tensor({6}, 2);
    const at::Tensor x = shard_of(full, mesh, {shard(1, {5, 14})});
    const auto transform = [](X signal, int64_t n_fft, std::optional<int64_t> hop, X weights,
                              std::optional<bool> complex) {
      return at::stft(signal, n_fft, hop, 6, weights, false, std::nullopt, complex);
    };
    EXPECT_EQ(difference(full_tensor(transform(x, 6, 3, window, true)), transform(full, 6, 3, window, true), 1e-10),
              "");
    const auto refuses = [&](const auto& call, const char* text) {
      EXPECT_THAT(message_of(call), ::testing::AllOf(::testing::StartsWith(text), ::testing::HasSubstr("\n  have  ")));
    };
    refuses([&] { transform(x.unsqueeze(0), 6, 3, window, true); },
            "stft: the input must be one or a batch of signals");
    refuses([&] { transform(x, 20, 3, window, true); }, "stft: needs 0 < n_fft <= samples, 0 < hop_length");
    refuses([&] { transform(x, 6, 0, window, true); }, "stft: needs 0 < n_fft <= samples, 0 < hop_length");
    refuses([&] { transform(x, 6, 3, window.narrow(0, 0, 5), true); },
            "stft: a window of shape [5] where win_length is 6");
    refuses([&] { transform(x, 6, 3, window, std::nullopt); }, "stft: return_complex must be given for real inputs");
    refuses([&] { at::stft(x.to(at::kComplexDouble), 6, 3, 6, window, false, true, true); },
            "stft: complex signals have no onesided transform");
    refuses([&] { at::_fft_r2c(x, at::IntArrayRef{}, 0, true); }, "aten::_fft_r2c: no dims to transform along");
  });
}

// A Fourier neural operator's layer: the low modes of a field, mixed over channels.
TEST(Fft, X08_ASpectralConvolutionKeepsItsCut) {
  const auto layer = [](const List& t) {
    const at::Tensor modes = at::fft_rfft2(t[0]);
    const auto mix = [&](X w, int64_t from, int64_t to) {
      return at::einsum("bixy,ioxy->boxy", {modes.slice(2, from, to).slice(3, 0, 3), w});
    };
    at::Tensor out = at::zeros_like(modes);
    out.slice(2, 0, 3).slice(3, 0, 3).copy_(mix(t[1], 0, 3));
    out.slice(2, 8, 11).slice(3, 0, 3).copy_(mix(t[2], 8, 11));
    return List{at::fft_irfft2(out, Sizes{11, 7})};
  };
  const at::Tensor x = make_tensor({2, 3, 11, 7}, 1), w = make_tensor({3, 3, 3, 3}, 2, at::kComplexDouble),
                   v = make_tensor({3, 3, 3, 3}, 3, at::kComplexDouble);
  const auto both = [&](std::vector<Placement> weight) {
    return [=](std::vector<Placement> field) {
      return std::vector<Input>{
          {.full = x, .placements = field}, {.full = w, .placements = weight}, {.full = v, .placements = weight}};
    };
  };
  expect_same_as_plain({2}, both({replicate()})({shard(2, {4, 7})}), layer);
  expect_same_as_plain({3}, both({shard(1)})({shard(3, {1, 0, 6})}), layer);
  expect_same_as_plain({2}, both({shard(0, {1, 2})})({shard(1, {1, 2})}), layer);
  expect_same_as_plain({2, 2}, both({replicate(), shard(1)})({shard(2, {5, 6}), shard(3)}), layer);
  on_mesh({2}, [&](const MeshPtr& mesh) {
    const auto cut = std::vector{shard(2, {4, 7})};
    const at::Tensor y =
        layer({shard_of(x, mesh, cut), shard_of(w, mesh, {replicate()}), shard_of(v, mesh, {replicate()})})[0];
    EXPECT_EQ(spec(y), make_spec(mesh, x.sizes(), cut)) << spec(y)->to_string();
  });
}

// A spherical harmonic transform of [batch, channels, latitude, longitude]: waves along longitude, then for every order
// a matrix of (degree, latitude).
TEST(Fft, X08_SphericalHarmonicsKeepTheirCut) {
  const at::Tensor x = make_tensor({2, 3, 7, 8}, 1), legendre = make_tensor({5, 6, 7}, 2);
  const auto analysis = [](X waves, X matrices) {
    return at::einsum("bckm,mlk->bclm", {waves, matrices.to(at::kComplexDouble)});
  };
  const auto filter = [&](const List& t) {
    const at::Tensor coefficients = analysis(at::fft_rfft(t[0], {}, -1, "forward"), t[1]);
    const at::Tensor waves = at::einsum("bclm,mlk->bckm", {coefficients, t[1].to(at::kComplexDouble)});
    return List{at::fft_irfft(waves, 8, -1, "forward")};
  };
  const auto inputs = [&](std::vector<Placement> field, std::vector<Placement> matrices) {
    return std::vector<Input>{{.full = x, .placements = std::move(field)},
                              {.full = legendre, .placements = std::move(matrices)}};
  };
  expect_same_as_plain({2}, inputs({shard(2, {3, 4})}, {replicate()}), filter);
  expect_same_as_plain({3}, inputs({shard(3, {1, 0, 7})}, {shard(0, {1, 0, 4})}), filter);
  expect_same_as_plain({4}, inputs({shard(1, {1, 0, 1, 1})}, {shard(2)}), filter);
  expect_same_as_plain({2, 2}, inputs({shard(2, {1, 6}), shard(3, {5, 3})}, {replicate(), replicate()}), filter);

  on_mesh({2}, [&](const MeshPtr& mesh) {
    const at::Tensor matrices = shard_of(legendre, mesh, {replicate()});
    const at::Tensor waves = at::fft_rfft(x);
    const auto of_cut = [&](Placement cut) {
      const at::Tensor field = shard_of(waves, mesh, {cut});
      mesh->group().reset_stats();
      return analysis(field, matrices);
    };
    for (const Placement& cut : {shard(3, {2, 3}), shard(1, {2, 1}), shard(0)}) {
      EXPECT_EQ(spec(of_cut(cut)), make_spec(mesh, {2, 3, 6, 5}, {cut})) << cut.to_string();
      EXPECT_EQ(mesh->group().stats().total().bytes, 0) << cut.to_string();
    }
    // Sums over latitudes: cheaper than to add the coefficients is to cut the waves by another dim.
    EXPECT_EQ(spec(of_cut(shard(2, {3, 4}))), make_spec(mesh, {2, 3, 6, 5}, {shard(3, {3, 2})}));
    EXPECT_EQ(mesh->group().stats().total().bytes, 6 * 16 * (mesh->rank() == 0 ? 3 * 2 : 4 * 3));
  });
}

}  // namespace
}  // namespace moonhalo::testing::test_fft
