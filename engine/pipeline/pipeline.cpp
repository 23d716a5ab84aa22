// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/pipeline/pipeline.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <stdexcept>
#include <unordered_set>

#include "moonhalo/engine/base/backward_on_this_thread.h"
#include "moonhalo/engine/base/graph_leaves.h"
#include "moonhalo/engine/base/remedies.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/comm/traffic.h"
#include "moonhalo/engine/model/stage_parameters.h"
#include "moonhalo/engine/pipeline/pipeline_groups.h"
#include "moonhalo/engine/pipeline/tensor_link.h"
#include "moonhalo/engine/profile/unrecorded.h"
#include "moonhalo/engine/random/random.h"
#include "moonhalo/engine/sharding/whole_mesh.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/engine/tensor/tensor_meaning.h"

namespace moonhalo {
namespace {

using Tensors = Pipeline::Tensors;

/// The generator of a step: at the start of each stage's work on a micro-batch where that work alone says, after the
/// step where one draw has left it.
class StepRandom {
 public:
  StepRandom() : key_(ElementRandom::draw_key({})), generator_(default_generator()), after_(generator_.get_state()) {}
  ~StepRandom() { generator_.set_state(after_); }
  StepRandom(const StepRandom&) = delete;

  void begin(const StageCall& call) const {
    const auto words = philox(key_, static_cast<uint64_t>(call.micro), static_cast<uint64_t>(call.stage));
    manual_seed(uint64_t{words[0]} << 32 | words[1]);
  }

 private:
  uint64_t key_;
  at::Generator generator_;
  at::Tensor after_;
};

std::string where(const StageCall& call) {
  return "stage " + std::to_string(call.stage) + ", micro-batch " + std::to_string(call.micro);
}

/// A sum over ranks is made before it leaves them.
at::Tensor summed_up(const at::Tensor& tensor) {
  return tensor.defined() && is_shard_tensor(tensor) ? redistribute(tensor, without_partial(spec(tensor))) : tensor;
}

/// The gradients of received tensors as they go back, in the cuts of what was received.
Tensors gradients_of(const Tensors& inputs) {
  Tensors gradients;
  for (const at::Tensor& input : inputs) {
    at::Tensor gradient = input.defined() && input.requires_grad() ? input.grad() : at::Tensor();
    if (gradient.defined() && is_shard_tensor(gradient)) gradient = redistribute(gradient.detach(), spec(input));
    gradients.push_back(gradient);
  }
  return gradients;
}

/// Copies what is there now: a stage may write what it gave away, a buffer of its own say, while that is on its way.
Tensors copies_of(const Tensors& tensors) {
  const c10::AutoGradMode no_grad(false);
  Tensors copies;
  for (const at::Tensor& tensor : tensors) {
    // Where it is sent others are refused.
    const bool dense = tensor.defined() && tensor.layout() == at::kStrided;
    copies.push_back(dense ? tensor.detach().clone().requires_grad_(tensor.requires_grad()) : tensor);
  }
  return copies;
}

/// Makes the leaves that the next stage on the same rank gets.
Tensors leaves_of(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& tensor : tensors)
    leaves.push_back(tensor.defined() ? tensor.detach().requires_grad_(tensor.requires_grad()) : at::Tensor());
  return leaves;
}

std::string describe(const at::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " " +
         (is_shard_tensor(tensor) ? spec(tensor)->to_string() : shape_string(tensor.sizes()));
}

}  // namespace

struct Pipeline::Step {
  const std::vector<Tensors>& samples;
  const Loss* loss = nullptr;
  const TrainOptions* options = nullptr;  // none: inference
  StepRandom random = {};
  std::map<std::pair<int64_t, int64_t>, Held> held = {};  // by stage and micro-batch
  std::map<std::string, Tensors> handed = {};             // to calls of this rank, where it is alone
  std::vector<Tensors> results = {};                      // by micro-batch, on the ranks of the last stage
  bool failed = false;              // somewhere; this rank goes through its list, and calls nothing more
  std::exception_ptr failure = {};  // of this rank
  std::unordered_set<const c10::TensorImpl*> trained = {};  // options->parameters
};

Pipeline::Pipeline(const MeshPtr& mesh, const std::string& dim, std::vector<Stage> stages,
                   const PipelineOptions& options)
    : mesh_(mesh),
      group_(mesh->group(mesh->mesh_dim(dim))),
      rank_(mesh->coordinate(dim)),
      ranks_(mesh->size(dim)),
      micros_(options.micros),
      stages_(std::move(stages)) {
  schedule_ = make_schedule(options.schedule, ranks_, this->stages(), micros_);
  forward_schedule_ = make_forward_schedule(ranks_, this->stages(), micros_);
  slice_ = make_slice(*mesh, mesh->mesh_dim(dim));
  note_stages(mesh, mesh->mesh_dim(dim));
  make_links();
}

Pipeline::~Pipeline() = default;

// From each rank to the one that has the next stages, and back: the last rank is followed by the first where stages go
// round more than once. Every rank takes part in every split.
void Pipeline::make_links() {
  if (ranks_ == 1) return;
  const int64_t edges = stages() == ranks_ ? ranks_ - 1 : ranks_;
  const int64_t capacity =
      std::max(link_capacity(schedule_, stages(), micros_), link_capacity(forward_schedule_, stages(), micros_));
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (int64_t edge = 0; edge < edges; ++edge) {
      const int64_t after = (edge + 1) % ranks_, from = pass == Pass::kForward ? edge : after,
                    to = pass == Pass::kForward ? after : edge;
      CommunicatorPtr pair = group_of(group_, {from, to});
      if (pair) (rank_ == from ? to_ : from_)[pass] = std::make_unique<TensorLink>(std::move(pair), capacity);
    }
  }
}

void Pipeline::tie(const std::vector<int64_t>& stages, const at::Tensor& parameter) {
  std::set<int64_t> members;
  for (const int64_t stage : stages) {
    TORCH_CHECK_VALUE(stage >= 0 && stage < this->stages(), "tie: no stage ", stage, "\n  have  ", this->stages(),
                      " stages");
    members.insert(stage % ranks_);
  }
  if (members.size() < 2) return;
  const CommunicatorPtr group = group_of(group_, members);
  if (!group) return;
  TORCH_CHECK_VALUE(parameter.defined(), "tie: no parameter on a rank that has one of its stages");
  const std::vector<std::string> all = group->all_gather_strings(describe(parameter));
  for (const std::string& other : all) {
    TORCH_CHECK_VALUE(other == all[0], "tie: stages that share a parameter have it in different forms\n  have  ",
                      all[0], "; ", other, "\n  fix   give it the same placements in all stages");
  }
  tied_.push_back({parameter, group});
}

void Pipeline::hold(const std::vector<at::Tensor>& parameters) const {
  for (const at::Tensor& parameter : parameters) {
    const auto tied =
        std::find_if(tied_.begin(), tied_.end(), [&](const Tied& one) { return one.parameter.is_same(parameter); });
    note_stage_parameter(parameter, group(), tied == tied_.end() || tied->group->rank() == 0);
  }
}

Tensors Pipeline::from_stage(int64_t stage, const Tensors& tensors) const {
  return broadcast_tensors(group_, static_cast<int>(stage % ranks_), tensors, slice_);
}

void Pipeline::check_use(const char* step) const {
  TORCH_CHECK_VALUE(!failed_, step, ": a step of this pipeline has failed before\n  fix   make another pipeline");
}

void Pipeline::refuse_step(StepKind kind, const std::string& why) {
  check_use(kind == StepKind::kTrain ? "train_step" : "infer_step");
  const std::vector<Tensors> none(micros_);
  Step step{none};
  step.failed = true;
  step.failure = std::make_exception_ptr(c10::ValueError({__func__, __FILE__, __LINE__}, why));
  run(kind == StepKind::kTrain ? schedule_[rank_] : forward_schedule_[rank_], step);
  throw std::logic_error(why);  // run throws
}

void Pipeline::check_count(StepKind kind, size_t samples) {
  const char* step = kind == StepKind::kTrain ? "train_step" : "infer_step";
  check_use(step);
  if (static_cast<int64_t>(samples) == micros_) return;
  const std::string required = std::to_string(micros_), given = std::to_string(samples);
  refuse_step(kind, std::string(step) + ": " + given + " samples for " + required +
                        " micro-batches\n  have  a pipeline with micros = " + required + "\n  fix   give " + required +
                        " samples, or make the pipeline with micros = " + given);
}

Tensors Pipeline::train_step(const std::vector<Tensors>& samples, const Loss& loss, const TrainOptions& options) {
  check_count(StepKind::kTrain, samples.size());
  if (const size_t given = options.is_dummy_batch.size(); given != 0 && given != samples.size()) {
    refuse_step(StepKind::kTrain, "train_step: is_dummy_batch has " + std::to_string(given) + " entries for " +
                                      std::to_string(micros_) + " micro-batches");
  }
  const c10::AutoGradMode record(true);
  const BackwardOnThisThread here;
  std::vector<at::Tensor> before;
  for (const Tied& one : tied_) before.push_back(std::exchange(one.parameter.mutable_grad(), at::Tensor()));
  Step step{samples, &loss, &options};
  for (const at::Tensor& one : options.parameters.value_or(Tensors())) step.trained.insert(one.unsafeGetTensorImpl());
  try {
    run(schedule_[rank_], step);
  } catch (...) {
    for (size_t i = 0; i < tied_.size(); ++i) tied_[i].parameter.mutable_grad() = before[i];
    throw;
  }
  add_tied_gradients(before);
  return share_losses(step.results);
}

std::vector<Tensors> Pipeline::infer_step(const std::vector<Tensors>& samples) {
  check_count(StepKind::kInfer, samples.size());
  const c10::AutoGradMode record(false);
  Step step{samples};
  run(forward_schedule_[rank_], step);
  step.results.resize(micros_);
  for (int64_t micro = 0; micro < micros_; ++micro) {
    Tensors& result = step.results[micro];
    if (group_.is_fake() && !has_stage(stages() - 1))
      result = TensorList(sent_before(stages(), micro, step), slice_).tensors(kFirstFingerprint);
    result = from_stage(stages() - 1, result);
  }
  return std::move(step.results);
}

Tensors Pipeline::infer_step(const std::vector<Tensors>& samples, const Loss& loss) {
  check_count(StepKind::kInfer, samples.size());
  const c10::AutoGradMode record(false);
  Step step{samples, &loss};
  run(forward_schedule_[rank_], step);
  return share_losses(step.results);
}

void Pipeline::run(const std::vector<StageCall>& calls, Step& step) {
  if (has_stage(stages() - 1)) step.results.resize(micros_);
  try {
    for (const StageCall& call : calls) call.pass == Pass::kForward ? forward(call, step) : backward(call, step);
    for (const auto& [pass, link] : to_) link->finish();
  } catch (...) {
    failed_ = true;
    for (const auto& [pass, link] : to_) link->abandon();
    if (step.failure) std::rethrow_exception(step.failure);  // says more than that others have gone
    throw;
  }
  settle(step);
}

/// Calls what users gave, and returns true, unless that fails or the step has failed. A rank that has failed goes
/// through its list all the same, and sends marks in place of tensors: others wait for these in the order of the list.
bool Pipeline::attempt(const StageCall& call, Step& step, const std::function<void()>& work) const {
  if (step.failed) return false;
  try {
    work();
    return true;
  } catch (const CommError&) {
    throw;
  } catch (const std::exception&) {
    step.failure = std::current_exception();
  }
  step.failed = true;
  check_slice_has_failed(call, step);
  return false;
}

static std::string message_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// The other ranks of a slice may wait for this one in the midst of a stage. Where they have failed in the same
/// call, all continue in the same way.
void Pipeline::check_slice_has_failed(const StageCall& call, const Step& step) const {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < slice_->ndim(); ++dim) {
    if (slice_->size(dim) > 1) dims.push_back(dim);
  }
  if (dims.empty()) return;
  bool identical = dims.size() == 1;  // of several, they may wait in any
  const std::string mine = "failed in " + call.to_string();
  // Ranks that wait in the stage find this call beside theirs: their error names the cause, whichever rank is the
  // first.
  const auto describe = [&] { return mine + ": " + message_of(step.failure); };
  const CallScope scope(fingerprint_of(mine), "pipeline", describe);
  try {
    const auto all = identical ? slice_->group(dims[0]).all_gather_strings(mine) : std::vector<std::string>();
    for (const std::string& one : all) identical = identical && one == mine;
  } catch (const std::exception&) {  // they are elsewhere
    identical = false;
  }
  if (!identical) std::rethrow_exception(step.failure);
}

/// Makes one error on all ranks of those that some of them have.
void Pipeline::settle(const Step& step) const {
  const auto mine = [&step] {
    if (step.failure) std::rethrow_exception(step.failure);
  };
  try {
    fail_together(group_, mine, std::to_string(mesh_->rank()) + " of " + std::to_string(mesh_->size()));
  } catch (const std::exception&) {
    mine();  // with what belongs to it, a script's position say
    throw;
  }
}

void Pipeline::forward(const StageCall& call, Step& step) {
  Tensors inputs = call.stage == 0 ? step.samples[call.micro] : take(call, step), outputs;
  const bool last = call.stage == stages() - 1;
  attempt(call, step, [&] {
    step.random.begin(call);
    outputs = outputs_of(call, inputs);
    check_trained(call, step, "the stage", inputs, outputs);
    if (last && step.loss == nullptr) step.results[call.micro] = outputs;
    if (last && step.loss != nullptr) {
      outputs = {loss_of(call, step, outputs)};
      check_trained(call, step, "the loss", inputs, outputs);
    }
  });
  if (!last) give(call, 1, step, [&] { return copies_of(outputs); });
  if (step.options != nullptr) step.held[{call.stage, call.micro}] = {std::move(inputs), std::move(outputs)};
}

// The ranks of a stage alone have the gradients of what it uses.
void Pipeline::check_trained(const StageCall& call, const Step& step, const std::string& who, const Tensors& inputs,
                             const Tensors& outputs) const {
  if (ranks_ == 1 || step.options == nullptr || !step.options->parameters) return;
  for (const at::Tensor& leaf : graph_leaves(outputs)) {
    if (step.trained.contains(leaf.unsafeGetTensorImpl()) || meaning_of(leaf).said == Said::kOwn) continue;
    const bool given =
        std::any_of(inputs.begin(), inputs.end(), [&](const at::Tensor& one) { return one.is_same(leaf); });
    TORCH_CHECK_VALUE(given, "train_step: ", where(call), ": ", who,
                      " uses a tensor that requires a gradient and is not a parameter of the stage: "
                      "other ranks would not have its gradient\n  have  ",
                      describe(leaf), fix(Remedy::kOwnOfStage));
  }
}

Tensors Pipeline::outputs_of(const StageCall& call, const Tensors& inputs) const {
  const ElementwiseRandom random;
  Tensors outputs = stages_[call.stage](inputs);
  TORCH_CHECK_VALUE(!outputs.empty(), "pipeline: ", where(call), ": the stage gave no tensor\n  have  ", inputs.size(),
                    " tensors given to it\n  fix   return the tensors for the next stage, or for the loss");
  for (at::Tensor& output : outputs) output = summed_up(output);
  return outputs;
}

at::Tensor Pipeline::loss_of(const StageCall& call, Step& step, const Tensors& outputs) const {
  const ElementwiseRandom random;
  const at::Tensor loss = (*step.loss)(outputs, call.micro);
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, step.options != nullptr ? "train_step" : "infer_step",
                    ": micro-batch ", call.micro, ": the loss is not a single number\n  have  ",
                    loss.defined() ? describe(loss) : "no tensor", "\n  fix   reduce it: mean() or sum()");
  step.results[call.micro] = {is_shard_tensor(loss) ? full_tensor(loss.detach()) : loss.detach()};
  if (step.options == nullptr) return loss;
  TORCH_CHECK_VALUE(loss.requires_grad(), "train_step: micro-batch ", call.micro,
                    ": nothing to train: the loss requires no gradient\n  have  ", describe(loss),
                    "\n  fix   compute it from the last stage's outputs, and let some parameter require a gradient");
  if (!step.options->scale_fn) return loss;
  const at::Tensor scaled = step.options->scale_fn(loss);
  TORCH_CHECK_VALUE(scaled.defined() && scaled.numel() == 1, "train_step: micro-batch ", call.micro,
                    ": scale_fn gives no single number\n  have  ", scaled.defined() ? describe(scaled) : "no tensor",
                    "\n  fix   return the loss, times a factor");
  return scaled;
}

void Pipeline::backward(const StageCall& call, Step& step) {
  const auto held = step.held.extract({call.stage, call.micro});
  const bool last = call.stage == stages() - 1;
  // Nothing is held where the forward failed.
  const Tensors taken = last ? Tensors() : take(call, step, held.empty() ? Tensors() : held.mapped().outputs);
  attempt(call, step, [&] {
    const Tensors& outputs = held.mapped().outputs;
    Tensors roots, gradients;
    const auto& dummy = step.options->is_dummy_batch;
    // A gradient of zeros would make NaN of values that are not finite.
    if (last && (dummy.empty() || !dummy[call.micro])) {
      roots = outputs;
      gradients = {at::ones_like(outputs[0])};
    }
    for (size_t i = 0; i < taken.size(); ++i) {
      if (!taken[i].defined()) continue;
      roots.push_back(outputs[i]);
      gradients.push_back(taken[i]);
    }
    if (!roots.empty()) torch::autograd::backward(roots, gradients);
  });
  if (call.stage > 0) give(call, -1, step, [&] { return gradients_of(held.mapped().inputs); });
}

/// In a dry run: the words of what comes to `stage`, found by running the stages before it. Nothing of these is
/// counted.
const std::vector<int64_t>& Pipeline::sent_before(int64_t stage, int64_t micro, const Step& step) {
  Tensors tensors = step.samples[micro];
  TORCH_CHECK_VALUE(!tensors.empty(), "pipeline: a dry run finds the shapes of what comes to a stage from the samples",
                    "\n  have  no tensors in sample ", micro, " on rank ", mesh_->rank(),
                    "\n  fix   give the samples on every rank");
  std::string key = std::to_string(stage) + (step.options != nullptr ? " trained" : "");
  for (const at::Tensor& tensor : tensors) key += tensor.defined() ? ", " + describe(tensor) : ", none";
  const auto known = sent_before_.find(key);
  if (known != sent_before_.end()) return known->second;
  const Uncounted uncounted;
  for (int64_t before = 0; before < stage; ++before)
    tensors = leaves_of(outputs_of({Pass::kForward, before, micro}, tensors));
  return sent_before_[key] = TensorList(tensors).words();
}

/// Nothing where the step has failed. `outputs`: of this stage, whose gradients a backward takes.
Tensors Pipeline::take(const StageCall& call, Step& step, const Tensors& outputs) {
  if (ranks_ == 1) return step.failed ? Tensors() : std::move(step.handed.extract(call.to_string()).mapped());
  if (group_.is_fake()) {
    if (step.failed) return {};
    if (call.pass == Pass::kForward)
      return from_.at(call.pass)->receive_zeros(sent_before(call.stage, call.micro, step), slice_, call.to_string());
    Tensors gradients;
    for (const at::Tensor& output : outputs)
      gradients.push_back(output.requires_grad() ? output.detach() : at::Tensor());
    return from_.at(call.pass)->receive_zeros(TensorList(gradients).words(), slice_, call.to_string());
  }
  auto tensors = from_.at(call.pass)->receive(slice_, call.to_string());
  step.failed = step.failed || !tensors;
  return tensors ? std::move(*tensors) : Tensors();
}

void Pipeline::give(const StageCall& call, int64_t stages_on, Step& step, const std::function<Tensors()>& tensors) {
  const std::string to = StageCall{call.pass, call.stage + stages_on, call.micro}.to_string();
  std::optional<TensorList> list;
  attempt(call, step, [&] {
    if (ranks_ == 1)
      step.handed[to] = leaves_of(tensors());
    else
      list.emplace(tensors());
  });
  if (ranks_ > 1) to_.at(call.pass)->send(list ? *list : TensorList::failed(), to);
}

// Sends doubles, which hold every loss exactly.
Tensors Pipeline::share_losses(const std::vector<Tensors>& losses) const {
  at::Tensor packed = at::zeros({micros_ + 1}, at::kDouble);
  auto* data = packed.mutable_data_ptr<double>();
  for (size_t m = 0; m < losses.size(); ++m) {
    data[0] = static_cast<double>(losses[m][0].scalar_type());
    data[m + 1] = losses[m][0].item<double>();
  }
  if (group_.is_fake() && losses.empty()) {
    packed.fill_(1);
    data[0] = static_cast<double>(at::kFloat);
  }
  const TrafficScope moving(Traffic::kStages);
  group_.broadcast(packed, static_cast<int>((stages() - 1) % ranks_));
  const auto dtype = static_cast<at::ScalarType>(static_cast<int>(data[0]));
  Tensors result;
  for (int64_t m = 1; m <= micros_; ++m) result.push_back(at::scalar_tensor(data[m], dtype));
  return result;
}

void Pipeline::add_tied_gradients(const std::vector<at::Tensor>& before) {
  const c10::AutoGradMode no_grad(false);
  const TrafficScope moving(Traffic::kGradients);
  for (size_t i = 0; i < tied_.size(); ++i) {
    const auto& [parameter, group] = tied_[i];
    at::Tensor& gradient = parameter.mutable_grad();
    at::Tensor used = at::full({1}, gradient.defined() ? 1 : 0, at::kLong);
    group->all_reduce(used, ReduceOp::kMax);
    if (used.item<int64_t>() != 0) {
      const bool sharded = is_shard_tensor(parameter);
      at::Tensor sum = gradient.defined() ? gradient.detach() : at::zeros_like(parameter);
      sum = (sharded ? to_local(redistribute(sum, spec(parameter))) : sum).clone(at::MemoryFormat::Contiguous);
      group->all_reduce(sum);
      gradient = sharded ? from_local(sum, spec(parameter)) : sum;
    }
    if (before[i].defined()) gradient = gradient.defined() ? before[i] + gradient : before[i];
  }
}

}  // namespace moonhalo
