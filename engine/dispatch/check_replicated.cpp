// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/dispatch/check_replicated.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/last_draw.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/dispatch/dispatch_context.h"
#include "moonhalo/engine/exchange/replicated_values.h"
#include "moonhalo/engine/profile/recorder.h"

namespace moonhalo {
namespace {

// A tensor that is made for every call is compared as often of its kind; a weight, which lives on, once.
constexpr uint64_t kFirstMeetings = 16;
constexpr uint64_t kLongestGap = 1024;
constexpr size_t kMostKinds = 65536, kFirstSweep = 1024;

}  // namespace

struct Meeting {
  uint64_t ordinal = 0;  // in order of first meetings, so the same on every rank
  uint64_t count = 0, next = 1;

  // Ever more rarely, down to once in some thousand and a half: that costs next to nothing even where a check waits for
  // a network.
  // Not at powers of two or the like: in a loop of 12 equal layers some would never have their turn.
  void plan_next(uint64_t first_ones) {
    const uint64_t gap = count < first_ones ? 1 : std::min(count / 8 + 1, kLongestGap);
    next = count + gap + combine_fingerprint(combine_fingerprint(kFirstFingerprint, ordinal), count) % gap;
  }
};

// The meetings on one mesh. Everything in here follows from the calls on that mesh, which its ranks share; addresses,
// which they do not, only find things again.
struct ChecksOnMesh {
  explicit ChecksOnMesh(const MeshPtr& mesh)
      : mesh(mesh), address(mesh.get()), alone(mesh->size() == 1 || mesh->group().is_fake()) {}

  // A weight is known by its object. While the weak reference lives, no other has its address.
  Meeting& of_weight(const at::TensorBase& tensor) {
    const auto [found, is_new] =
        weights.try_emplace(tensor.unsafeGetTensorImpl(), Weight{WeakImpl(tensor.getIntrusivePtr()), {}});
    if (is_new) found->second.meeting.ordinal = ++ordinals;
    Meeting& meeting = found->second.meeting;
    if (is_new && weights.size() > sweep_at) {
      std::erase_if(weights, [](const auto& entry) { return entry.second.tensor.expired(); });
      sweep_at = std::max(kFirstSweep, 2 * weights.size());
    }
    return meeting;
  }

  // Any other: by operator, argument, dtype and shape.
  Meeting& of_kind(const at::Tensor& tensor, const c10::OperatorHandle& op, int arg, int item) {
    uint64_t key = combine_fingerprint(reinterpret_cast<uintptr_t>(&op.operator_name()),
                                       static_cast<uint64_t>(arg) << 32 ^ static_cast<uint32_t>(item));
    key = combine_fingerprint(key, static_cast<uint64_t>(tensor.scalar_type()));
    for (const int64_t size : tensor.sizes()) key = combine_fingerprint(key, static_cast<uint64_t>(size));
    return of_key(key);
  }

  Meeting& of_draw(const c10::OperatorHandle& op) {
    return of_key(combine_fingerprint(reinterpret_cast<uintptr_t>(&op.operator_name()), ~uint64_t{0}));
  }

  Meeting& of_key(uint64_t key) {
    const auto [found, is_new] = kinds.try_emplace(key);
    if (is_new) {
      if (kinds.size() > kMostKinds) {
        kinds.clear();
        return of_key(key);
      }
      found->second.ordinal = ++ordinals;
    }
    return found->second;
  }

  using WeakImpl = c10::weak_intrusive_ptr<c10::TensorImpl>;
  struct Weight {
    WeakImpl tensor;
    Meeting meeting;
  };
  std::weak_ptr<DeviceMesh> mesh;
  const DeviceMesh* address;
  bool alone;
  std::unordered_map<const void*, Weight> weights;
  std::unordered_map<uint64_t, Meeting> kinds;
  uint64_t ordinals = 0;
  size_t sweep_at = kFirstSweep;
};

struct ReplicatedChecks {
  ChecksOnMesh* last = nullptr;
  std::vector<std::unique_ptr<ChecksOnMesh>> all;
};

namespace {

ChecksOnMesh& on(const MeshPtr& mesh) {
  ReplicatedChecks& checks = *dispatch_context->checks;
  ChecksOnMesh*& last = checks.last;
  if (last != nullptr && last->address == mesh.get() && !last->mesh.expired()) [[likely]]
    return *last;
  auto& all = checks.all;
  for (const auto& one : all) {
    if (one->address == mesh.get() && !one->mesh.expired()) return *(last = one.get());
  }
  std::erase_if(all, [](const auto& one) { return one->mesh.expired(); });
  return *(last = all.emplace_back(std::make_unique<ChecksOnMesh>(mesh)).get());
}

// The leaf that requires a gradient which `tensor` is, or is a view of; null where it is none.
const at::TensorBase* weight_of(const at::Tensor& tensor) {
  const at::TensorBase* whole = &tensor;
  const auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
  if (view != nullptr && view->has_bw_view()) whole = &view->get_backward_view().base_;
  const auto* meta = torch::autograd::impl::get_autograd_meta(*whole);
  return meta != nullptr && meta->requires_grad_ && !meta->grad_fn_ ? whole : nullptr;
}

// A row of its own in profiles: it becomes rare.
class RecordCheck : public RecordPart {
 public:
  RecordCheck() : RecordPart(kCheckOfPlainTensors, Phase::kCheck) {}
};

bool is_zero(const c10::IValue& value) {
  return value.isScalar() && value.toScalar().toComplexDouble() == c10::complex<double>(0);
}

// Arguments whose values are not read, or not wholly: they may be memory that was not written yet.
bool may_hold_anything(const c10::OperatorHandle& op, int arg, const c10::IValue* arguments) {
  static const std::unordered_set<std::string> overwritten = {"copy",
                                                              "_foreach_copy",
                                                              "fill",
                                                              "zero",
                                                              "normal",
                                                              "uniform",
                                                              "bernoulli",
                                                              "exponential",
                                                              "geometric",
                                                              "cauchy",
                                                              "log_normal",
                                                              "random",
                                                              "index_put",
                                                              "scatter",
                                                              "index_copy",
                                                              "masked_scatter",
                                                              "put",
                                                              "index_fill",
                                                              "_index_put_impl",
                                                              "_unsafe_index_put",
                                                              "slice_scatter",
                                                              "select_scatter",
                                                              "diagonal_scatter",
                                                              "as_strided_scatter"};
  static const std::unordered_set<std::string> scaled = {"addmm", "addmv", "addbmm", "baddbmm", "addr"};
  const c10::FunctionSchema& schema = op.schema();
  if (schema.arguments()[arg].is_out()) return true;
  if (arg != 0) return false;
  std::string name = schema.name().substr(schema.name().rfind(':') + 1);
  if (name.ends_with('_')) name.pop_back();
  if (scaled.contains(name)) {
    const auto beta = schema.argumentIndexWithName("beta");
    return beta && is_zero(arguments[*beta]);
  }
  return overwritten.contains(name);
}

std::string described(const c10::OperatorHandle& op, int arg, int item) {
  std::string text = "argument '" + op.schema().arguments()[arg].name() + "'";
  return item < 0 ? text : "tensor " + std::to_string(item) + " of " + text;
}

}  // namespace

bool set_check_replicated(bool on, Communicator* world) {
  if (world != nullptr) check_same_on_all_ranks(*world, "check_replicated", "settings", on ? "true" : "false");
  return std::exchange(base_context->settings.check_replicated, on);
}

bool check_replicated() { return settings().check_replicated; }

void expect_replicated(const at::Tensor& tensor, const MeshPtr& mesh, const std::string& where) {
  if (!settings().check_replicated || on(mesh).alone || !has_values(tensor)) return;
  const RecordCheck recorded;
  compare_values(tensor, *mesh, {.where = where, .what = "a plain tensor"});
}

void used_with_shard_tensors(const at::Tensor& tensor, const MeshPtr& mesh, const c10::OperatorHandle& op, int arg,
                             int item, const c10::IValue* arguments) {
  if (mesh->size() == 1 || !settings().check_replicated) return;
  ChecksOnMesh& here = on(mesh);
  if (here.alone) return;
  const at::TensorBase* weight = weight_of(tensor);
  Meeting& meeting = weight != nullptr ? here.of_weight(*weight) : here.of_kind(tensor, op, arg, item);
  if (++meeting.count < meeting.next) [[likely]]
    return;
  meeting.plan_next(weight != nullptr ? 1 : kFirstMeetings);
  const at::Tensor values = weight != nullptr ? at::Tensor(*weight) : tensor;
  if (!has_values(values) || may_hold_anything(op, arg, arguments)) return;
  Comparison comparison{
      .where = op.operator_name().name, .what = described(op, arg, item), .weight = weight != nullptr};
  if (meeting.count > 2) comparison.sample = meeting.count;
  // A difference stays wrong: the next call must not slip through.
  const uint64_t next = std::exchange(meeting.next, meeting.count + 1);
  const RecordCheck recorded;
  compare_values(values, *mesh, comparison);
  meeting.next = next;
}

void draws_beside_others(const MeshPtr& mesh, const c10::OperatorHandle& op) {
  if (mesh->size() == 1 || !settings().check_replicated) return;
  ChecksOnMesh& here = on(mesh);
  if (here.alone) return;
  Meeting& meeting = here.of_draw(op);
  if (++meeting.count < meeting.next) return;
  const uint64_t key = last_draw().key;
  meeting.next = meeting.count + 1;
  const RecordCheck recorded;
  compare_keys(key, *mesh, op.operator_name().name);
  meeting.plan_next(kFirstMeetings);
}

}  // namespace moonhalo
