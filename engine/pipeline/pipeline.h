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

struct PipelineOptions {
  Schedule schedule = Schedule::k1F1B;
  int64_t micros = 1;  ///< micro-batches of a step
};

/// Stages of a model on slices of a mesh, one after the other, through which micro-batches go at the same time.
///
///     mh::Pipeline pipeline(mesh, "pp", stages, {.schedule = mh::Schedule::k1F1B, .micros = 8});
///     auto losses = pipeline.train_step(samples, loss);
///
/// A stage is a function from tensors to tensors, which live on its ranks' slice (`mesh()`) or are plain, the same on
/// all ranks of it. Stage s is on the ranks whose place along `dim` is s mod the number of them; other ranks do not
/// call it. Its results go block by block to the ranks of the next stage that have the same place in their slice:
/// tensors of any number and shape, which may change from call to call, with gradients or without. Skip connections are
/// tensors that stages hand on.
///
/// Random operators of stage s in micro-batch m draw from a generator that is seeded by s, m and a number which each
/// step draws from default_generator(): the same on any number of ranks, one included.
///
/// All calls are collective over the mesh. An error in a stage, in the loss or in scale_fn is one on all ranks, at the
/// end of the step; gradients are then those of some micro-batches. Where a slice has several ranks, and not all of
/// them fail in the same call, the error ends its own rank at once, as any other does, and the pipeline is of no
/// further use.
class Pipeline {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Stage = std::function<Tensors(const Tensors&)>;
  /// The loss, of one element, of what the last stage gives for a micro-batch.
  using Loss = std::function<at::Tensor(const Tensors& outputs, int64_t micro)>;
  struct TrainOptions {
    std::vector<bool> is_dummy_batch = {};  ///< by micro-batch: it goes forward and has a loss, but no gradients
    std::function<at::Tensor(const at::Tensor&)> scale_fn = {};  ///< of the loss, for backward alone
    /// All that this rank's stages train. Where they are given, other leaves that require a gradient are refused.
    std::optional<Tensors> parameters = {};
  };

  /// ValueError, on all ranks alike, when the stages cannot be shared out or the schedule does not fit.
  Pipeline(const MeshPtr& mesh, const std::string& dim, std::vector<Stage> stages, const PipelineOptions& options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;

  /// This rank's slice: all dims of the mesh but the pipeline's; of one rank where there are no others.
  const MeshPtr& mesh() const { return slice_; }
  int64_t stages() const { return static_cast<int64_t>(stages_.size()); }
  bool has_stage(int64_t stage) const { return stage % ranks_ == rank_; }
  const PipelineSchedule& schedule() const { return schedule_; }

  /// Says that `stages` share a parameter; it is undefined on ranks that have none of them. train_step adds its
  /// gradients up. ValueError where the ranks' tensors differ in shape, dtype or placements.
  void tie(const std::vector<int64_t>& stages, const at::Tensor& parameter);
  /// Says which parameters this rank's stages have, after `tie`: norms of gradients (clip.h) are then those of all
  /// stages.
  void hold(const std::vector<at::Tensor>& parameters) const;

  /// The ranks that have the other stages, at this rank's place in their slices.
  CommunicatorPtr group() const { return group_.shared_from_this(); }

  /// Tensors of the ranks that have `stage` (its parameters, say), on all ranks: their own there, copies elsewhere.
  Tensors from_stage(int64_t stage, const Tensors& tensors) const;

  /// Adds the gradients of all micro-batches to those of this rank's parameters, and gives the losses, plain and the
  /// same on all ranks. `samples`: what the first stage is called with, for every micro-batch; only the first stage's
  /// ranks look at more than their number. ValueError when they are not as many as micro-batches; and where a stage or
  /// the loss has used a leaf that requires a gradient and is not in `options.parameters`: the ranks of that stage
  /// alone would have the gradient. Samples may be such leaves, and what is said to be the rank's own
  /// (tensor_meaning.h).
  Tensors train_step(const std::vector<Tensors>& samples, const Loss& loss, const TrainOptions& options);
  Tensors train_step(const std::vector<Tensors>& samples, const Loss& loss) { return train_step(samples, loss, {}); }
  /// Returns on all ranks what the last stage gives for each sample. No gradients are recorded.
  std::vector<Tensors> infer_step(const std::vector<Tensors>& samples);
  enum class StepKind { kTrain, kInfer };
  /// In place of a step, on a rank that cannot begin it: a ValueError, also on the ranks that have begun it.
  [[noreturn]] void refuse_step(StepKind kind, const std::string& why);
  /// The losses of train_step, without gradients.
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
  Tensors take(const StageCall& call, Step& step);
  void give(const StageCall& call, int64_t stages_on, Step& step, const std::function<Tensors()>& tensors);
  Tensors share_losses(const std::vector<Tensors>& losses) const;
  void check_trained(const StageCall& call, const Step& step, const std::string& who, const Tensors& inputs,
                     const Tensors& outputs) const;
  void add_tied_gradients(const std::vector<at::Tensor>& before);

  MeshPtr mesh_, slice_;
  Communicator& group_;  // along the pipeline
  int64_t rank_, ranks_, micros_;
  std::vector<Stage> stages_;
  PipelineSchedule schedule_, forward_schedule_;
  std::map<Pass, std::unique_ptr<TensorLink>> to_, from_;
  std::vector<Tied> tied_;
  bool failed_ = false;
};

}  // namespace moonhalo
