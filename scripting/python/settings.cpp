// SPDX-License-Identifier: Apache-2.0
// Settings of a rank, and what its operators did.
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/dispatch/dispatch.h"
#include "moonhalo/engine/moonhalo.h"
#include "moonhalo/scripting/python/module.h"

namespace moonhalo::python {

namespace {

void check_choice(const char* what, const std::string& given, const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), given) != choices.end()) return;
  TORCH_CHECK_VALUE(false, what, " '", given, "' is unknown", did_you_mean(given, choices), "\n  have  ",
                    c10::Join(", ", choices));
}

std::string change_fallback(const std::string& given) {
  check_choice("set_fallback:", given, {"replicate", "error"});
  const Fallback before = set_fallback(given == "error" ? Fallback::kError : Fallback::kReplicate);
  return before == Fallback::kError ? "error" : "replicate";
}

py::dict halo_dict(const HaloOptions& options) {
  return py::dict(py::arg("overlap") = options.overlap, py::arg("exchange") = std::string(name(options.backend)),
                  py::arg("keep") = options.keep);
}

py::dict change_halo(Communicator* world, std::optional<bool> overlap, const std::optional<std::string>& exchange,
                     std::optional<bool> keep) {
  HaloOptions required = halo_options();
  if (exchange) {
    check_choice("set_halo: exchange", *exchange, {"p2p", "all_to_all"});
    required.backend = *exchange == "p2p" ? HaloBackend::kP2p : HaloBackend::kAllToAll;
  }
  required.overlap = overlap.value_or(required.overlap);
  required.keep = keep.value_or(required.keep);
  HaloOptions before;
  {
    const ScopedRelease released;
    before = set_halo(required, world);
  }
  return halo_dict(before);
}

py::list traced(const py::function& fn, const py::args& args, const py::kwargs& options) {
  std::vector<TraceRecord> records;
  Dispatch& dispatch = Dispatch::of_this_thread();
  struct Restore {
    Dispatch& dispatch;
    std::vector<TraceRecord>* before;
    ~Restore() { dispatch.trace = before; }
  };
  {
    const Restore restore{dispatch, std::exchange(dispatch.trace, &records)};
    fn(*args, **options);
  }
  py::list calls;
  for (const TraceRecord& record : records) {
    calls.append(py::dict(py::arg("op") = record.op, py::arg("inputs") = record.inputs,
                          py::arg("outputs") = record.outputs, py::arg("bytes") = record.bytes,
                          py::arg("traffic") = to_string(record.traffic), py::arg("gathered") = record.gathered,
                          py::arg("halo") = record.halo, py::arg("halo_seconds") = record.times.under_way,
                          py::arg("halo_waited") = record.times.waited));
  }
  return calls;
}

}  // namespace

void define_settings(py::module_& m) {
  m.def("set_fallback", &change_fallback, py::arg("fallback"),
        "What operators without a sharding rule do: \"replicate\" gathers their tensors with one warning, \"error\" is "
        "an error. Of this rank; returns the setting before. Not collective.");
  m.def("set_halo", &change_halo, py::arg("world"), py::kw_only(), py::arg("overlap") = py::none(),
        py::arg("exchange") = py::none(), py::arg("keep") = py::none(),
        "How halos are sent: overlap (compute the interior meanwhile), exchange (\"p2p\" or \"all_to_all\"), keep (has "
        "no effect). What is left out stays. Values do not depend on it. Returns the setting before. "
        "Collective over `world`; with None not, and then all ranks must set the same.");
  m.def(
      "set_output_cut",
      [](Communicator* world, const std::string& cut) {
        return std::string(name(set_output_cut(parse_output_cut(cut), world)));
      },
      py::arg("world"), py::arg("cut"), Released(),
      "How outputs of windows (convolution, pooling), padding, cat and the gradients of slices, diagonals and "
      "Tensor.unfold are cut: \"geometry\", \"keep\" or \"rebalance\". Values do not depend on it. Returns the setting "
      "before. Collective over `world`; with None not.");
  m.def("rebalance", &rebalance, py::arg("tensor"), py::arg("dim") = py::none(), Released(),
        "The tensor with blocks whose sizes differ by at most one. Collective over its mesh. Differentiable.");
  m.def("op_trace", &traced, py::arg("fn"),
        "Calls fn(*args, **kwargs) and returns a list of dicts, one for each operator on ShardTensors: op, inputs and "
        "outputs (placements), bytes that this rank sent, traffic (why), gathered, halo. Not collective itself.");
}

}  // namespace moonhalo::python
