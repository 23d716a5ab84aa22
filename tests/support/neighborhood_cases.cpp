// SPDX-License-Identifier: Apache-2.0
#include "tests/support/neighborhood_cases.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/oracle.h"

namespace moonhalo::testing {

const std::vector<NeighborhoodCase>& neighborhood_cases() {
  static const std::vector<NeighborhoodCase> cases = {
      {"one_key", {7}, {{1}}},
      {"whole_domain", {7}, {{7}}},
      {"one_row", {1}, {{1}}},
      {"batches_and_heads", {9}, {{3}}, 4, 4, 3, 3},
      {"long_window", {300}, {{290}}, 3, 3, 1, 1},
      {"longer_than_a_chunk", {1100}, {{1080}}, 3, 3, 1, 1},
      {"causal_longer_than_a_chunk", {1100}, {{1050}, {3}, {1}, {true}}, 2, 2, 1, 1},
      {"many_slabs", {700}, {{5}, {2}}, 33, 17, 1, 1},
      {"wide_heads", {6, 7}, {{3, 5}}, 40, 72},
      {"narrow_values", {6, 7}, {{3, 5}}, 16, 1},
      {"scale", {6, 7}, {{3}}, 8, 8, 1, 1, 0.7},
      {"negative_scale", {6, 7}, {{3}}, 8, 8, 1, 1, -0.7},
      {"even_2d", {8, 9}, {{4, 6}}},
      {"mixed_2d", {9, 11}, {{2, 5}, {2, 3}, {3, 2}, {true, false}}},
      {"causal_2d", {9, 8}, {{4, 3}, {1}, {2, 1}, {true, true}}},
      {"thin_2d", {1, 9}, {{1, 4}}},
      {"cube", {4, 5, 6}, {{3, 2, 5}}, 8, 8},
      {"mixed_3d", {6, 5, 7}, {{2, 3, 3}, {1, 3, 2}, {3, 1, 2}, {false, true, false}}},
      {"causal_3d", {4, 5, 6}, {{2, 3, 4}, {2, 1, 3}, {2, 1, 1}, {true, true, true}}},
      {"flat_3d", {1, 1, 9}, {{1, 1, 5}}},
  };
  return cases;
}

std::vector<at::Tensor> inputs_of(const NeighborhoodCase& c, at::ScalarType type) {
  std::vector<int64_t> shape = {c.batch};
  shape.insert(shape.end(), c.dims.begin(), c.dims.end());
  shape.push_back(c.heads);
  shape.push_back(c.head_dim);
  std::vector<int64_t> value = shape;
  value.back() = c.value_dim;
  return {make_tensor(shape, 1, type) * 2, make_tensor(shape, 2, type) * 2, make_tensor(value, 3, type)};
}

NeighborhoodCotangents cotangents_of(const NeighborhoodCase& c, at::ScalarType type) {
  std::vector<int64_t> shape = inputs_of(c, type)[2].sizes().vec();
  const at::Tensor output = make_tensor(shape, 7).to(type);
  shape.pop_back();
  return {output, make_tensor(shape, 8).to(neighborhood_sum_type(type))};
}

const std::vector<NeighborhoodBlocks>& neighborhood_block_cases() {
  static const std::vector<NeighborhoodBlocks> cases = {
      {{"rows", {19}, {{6}, {2}, {2}}, 7, 33}, {{1, 11, 0, 7}}},
      {{"causal_rows", {90}, {{7}, {3}, {1}, {true}}, 4, 4}, {{50, 40}}},
      {{"grid", {9, 21}, {{4, 5}, {1, 3}, {2, 1}}, 8, 8}, {{5, 4}, {1, 13, 7}}},
      {{"one_dim_of_two", {12, 13}, {{3, 6}, {1}, {1}, {true, false}}, 5, 6}, {{3, 9}, {13}}},
      {{"cube", {5, 6, 9}, {{3, 2, 4}, {1}, {1, 2, 2}, {false, true, false}}, 4, 3}, {{5}, {1, 5}, {4, 5}}},
  };
  return cases;
}

const std::vector<NeighborhoodBlocks>& neighborhood_tensor_cases() {
  static const std::vector<NeighborhoodBlocks> cases = {
      {{"rows", {75}, {{8}, {2}}, 16, 16}, {{70, 5}}},
      {{"whole", {70}, {{70}}, 32, 64, 1, 1}, {}},
      {{"grid", {11, 13}, {{3, 6}, {2, 1}, {1, 2}, {true, false}}, 48, 32, 2, 1}, {{4, 7}, {13}}},
      {{"cube", {4, 6, 5}, {{2, 3, 4}}, 16, 48}, {{4}, {6}, {1, 4}}},
      {{"wide", {9, 9}, {{5}}, 128, 112, 1, 1}, {}},
      {{"wide_values", {9, 9}, {{5}, {1}, {1}, {true}}, 16, 128, 1, 1}, {}},
  };
  return cases;
}

NeighborhoodResults in_blocks(const std::vector<at::Tensor>& inputs, const NeighborhoodCall& whole,
                              std::vector<std::vector<int64_t>> blocks, const NeighborhoodCotangents& given,
                              const AttendBlock& attend) {
  for (int64_t d = 0; blocks.size() < static_cast<size_t>(whole.spatial); ++d) blocks.push_back({whole.axis(d).extent});
  NeighborhoodResults all{at::zeros_like(given.output), at::zeros_like(given.logsumexp), at::zeros_like(inputs[0]),
                          at::zeros_like(inputs[1]), at::zeros_like(inputs[2])};
  NeighborhoodCall call = whole;
  const auto queries_of = [&](at::Tensor t) {
    for (int64_t d = 0; d < call.spatial; ++d) t = t.narrow(d + 1, call.axis(d).query_begin, call.axis(d).queries);
    return t;
  };
  const auto keys_of = [&](at::Tensor t) {
    for (int64_t d = 0; d < call.spatial; ++d) t = t.narrow(d + 1, call.axis(d).key_begin, call.axis(d).keys);
    return t;
  };
  std::vector<size_t> place(blocks.size(), 0);
  while (true) {
    for (int64_t d = 0; d < call.spatial; ++d) {
      neighborhood::Axis& axis = call.axis(d);
      axis.query_begin = 0;
      for (size_t i = 0; i < place[d]; ++i) axis.query_begin += blocks[d][i];
      axis.queries = blocks[d][place[d]];
      const auto keys = keys_reached(axis, {axis.query_begin, axis.query_begin + axis.queries});
      axis.key_begin = keys.begin;
      axis.keys = keys.end - keys.begin;
    }
    const NeighborhoodResults r = attend({queries_of(inputs[0]), keys_of(inputs[1]), keys_of(inputs[2])}, call,
                                         {queries_of(given.output), queries_of(given.logsumexp)});
    queries_of(all.output).copy_(r.output);
    queries_of(all.logsumexp).copy_(r.logsumexp);
    queries_of(all.query).copy_(r.query);
    keys_of(all.key).add_(r.key);
    keys_of(all.value).add_(r.value);
    size_t d = 0;
    while (d < blocks.size() && ++place[d] == blocks[d].size()) place[d++] = 0;
    if (d == blocks.size()) return all;
  }
}

void expect_near(const NeighborhoodResults& actual, const NeighborhoodResults& expected, double tolerance,
                 const std::string& name) {
  using R = NeighborhoodResults;
  const std::pair<const char*, at::Tensor R::*> fields[] = {{"output", &R::output},
                                                            {"logsumexp", &R::logsumexp},
                                                            {"grad_query", &R::query},
                                                            {"grad_key", &R::key},
                                                            {"grad_value", &R::value}};
  const auto plain = [](const at::Tensor& t) { return t.to(at::kCPU).to(at::kDouble); };
  for (const auto& [field, member] : fields) {
    EXPECT_EQ(difference(plain(actual.*member), plain(expected.*member), tolerance), "")
        << name << " " << actual.output.scalar_type() << ": " << field;
  }
}

}  // namespace moonhalo::testing
