// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/exchange/replicated_values.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "moonhalo/engine/base/dispatch_keys.h"
#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/communicator.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/stats_pause.h"
#include "moonhalo/engine/exchange/exchange_context.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {
namespace {

constexpr size_t kPiece = 4096, kUncut = size_t{1} << 20;
constexpr int64_t kDimsOfClaim = 8;
constexpr size_t kMostNamed = 8;

// Ranks tell each other this first: it has one size for every tensor.
struct Claim {
  int64_t checksum = 0, call = 0, dtype = 0, ndim = 0;
  std::array<int64_t, kDimsOfClaim> sizes = {};

  bool same_kind(const Claim& other) const {
    return dtype == other.dtype && ndim == other.ndim && sizes == other.sizes;
  }
  bool operator==(const Claim&) const = default;
  at::IntArrayRef shape() const { return {sizes.data(), static_cast<size_t>(std::min(ndim, kDimsOfClaim))}; }
};

// This rank's values beside those of rank 0.
struct Difference {
  double count = 0, first = -1, here = 0, there = 0, most = 0, largest = 0;
};

template <class Words>
std::vector<Words> gather(Communicator& group, const Words& mine) {
  constexpr int64_t kBytes = sizeof(Words);
  std::vector<Words> all(group.size());
  at::Tensor in = at::empty({kBytes}, at::kByte), out = at::empty({kBytes * group.size()}, at::kByte);
  std::memcpy(in.mutable_data_ptr(), &mine, kBytes);
  group.all_gather(in, std::vector<int64_t>(group.size(), kBytes), out);
  std::memcpy(all.data(), out.const_data_ptr(), out.nbytes());
  return all;
}

// Dense on the CPU, complex numbers as pairs, nothing lazy.
at::Tensor plain_values(const at::Tensor& tensor) {
  at::Tensor values = tensor.resolve_conj().resolve_neg();
  if (values.is_complex()) values = at::view_as_real(values);
  return values.to(at::kCPU).contiguous();
}

uint64_t checksum_of(const at::Tensor& values, uint64_t sample) {
  const auto* bytes = static_cast<const char*>(values.const_data_ptr());
  const size_t count = values.nbytes();
  if (sample == 0 || count <= kUncut) return checksum(bytes, count);
  // One piece in each of the 256 stretches, in another place each time.
  const size_t stretch = count / (kUncut / kPiece);
  uint64_t sum = count;
  for (size_t start = 0; start + stretch <= count; start += stretch) {
    const size_t offset = (sample * 0x9e3779b97f4a7c15ULL + start * 0xff51afd7ed558ccdULL) % (stretch - kPiece + 1);
    sum = checksum(bytes + start + offset, kPiece, sum);
  }
  return sum;
}

double rounding(at::ScalarType dtype) {
  switch (c10::toRealValueType(dtype)) {
    case at::kDouble:
      return 64 * std::ldexp(1.0, -52);
    case at::kFloat:
      return 64 * std::ldexp(1.0, -23);
    case at::kHalf:
      return 4 * std::ldexp(1.0, -10);
    case at::kBFloat16:
      return 4 * std::ldexp(1.0, -7);
    default:
      return 0;
  }
}

Difference difference(const at::Tensor& values, Communicator& group) {
  at::Tensor reference = values.clone();
  at::Tensor bytes = reference.reshape({-1}).view(at::kByte);
  group.broadcast(bytes, 0);
  const at::Tensor here = values.to(at::kDouble), there = reference.to(at::kDouble);
  const double *a = here.const_data_ptr<double>(), *b = there.const_data_ptr<double>();
  Difference found;
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (std::isfinite(b[i])) found.largest = std::max(found.largest, std::abs(b[i]));
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (found.count++ == 0) found.first = static_cast<double>(i), found.here = a[i], found.there = b[i];
    const double apart = std::abs(a[i] - b[i]);
    found.most = std::max(found.most, std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart);
  }
  return found;
}

std::string ranks_text(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (i == kMostNamed) return text + ", ... (" + std::to_string(ranks.size()) + " ranks)";
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  return text;
}

// Ranks with equal claims, in order of their first rank.
std::vector<std::vector<size_t>> groups_of(const std::vector<Claim>& claims) {
  std::vector<std::vector<size_t>> groups;
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const auto& ranks) { return claims[ranks[0]] == claims[rank]; });
    if (same == groups.end()) {
      groups.push_back({rank});
    } else {
      same->push_back(rank);
    }
  }
  return groups;
}

std::string kind_text(const Claim& claim) {
  return "shape " + shape_string(claim.shape()) + ", " + c10::toString(static_cast<at::ScalarType>(claim.dtype));
}

std::string place_text(const Claim& claim, int64_t flat) {
  if (claim.ndim == 0) return "the value";
  if (claim.ndim > kDimsOfClaim) return "element " + std::to_string(flat);
  std::vector<int64_t> place(claim.ndim);
  for (int64_t d = claim.ndim - 1; d >= 0; --d) {
    place[d] = flat % claim.sizes[d];
    flat /= claim.sizes[d];
  }
  return "element " + shape_string(place);
}

std::string values_text(const std::vector<Claim>& claims, const std::vector<std::vector<size_t>>& groups,
                        const std::vector<Difference>& found) {
  const bool complex = c10::isComplexType(static_cast<at::ScalarType>(claims[0].dtype));
  std::ostringstream text;
  text.precision(6);
  text << kind_text(claims[0]) << "; " << ranks_text(groups[0]) << (groups[0].size() > 1 ? " hold the same" : "");
  for (size_t g = 1; g < groups.size() && g <= kMostNamed; ++g) {
    const Difference& one = found[groups[g][0]];
    text << "\n        " << ranks_text(groups[g]) << (groups[g].size() > 1 ? " hold others: " : " holds others: ");
    if (one.count == 0) {
      text << "they differ in bits";
      continue;
    }
    text << place_text(claims[0], static_cast<int64_t>(one.first) / (complex ? 2 : 1)) << " is " << one.here
         << ", on rank 0 " << one.there
         << (complex ? (static_cast<int64_t>(one.first) % 2 == 0 ? " (real parts)" : " (imaginary parts)") : "") << "; "
         << static_cast<int64_t>(one.count) << " of " << c10::multiply_integers(claims[0].shape()) * (complex ? 2 : 1)
         << " numbers differ, by up to " << one.most;
  }
  if (groups.size() > kMostNamed + 1) text << "\n        ...";
  return text.str();
}

[[noreturn]] void refuse(const Comparison& comparison, const std::string& have) {
  TORCH_CHECK_VALUE(false, comparison.where, ": ", comparison.what, ", ",
                    comparison.weight ? "a plain weight" : "a plain tensor",
                    ", is not the same on all ranks; beside ShardTensors it counts as replicated\n  have  ", have,
                    fix(Remedy::kSameValues));
}

void refuse_other_call(const std::vector<Claim>& claims, const std::vector<size_t>& first,
                       const std::vector<size_t>& ranks, const DeviceMesh& mesh, const std::string& where) {
  TORCH_CHECK_VALUE(claims[ranks[0]].call == claims[0].call, "ranks have diverged: rank ", mesh.rank(), " is in ",
                    where, ", other ranks in another call\n  have  ", ranks_text(first), " and ", ranks_text(ranks),
                    " make different calls\n  fix   every rank must make the same calls: look for a branch on the "
                    "rank, an order, a random "
                    "number or the time");
}

void warn_of_roundings(const Comparison& comparison, double relative) {
  if (std::exchange(exchange_context->warned_of_roundings, true)) return;
  TORCH_WARN(
      comparison.where, ": ", comparison.what, ", a plain tensor, differs between ranks by up to ", relative,
      " of its largest value: within rounding error, as of different processors; taken as the same (shown once)");
}

}  // namespace

bool has_values(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && !tensor.is_meta() && !tensor.is_quantized() && !tensor._is_zerotensor() &&
         !is_deferred(tensor) && !is_fake(tensor) && tensor.has_storage();
}

int64_t checksum(const at::Tensor& tensor) {
  if (!has_values(tensor)) return 0;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor values = plain_values(tensor.detach());
  uint64_t sum = checksum(values.const_data_ptr(), values.nbytes(), static_cast<uint64_t>(tensor.scalar_type()));
  for (const int64_t size : tensor.sizes()) sum = combine_fingerprint(sum, static_cast<uint64_t>(size));
  return static_cast<int64_t>(sum);
}

uint64_t checksum(const void* bytes, size_t count, uint64_t seed) {
  constexpr uint64_t kFirst = 0x9e3779b185ebca87ULL, kSecond = 0xc2b2ae3d27d4eb4fULL;
  const auto* next = static_cast<const char*>(bytes);
  std::array<uint64_t, 4> lanes = {seed + kFirst, seed ^ kSecond, seed, seed - kFirst};
  const auto add = [&](const char* from) {
    std::array<uint64_t, 4> words;
    std::memcpy(words.data(), from, sizeof words);
    for (size_t i = 0; i < 4; ++i) lanes[i] = std::rotl(lanes[i] + words[i] * kSecond, 31) * kFirst;
  };
  const char* end = next + count / sizeof lanes * sizeof lanes;
  for (; next != end; next += sizeof lanes) add(next);
  if (const size_t rest = count % sizeof lanes; rest > 0) {
    std::array<char, sizeof lanes> last = {};
    std::memcpy(last.data(), next, rest);
    add(last.data());
  }
  uint64_t sum = count;
  for (const uint64_t lane : lanes) {
    sum = (sum ^ lane) * kSecond;
    sum ^= sum >> 32;
  }
  return sum;
}

void compare_values(const at::Tensor& tensor, const DeviceMesh& mesh, const Comparison& comparison) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ScopedStatsPause stats_pause;
  Communicator& group = mesh.group();
  const at::Tensor values = plain_values(tensor);
  Claim mine;
  const std::string call = comparison.where + " " + comparison.what;
  mine.call = static_cast<int64_t>(checksum(call.data(), call.size()));
  mine.checksum = static_cast<int64_t>(checksum_of(values, comparison.sample));
  mine.dtype = static_cast<int64_t>(tensor.scalar_type());
  mine.ndim = tensor.dim();
  for (int64_t d = 0; d < std::min(tensor.dim(), kDimsOfClaim); ++d) mine.sizes[d] = tensor.size(d);
  const std::vector<Claim> claims = gather(group, mine);
  const auto groups = groups_of(claims);
  if (groups.size() == 1) return;

  for (const auto& ranks : groups) {
    refuse_other_call(claims, groups[0], ranks, mesh, comparison.where);
    if (claims[ranks[0]].same_kind(claims[0])) continue;
    std::string have;
    for (size_t g = 0; g < groups.size() && g < kMostNamed; ++g)
      have += (g > 0 ? "; " : "") + ranks_text(groups[g]) + ": " + kind_text(claims[groups[g][0]]);
    refuse(comparison, have);
  }
  const std::vector<Difference> found = gather(group, difference(values, group));
  const double most =
      std::max_element(found.begin(), found.end(), [](auto& a, auto& b) { return a.most < b.most; })->most;
  const double allowed = rounding(tensor.scalar_type()) * found[0].largest;
  if ((tensor.is_floating_point() || tensor.is_complex()) && most <= allowed) {
    if (most > 0 && mesh.rank() == 0) warn_of_roundings(comparison, most / found[0].largest);
    return;
  }
  refuse(comparison, values_text(claims, groups, found));
}

void compare_keys(uint64_t key, const DeviceMesh& mesh, const std::string& where) {
  const ScopedStatsPause stats_pause;
  Claim mine;
  mine.checksum = static_cast<int64_t>(key);
  mine.call = static_cast<int64_t>(checksum(where.data(), where.size()));
  const std::vector<Claim> claims = gather(mesh.group(), mine);
  const auto groups = groups_of(claims);
  if (groups.size() == 1) return;
  std::string have;
  for (size_t g = 0; g < groups.size() && g < kMostNamed; ++g) {
    refuse_other_call(claims, groups[0], groups[g], mesh, where);
    have += (g > 0 ? "; " : "") + ranks_text(groups[g]);
  }
  TORCH_CHECK_VALUE(false, where,
                    ": ranks draw different random numbers for one ShardTensor\n  have  equal only among: ", have,
                    fix(Remedy::kSameDraws));
}

}  // namespace moonhalo
