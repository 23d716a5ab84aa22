// SPDX-License-Identifier: Apache-2.0
// Chooses the cuts that the tensors of an attention are brought to.
#include "moonhalo/ops/attention/specs.h"

#include <algorithm>
#include <limits>

#include "moonhalo/engine/exchange/redistribution.h"

namespace moonhalo {
namespace {

bool contains(const std::vector<int64_t>& list, int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

double ranks_of(const DeviceMesh& mesh, const std::vector<int64_t>& mesh_dims) {
  double ranks = 1;
  for (const int64_t m : mesh_dims) ranks *= static_cast<double>(mesh.size(m));
  return ranks;
}

// Cuts of the axes that a choice is made of.
struct Choice {
  std::vector<Cut> lead;  // of the query
  Cut key_heads, queries, keys;
};

// Heads of queries that share one of the keys; 1 where there are none.
int64_t group_of(int64_t heads, int64_t key_heads) {
  return key_heads > 0 ? std::max<int64_t>(1, heads / key_heads) : 1;
}

// A cut of heads of which each `factor` belong to one in the result; nullopt where a group would be cut.
std::optional<Cut> fewer_heads(Cut cut, int64_t factor) {
  for (int64_t& size : cut.sizes) {
    if (size % factor != 0) return std::nullopt;
    size /= factor;
  }
  return cut;
}

// The lead of `tensor` as a choice, nullopt where its heads are cut otherwise than those of the others.
std::optional<Choice> lead_of(const SpecPtr& tensor, int64_t heads, int64_t key_heads) {
  Choice choice;
  for (int64_t d = 0; d + 2 < tensor->ndim(); ++d) choice.lead.push_back(tensor->cut(d));
  if (choice.lead.empty()) return choice;
  Cut& last = choice.lead.back();
  if (tensor->global_shape()[tensor->ndim() - 3] == heads) {
    // One head of keys serves all heads of queries, wherever they are.
    const auto fewer = key_heads == 1 && heads > 1 ? Cut() : fewer_heads(last, group_of(heads, key_heads));
    if (!fewer) return std::nullopt;
    choice.key_heads = *fewer;
  } else {
    choice.key_heads = last;
    for (int64_t& size : last.sizes) size *= group_of(heads, key_heads);
  }
  return choice;
}

bool uses_mesh_dims_once(const Choice& choice) {
  std::vector<int64_t> used;
  for (const Cut& cut : choice.lead) used.insert(used.end(), cut.mesh_dims.begin(), cut.mesh_dims.end());
  for (size_t i = 0; i < used.size(); ++i) {
    if (std::count(used.begin(), used.end(), used[i]) > 1) return false;
  }
  const auto free = [&](const Cut& cut) {
    return std::none_of(cut.mesh_dims.begin(), cut.mesh_dims.end(), [&](int64_t m) { return contains(used, m); });
  };
  return free(choice.queries) && free(choice.keys);
}

int64_t mesh_dims_used(const Choice& choice) {
  size_t count = choice.queries.mesh_dims.size() + choice.keys.mesh_dims.size();
  for (const Cut& cut : choice.lead) count += cut.mesh_dims.size();
  return static_cast<int64_t>(count);
}

SpecPtr cut_as(const SpecPtr& tensor, const Choice& choice, const Cut& rows, bool of_keys) {
  Layout layout(tensor->mesh(), tensor->global_shape());
  std::copy(choice.lead.begin(), choice.lead.end(), layout.cuts.begin());
  if (of_keys && !choice.lead.empty()) layout.cuts[tensor->ndim() - 3] = choice.key_heads;
  layout.cuts[tensor->ndim() - 2] = rows;
  return intern(std::move(layout));
}

// Masks have the cuts of the dims that they do not broadcast over; the keys are whole where blocks of them go round.
SpecPtr mask_as(const SpecPtr& mask, const SpecPtr& query, const Choice& choice) {
  Layout layout(mask->mesh(), mask->global_shape());
  const int64_t missing = query->ndim() - mask->ndim();
  for (int64_t d = 0; d + 1 < mask->ndim(); ++d) {
    const int64_t axis = d + missing;
    if (mask->global_shape()[d] != query->global_shape()[axis]) continue;
    layout.cuts[d] = axis + 2 == query->ndim() ? choice.queries : choice.lead[axis];
  }
  const auto extent = [](const Cut& cut) {
    int64_t sum = 0;
    for (const int64_t size : cut.sizes) sum += size;
    return sum;
  };
  if (choice.keys && mesh_dims_of_both(choice.queries, choice.keys).empty() && mask->ndim() > 0 &&
      mask->global_shape().back() == extent(choice.keys))
    layout.cuts.back() = choice.keys;
  return intern(std::move(layout));
}

AttentionSpecs specs_of(const AttentionSpecs& given, const Choice& choice) {
  AttentionSpecs specs;
  specs.query = cut_as(given.query, choice, choice.queries, false);
  specs.key = cut_as(given.key, choice, choice.keys, true);
  specs.value = cut_as(given.value, choice, choice.keys, true);
  Layout layout = specs.query->layout();
  layout.global_shape.back() = given.value->global_shape().back();
  specs.output = intern(layout);
  layout.global_shape.pop_back();
  layout.cuts.pop_back();
  specs.logsumexp = intern(std::move(layout));
  if (given.mask) specs.mask = mask_as(given.mask, given.query, choice);
  return specs;
}

double mean_local_numel(const ShardSpec& spec) {
  double numel = static_cast<double>(spec.global_numel());
  for (int64_t d = 0; d < spec.ndim(); ++d) numel /= ranks_of(*spec.mesh(), spec.cut(d).mesh_dims);
  return numel;
}

}  // namespace

std::vector<int64_t> mesh_dims_of_both(const Cut& one, const Cut& other) {
  std::vector<int64_t> both;
  for (const int64_t m : one.mesh_dims) {
    if (contains(other.mesh_dims, m)) both.push_back(m);
  }
  return both;
}

std::vector<int64_t> mesh_dims_of_one(const Cut& one, const Cut& other) {
  std::vector<int64_t> rest;
  for (const int64_t m : one.mesh_dims) {
    if (!contains(other.mesh_dims, m)) rest.push_back(m);
  }
  return rest;
}

double attention_cost(const AttentionSpecs& from, const AttentionSpecs& to) {
  const DeviceMesh& mesh = *to.query->mesh();
  double cost = redistribution_cost(*from.query, *to.query) + redistribution_cost(*from.key, *to.key) +
                redistribution_cost(*from.value, *to.value);
  if (from.mask) cost += redistribution_cost(*from.mask, *to.mask);
  const int64_t rows = to.query->ndim() - 2;
  const Cut &queries = to.query->cut(rows), &keys = to.key->cut(rows);
  const double results = mean_local_numel(*to.output) + mean_local_numel(*to.logsumexp);
  const double ring = ranks_of(mesh, mesh_dims_of_both(queries, keys));
  const double keys_are_sent = mean_local_numel(*to.key) + mean_local_numel(*to.value),
               queries_are_sent = mean_local_numel(*to.query) + results;
  cost += (ring - 1) * (from.mask ? keys_are_sent : std::min(keys_are_sent, queries_are_sent));
  const double merged = ranks_of(mesh, mesh_dims_of_one(keys, queries));
  return cost + 2 * (merged - 1) / merged * results;
}

AttentionSpecs choose_attention_specs(const AttentionSpecs& given) {
  const int64_t rows = given.query->ndim() - 2;
  const bool has_heads = rows > 0;
  const int64_t heads = has_heads ? given.query->global_shape()[rows - 1] : 1,
                key_heads = has_heads ? given.key->global_shape()[rows - 1] : 1;
  std::vector<Choice> choices;
  for (const SpecPtr& lead :
       {given.query, given.key, given.value, replicated(given.query->mesh(), given.query->global_shape())}) {
    auto choice = lead_of(lead, heads, key_heads);
    if (!choice) continue;
    for (const Cut& queries : {given.query->cut(rows), Cut()}) {
      for (const Cut& keys : {given.key->cut(rows), given.value->cut(rows), Cut()}) {
        choice->queries = queries;
        choice->keys = keys;
        if (uses_mesh_dims_once(*choice)) choices.push_back(*choice);
      }
    }
  }
  AttentionSpecs best;
  double least = std::numeric_limits<double>::infinity();
  int64_t finest = 0;
  for (const Choice& choice : choices) {
    const AttentionSpecs specs = specs_of(given, choice);
    const double cost = attention_cost(given, specs);
    const int64_t used = mesh_dims_used(choice);
    // Estimates of the same traffic by two ways differ in rounding; then less memory decides.
    const double same = 1e-9 * (1 + cost);
    if (best.query && (cost > least + same || (cost >= least - same && used <= finest))) continue;
    best = specs;
    least = cost;
    finest = used;
  }
  return best;
}

}  // namespace moonhalo
