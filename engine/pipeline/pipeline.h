// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/pipeline/pipeline_schedule.h"
#include "moonhalo/engine/sharding/mesh.h"

namespace moonhalo {

class TensorLink;

/// Settings of a Pipeline.
struct PipelineOptions {
  /// The order of the stages' calls.
  Schedule schedule = Schedule::k1F1B;
  int64_t micros = 1;  ///< number of micro-batches of a step
};

/// Runs the stages of a model on slices of a mesh, one after the other, with several micro-batches in flight.
///
///     mh::Pipeline pipeline(mesh, "pp", stages, {.schedule = mh::Schedule::k1F1B, .micros = 8});
///     auto losses = pipeline.train_step(samples, loss);
///
/// A stage is a function from tensors to tensors. The tensors are on its ranks' slice (`mesh()`), or plain and equal on
/// all ranks of the slice. Stage s runs on the ranks whose coordinate along `dim` is s modulo the size of `dim`; other
/// ranks do not call it. Its results are sent block by block to the ranks of the next stage with the same position in
/// their slice. Their number and shapes may change from call to call, and they may or may not have gradients. For a
/// skip connection, let the stages between return the tensor as well.
///
/// Random operators of stage s in micro-batch m use a generator seeded by s, m and a number that each step draws from
/// default_generator(). So the values do not depend on the number of ranks.
///
/// In a dry run (a fake communicator) a rank runs its own stages. It receives zeros, shaped as the stages before make
/// them, which it runs once for each shape of samples, so it needs samples. Other ranks' losses are ones.
///
/// All calls are collective over the mesh. An error in a stage, in the loss or in scale_fn is thrown on all ranks at
/// the end of the step; gradients are then those of some of the micro-batches. If a slice has several ranks and only
/// some of them fail in a call, the error ends its own rank immediately, and the pipeline cannot be used any more.
class Pipeline {
 public:
  /// The tensors that go into or come out of a stage, and a stage.
  using Tensors = std::vector<at::Tensor>;
  using Stage = std::function<Tensors(const Tensors&)>;
  /// Returns the loss (one element) for the last stage's outputs of a micro-batch.
  using Loss = std::function<at::Tensor(const Tensors& outputs, int64_t micro)>;
  struct TrainOptions {
    std::vector<bool> is_dummy_batch = {};  ///< per micro-batch: has forward and loss, but no gradients
    std::function<at::Tensor(const at::Tensor&)> scale_fn = {};  ///< scales the loss for backward only
    /// All parameters that this rank's stages train. If given, a stage that uses another leaf that requires a gradient
    /// is an error.
    std::optional<Tensors> parameters = {};
  };

  /// Throws ValueError on all ranks if the number of stages or the schedule does not fit the mesh.
  Pipeline(const MeshPtr& mesh, const std::string& dim, std::vector<Stage> stages, const PipelineOptions& options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;

  /// Returns this rank's slice: all dims of the mesh except the pipeline's; a mesh of one rank if there are no others.
  const MeshPtr& mesh() const { return slice_; }
  int64_t stages() const { return static_cast<int64_t>(stages_.size()); }
  bool has_stage(int64_t stage) const { return stage % ranks_ == rank_; }
  const PipelineSchedule& schedule() const { return schedule_; }

  /// Declares that `stages` share a parameter; it is undefined on ranks that have none of them. train_step adds up its
  /// gradients. Throws ValueError if the ranks' tensors differ in shape, dtype or placements.
  void tie(const std::vector<int64_t>& stages, const at::Tensor& parameter);
  /// Declares the parameters of this rank's stages. Call it after `tie`. Gradient norms (clip.h) then cover all stages.
  void hold(const std::vector<at::Tensor>& parameters) const;

  /// Returns the group of the ranks that have the other stages, at this rank's position in their slices.
  CommunicatorPtr group() const { return group_.shared_from_this(); }

  /// Returns tensors of the ranks that have `stage` (for example its parameters) on all ranks: the tensors themselves
  /// on those ranks, copies elsewhere.
  Tensors from_stage(int64_t stage, const Tensors& tensors) const;

  /// Adds the gradients of all micro-batches to those of this rank's parameters. Returns the losses as plain tensors,
  /// equal on all ranks. `samples` has the first stage's inputs, one list per micro-batch; ranks without the first
  /// stage use only its length. Throws ValueError if that length is not the number of micro-batches, and if a stage or
  /// the loss used a leaf that requires a gradient and is not in `options.parameters`: only the ranks of that stage
  /// would have its gradient. Leaves are allowed in samples, and if they were declared as the rank's own
  /// (tensor_meaning.h).
  Tensors train_step(const std::vector<Tensors>& samples, const Loss& loss, const TrainOptions& options);
  Tensors train_step(const std::vector<Tensors>& samples, const Loss& loss) { return train_step(samples, loss, {}); }
  /// Returns the last stage's outputs for each sample on all ranks. Records no gradients.
  std::vector<Tensors> infer_step(const std::vector<Tensors>& samples);
  enum class StepKind { kTrain, kInfer };
  /// Call it instead of a step on a rank that cannot begin it. Throws ValueError here and on the ranks that have begun
  /// the step.
  [[noreturn]] void refuse_step(StepKind kind, const std::string& why);
  /// Returns the losses that train_step would return, without gradients.
  Tensors infer_step(const std::vector<Tensors>& samples, const Loss& loss);

 private:
  struct Held {
    Tensors inputs, outputs;
  };
  struct Step;
  struct Tied {
    at::Tensor parameter;
    CommunicatorPtr group;
  };
  void make_links();
  void check_use(const char* step) const;
  void check_count(StepKind kind, size_t samples);
  void run(const std::vector<StageCall>& calls, Step& step);
  bool attempt(const StageCall& call, Step& step, const std::function<void()>& work) const;
  void check_slice_has_failed(const StageCall& call, const Step& step) const;
  void settle(const Step& step) const;
  void forward(const StageCall& call, Step& step);
  void backward(const StageCall& call, Step& step);
  Tensors outputs_of(const StageCall& call, const Tensors& inputs) const;
  at::Tensor loss_of(const StageCall& call, Step& step, const Tensors& outputs) const;
  Tensors take(const StageCall& call, Step& step, const Tensors& outputs = {});
  const std::vector<int64_t>& sent_before(int64_t stage, int64_t micro, const Step& step);
  void give(const StageCall& call, int64_t stages_on, Step& step, const std::function<Tensors()>& tensors);
  Tensors share_losses(const std::vector<Tensors>& losses) const;
  void check_trained(const StageCall& call, const Step& step, const std::string& who, const Tensors& inputs,
                     const Tensors& outputs) const;
  void add_tied_gradients(const std::vector<at::Tensor>& before);

  MeshPtr mesh_, slice_;
  Communicator& group_;  // the ranks along the pipeline
  int64_t rank_, ranks_, micros_;
  std::vector<Stage> stages_;
  PipelineSchedule schedule_, forward_schedule_;
  std::map<Pass, std::unique_ptr<TensorLink>> to_, from_;
  std::vector<Tied> tied_;
  std::map<std::string, std::vector<int64_t>> sent_before_;
  bool failed_ = false;
};

}  // namespace moonhalo
