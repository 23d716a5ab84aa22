// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "moonhalo/engine/deferred/deferred_read.h"
#include "moonhalo/engine/sharding/spec.h"

namespace moonhalo {

/// Records what was done to deferred tensors, in order, to do it again. Values are numbered; each has a meta tensor,
/// whose storage says which values share memory.
class DeferredTape {
 public:
  struct Result {
    bool list = false;
    std::vector<int64_t> values;  ///< -1: undefined
  };

  /// Notes a call whose arguments include the deferred values that `value_of` has (-1 for others). A random
  /// operator draws its key now. `factory`: its result starts from nothing.
  std::vector<Result> record(const c10::OperatorHandle& op, at::ArrayRef<c10::IValue> arguments, bool factory,
                             const std::function<int64_t(const at::Tensor&)>& value_of);
  /// The result of the last call, which was of a factory, has the values that `read` gives.
  void read_last(ReadBox read) { steps_.back().read = std::move(read); }
  const at::Tensor& meta(int64_t value) const { return metas_[value]; }

  /// Does again all that `value` depends on: on ShardTensors of `spec`'s mesh, or on plain tensors where it is null.
  at::Tensor replay(int64_t value, const SpecPtr& spec) const;

 private:
  struct Use {  // an argument, or an item of a list, that is a deferred value
    int arg;
    int item;
    int64_t value;
    bool written;
  };
  struct Captured {  // a plain tensor among the arguments
    at::Tensor tensor;
    uint32_t version;
  };
  struct Step {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // deferred values are None
    std::vector<Use> uses;
    std::vector<Captured> captured;
    std::vector<Result> results;
    std::optional<uint64_t> key;  // of a random operator
    bool factory = false;
    ReadBox read = nullptr;  // gives the values of a factory's result
  };

  int64_t add(const at::Tensor& meta);
  const void* storage_of(int64_t value) const { return metas_[value].storage().unsafeGetStorageImpl(); }
  std::vector<Result> shapes_of(const Step& step);
  std::vector<size_t> needed_for(int64_t value) const;
  bool written_through_views(const std::vector<size_t>& needed) const;
  at::Tensor make(const Step& step, const SpecPtr& spec, bool whole) const;
  void run(const Step& step, const SpecPtr& spec, bool whole, std::vector<at::Tensor>& values) const;

  std::vector<Step> steps_;
  std::vector<at::Tensor> metas_;
};

}  // namespace moonhalo
