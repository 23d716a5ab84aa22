// SPDX-License-Identifier: Apache-2.0
#include "tests/aten/exceptions.h"

#include <algorithm>

namespace moonhalo::testing {

const std::vector<Exception>& untried() {
  static const std::vector<Exception> kList = {
      {"from_file", "makes a tensor out of a file"},
      {"aten::hash_tensor.out", "unsigned 64-bit numbers have no notation"},
      {"aten::to.device", "a device has no notation; the other overloads of `to` are tried"},
  };
  return kList;
}

const std::vector<Exception>& never_on_blocks() {
  static const std::vector<Exception> kList = {
      {"as_strided_scatter", "gathered: writes into storage; slice_scatter and select_scatter are on blocks"},
      {"batch_norm_update_stats",
       "gathered: a step of LibTorch's own SyncBatchNorm; batch_norm itself is exact on blocks"},
      {"aten::randperm.out", "refused: a permutation is not drawn element by element; randperm and index with it"},
      {"aten::randperm.generator_out", "refused: as randperm.out"},
      {"aten::rrelu_with_noise.out", "refused: draws; rrelu and rrelu_with_noise are on blocks"},
      {"rrelu_with_noise_functional", "refused: as rrelu_with_noise.out"},
      {"segment_reduce", "gathered: segments end wherever their lengths, which are data, say"},
  };
  return kList;
}

const std::vector<Exception>& not_on_every_dim() {
  static const std::vector<Exception> kList = {};
  return kList;
}

const Exception* find_exception(const std::vector<Exception>& list, const Operator& op) {
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](const Exception& e) { return e.name == op.base || e.name == op.name; });
  return found == list.end() ? nullptr : &*found;
}

std::string unexpected(const Operator& op, const Tally& tally, const std::string& missing) {
  const bool is_untried = find_exception(untried(), op) != nullptr;
  const bool is_never = find_exception(never_on_blocks(), op) != nullptr;
  const std::string where = "; fix: tests/aten/exceptions.cpp";
  if (tally.samples == 0)
    return is_untried ? "" : op.name + ": no sample fits, and nothing says why (a line in tests/aten/samples_*.cpp)";
  if (tally.wrong > 0) return op.name + ": " + std::to_string(tally.wrong) + " wrong";
  if (is_untried) return op.name + " is tried, but listed as untried" + where;
  const bool never = tally.right == 0;
  if (never && !is_never) return op.name + ": no way is answered on blocks, and nothing says why" + where;
  if (!never && is_never) return op.name + ": answered on blocks, but listed as never" + where;
  const bool is_partly = find_exception(not_on_every_dim(), op) != nullptr;
  if (missing.empty() && is_partly) return op.name + ": answered on every dim, but listed as not" + where;
  if (!missing.empty() && !is_never && !is_partly)
    return op.name + ": never on blocks: " + missing + ", and nothing says why" + where;
  return "";
}

}  // namespace moonhalo::testing
