// SPDX-License-Identifier: Apache-2.0
// Neighbourhood attention on blocks: queries stay where they are, the keys and values that their windows reach are
// fetched.
#include <ATen/ATen.h>

#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/rules.h"
#include "moonhalo/engine/exchange/halo_exchange.h"
#include "moonhalo/engine/exchange/redistribution.h"
#include "moonhalo/engine/sharding/size_text.h"
#include "moonhalo/ops/neighborhood/block.h"
#include "moonhalo/ops/neighborhood/double_backward.h"
#include "moonhalo/ops/neighborhood/overlap.h"
#include "moonhalo/ops/window/window.h"

namespace moonhalo {
namespace {

using Like = NeighborhoodExtra::Like;

// `spec`'s cuts but for the last dim, for a tensor of another last extent.
SpecPtr with_features(const SpecPtr& spec, int64_t features) {
  Layout layout = without_partial(spec)->layout();
  layout.global_shape.back() = features;
  layout.cuts.back() = {};
  return intern(std::move(layout));
}

SpecPtr without_features(const SpecPtr& spec) {
  Layout layout = spec->layout();
  layout.global_shape.pop_back();
  layout.cuts.pop_back();
  return intern(std::move(layout));
}

int64_t mesh_dims_used(const ShardSpec& spec) {
  int64_t count = 0;
  for (int64_t d = 0; d < spec.ndim(); ++d) count += static_cast<int64_t>(spec.cut(d).mesh_dims.size());
  return count;
}

// Divides one call: all tensors are cut in the same way.
struct Division {
  SpecPtr query, value, logsumexp;  // of query and key; value and output; logsumexp
  NeighborhoodBlocks blocks;        // where some rank needs another's keys
  NeighborhoodCall local;           // of this rank, where none does
};

NeighborhoodOperand operand_of(const OpCall& call, const char* name) {
  const TensorArgument& slot = call.tensor(name);
  return {slot.spec->global_shape(), slot.dtype, c10::Device(call.mesh()->device_type())};
}

NeighborhoodCall checked_call(const OpCall& call) {
  const SpecPtr query = call.spec("query");
  std::string blocks;
  for (int64_t d = 1; d + 2 < query->ndim(); ++d) {
    if (query->is_cut(d)) blocks += ", blocks of dim " + std::to_string(d) + ": " + sizes_text(query->block_sizes(d));
  }
  return checked_neighborhood(operand_of(call, "query"), operand_of(call, "key"), operand_of(call, "value"),
                              call.integers("window"), call.integers("stride"), call.integers("dilation"),
                              call.value("is_causal").toBoolList(), call.value("scale").toOptional<double>(), blocks);
}

void check_extra_specs(const char* op, const OpCall& call, std::initializer_list<std::pair<const char*, Like>> names) {
  std::vector<NeighborhoodExtra> extras;
  for (const auto& [name, like] : names) {
    const int slot = call.slot(name);
    if (slot >= 0 && call.slots()[slot].spec) {
      extras.push_back({name, like, operand_of(call, name)});
      continue;
    }
    const auto& type = call.op.schema().arguments()[call.arg(name).index].type();
    TORCH_CHECK_VALUE(type->kind() == c10::TypeKind::OptionalType, op, ": ", name, " is undefined", "\n  have  ",
                      call.describe(), "\n  fix   give zeros");
  }
  check_neighborhood_extras(op, operand_of(call, "query"), operand_of(call, "value"), extras);
}

Division divide(const NeighborhoodCall& whole, const SpecPtr& query, int64_t value_dim) {
  const SpecPtr value = with_features(query, value_dim);
  Division division{query, value, without_features(query), NeighborhoodBlocks(whole, query, value), whole};
  for (int64_t i = 0; i < whole.spatial; ++i) {
    neighborhood::Axis& axis = division.local.axis(i);
    axis.query_begin = axis.key_begin = query->offsets()[i + 1];
    axis.queries = axis.keys = query->local_shape()[i + 1];
  }
  return division;
}

// Follows the cuts of query, key or value: those that cost the least to give to all three, and of equals the finest.
SpecPtr choose(const OpCall& call) {
  const SpecPtr query = call.spec("query"), key = call.spec("key"), value = call.spec("value");
  const int64_t features = query->global_shape().back(), value_dim = value->global_shape().back();
  SpecPtr best;
  double least = std::numeric_limits<double>::infinity();
  for (const SpecPtr& candidate : {query, key, value}) {
    const SpecPtr as_query = with_features(candidate, features), as_value = with_features(candidate, value_dim);
    const double cost = redistribution_cost(*query, *as_query) + redistribution_cost(*key, *as_query) +
                        redistribution_cost(*value, *as_value);
    if (best && (cost > least || (cost == least && mesh_dims_used(*as_query) <= mesh_dims_used(*best)))) continue;
    best = as_query;
    least = cost;
  }
  return best;
}

std::optional<Plan> plan_forward(const OpCall& call) {
  const NeighborhoodCall whole = checked_call(call);
  auto division =
      std::make_shared<const Division>(divide(whole, choose(call), call.spec("value")->global_shape().back()));
  Plan plan;
  plan.inputs = {division->query, division->query, division->value};
  plan.outputs = {division->value, division->logsumexp};
  plan.run = [division, at_query = call.arg("query"), at_key = call.arg("key"),
              at_value = call.arg("value")](LocalCall& call) {
    auto [output, logsumexp] =
        division->blocks.exchanges()
            ? division->blocks.forward(call.tensor(at_query), call.tensor(at_key), call.tensor(at_value),
                                       {call.halo_source(at_key), call.halo_source(at_value)})
            : neighborhood_forward(call.tensor(at_query), call.tensor(at_key), call.tensor(at_value), division->local);
    call.give(std::move(output), std::move(logsumexp));
  };
  return plan;
}

std::optional<Plan> plan_backward(const OpCall& call) {
  const NeighborhoodCall whole = checked_call(call);
  check_extra_specs("neighborhood_attention_backward", call,
                    {{"grad_output", Like::kValue},
                     {"output", Like::kValue},
                     {"logsumexp", Like::kLogsumexp},
                     {"grad_logsumexp", Like::kLogsumexp}});
  const SpecPtr query = with_features(call.spec("output"), call.spec("query")->global_shape().back());
  auto division = std::make_shared<const Division>(divide(whole, query, call.spec("value")->global_shape().back()));
  const Division& d = *division;
  Plan plan;
  plan.inputs.resize(call.slots().size());
  const std::pair<const char*, SpecPtr> required[] = {{"grad_output", d.value},  {"grad_logsumexp", d.logsumexp},
                                                      {"query", d.query},        {"key", d.query},
                                                      {"value", d.value},        {"output", d.value},
                                                      {"logsumexp", d.logsumexp}};
  for (const auto& [name, spec] : required) {
    const int slot = call.slot(name);
    if (slot >= 0 && call.slots()[slot].spec) plan.inputs[slot] = spec;
  }
  plan.outputs = {d.query, d.query, d.value};
  plan.run = [division, at_grad_logsumexp = call.arg("grad_logsumexp"), at_grad_output = call.arg("grad_output"),
              at_query = call.arg("query"), at_key = call.arg("key"), at_value = call.arg("value"),
              at_output = call.arg("output"), at_logsumexp = call.arg("logsumexp")](LocalCall& call) {
    const at::Tensor grad_logsumexp = call.tensor(at_grad_logsumexp);
    auto [grad_query, grad_key, grad_value] =
        division->blocks.exchanges()
            ? division->blocks.backward(call.tensor(at_grad_output), grad_logsumexp, call.tensor(at_query),
                                        call.tensor(at_key), call.tensor(at_value), call.tensor(at_output),
                                        call.tensor(at_logsumexp),
                                        {call.halo_source(at_key), call.halo_source(at_value)})
            : neighborhood_backward(call.tensor(at_grad_output), grad_logsumexp, call.tensor(at_query),
                                    call.tensor(at_key), call.tensor(at_value), call.tensor(at_output),
                                    call.tensor(at_logsumexp), division->local);
    call.give(std::move(grad_query), std::move(grad_key), std::move(grad_value));
  };
  return plan;
}

// From the owned rows of a tensor to those that the windows of the owned queries reach.
std::shared_ptr<const IntervalMap> reach_of(const NeighborhoodCall& whole, const SpecPtr& spec) {
  const auto along = [&](int64_t d, const Interval& owned, const Interval&) {
    const bool reaches = d >= 1 && d <= whole.spatial && spans_ranks(spec, d);
    return HaloRequest{reaches ? keys_reached(whole.axis(d - 1), owned) : owned};
  };
  return std::make_shared<const IntervalMap>(spec, GridRequests{spec, along});
}

// Keys, values and their cotangents are fetched in one exchange, before the work; second derivatives are rare.
std::optional<Plan> plan_second(const OpCall& call) {
  const NeighborhoodCall whole = checked_call(call);
  check_extra_specs("neighborhood_attention_double_backward", call,
                    {{"cotangent_query", Like::kQuery},
                     {"cotangent_key", Like::kQuery},
                     {"cotangent_value", Like::kValue},
                     {"grad_output", Like::kValue},
                     {"grad_logsumexp", Like::kLogsumexp}});
  const int64_t features = call.spec("query")->global_shape().back(),
                value_dim = call.spec("value")->global_shape().back();
  const SpecPtr query = with_features(call.spec("query"), features), value = with_features(query, value_dim),
                logsumexp = without_features(query);
  NeighborhoodCall local = whole;
  for (int64_t i = 0; i < whole.spatial; ++i) {
    neighborhood::Axis& axis = local.axis(i);
    Interval rows{query->offsets()[i + 1], query->offsets()[i + 1] + query->local_shape()[i + 1]};
    axis.query_begin = rows.begin;
    axis.queries = rows.end - rows.begin;
    if (spans_ranks(query, i + 1)) rows = keys_reached(axis, rows);
    axis.key_begin = rows.begin;
    axis.keys = rows.end - rows.begin;
  }
  Plan plan;
  plan.inputs = {query, query, value, value, logsumexp, query, query, value};
  plan.outputs = {value, logsumexp, query, query, value};
  plan.run = [local, features, value_dim, halo_map = reach_of(whole, with_features(query, 2 * (features + value_dim))),
              give_back = reach_of(whole, with_features(query, features + value_dim)),
              at_cotangent_query = call.arg("cotangent_query"), at_cotangent_key = call.arg("cotangent_key"),
              at_cotangent_value = call.arg("cotangent_value"), at_grad_output = call.arg("grad_output"),
              at_grad_logsumexp = call.arg("grad_logsumexp"), at_query = call.arg("query"), at_key = call.arg("key"),
              at_value = call.arg("value")](LocalCall& call) {
    NeighborhoodSecond given{call.tensor(at_cotangent_query),
                             call.tensor(at_cotangent_key),
                             call.tensor(at_cotangent_value),
                             call.tensor(at_grad_output),
                             call.tensor(at_grad_logsumexp),
                             call.tensor(at_query),
                             call.tensor(at_key),
                             call.tensor(at_value)};
    const std::vector<int64_t> parts = {features, value_dim, features, value_dim};
    const auto rows =
        gather(*halo_map, at::cat({given.key, given.value, given.cotangent_key, given.cotangent_value}, -1))
            .split_with_sizes(parts, -1);
    given.key = rows[0];
    given.value = rows[1];
    given.cotangent_key = rows[2];
    given.cotangent_value = rows[3];
    auto [grad, sum, by_query, by_key, by_value] = neighborhood_second(given, local);
    const at::Tensor owned = scatter_add(*give_back, at::cat({by_key, by_value}, -1));
    call.give(std::move(grad), std::move(sum), std::move(by_query), owned.narrow(-1, 0, features).contiguous(),
              owned.narrow(-1, features, value_dim).contiguous());
  };
  return plan;
}

constexpr const char* kSource = "NATTEN 0.21; Hassani et al., Neighborhood Attention Transformer, 2023";
constexpr const char* kSupports =
    "1-3 dims, any window, stride, dilation, causal or not; cuts of batch, heads and space, "
    "uneven, empty, thinner than the window";

const Register neighborhood_rules{
    {.op = "moonhalo::neighborhood_attention",
     .plan = plan_forward,
     .source = kSource,
     .supports = kSupports,
     .traffic = Traffic::kHalo},
    {.op = "moonhalo::neighborhood_attention_backward",
     .plan = plan_backward,
     .source = kSource,
     .supports = kSupports,
     .traffic = Traffic::kHalo},
    {.op = "moonhalo::neighborhood_attention_double_backward",
     .plan = plan_second,
     .source = kSource,
     .supports = kSupports,
     .traffic = Traffic::kHalo},
};

}  // namespace
}  // namespace moonhalo
