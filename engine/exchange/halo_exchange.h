// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <chrono>
#include <optional>
#include <vector>

#include "moonhalo/engine/exchange/halo_source.h"
#include "moonhalo/engine/exchange/interval_map.h"

namespace moonhalo {

/// Executes several interval maps of one mesh in one exchange. Each pair of ranks exchanges one message for all maps,
/// tensors and regions. Gathers (owned rows to the ranks that need them) and their adjoints (gradients, added on the
/// owner) may share an exchange.
///
///     HaloExchange edges;
///     const size_t low = edges.add_gather(*low_map, x), high = edges.add_gather(*high_map, x);
///     edges.start();
///     ... compute what needs no halo ...
///     edges.wait();                        edges.gathered(low), edges.gathered(high)
///
/// Every rank must add the same maps in the same order. All tensors have one dtype. start() is collective over the mesh
/// if any of the maps exchanges. Receives are posted first. A single region is sent without packing if the communicator
/// supports it; several regions are packed. The maps must outlive the exchange, and the sent tensors must not be
/// written before wait(). The destructor waits if needed.
class HaloExchange {
 public:
  HaloExchange() = default;
  HaloExchange(const HaloExchange&) = delete;

  /// Returns the number of the request. `local` is this rank's owned block. Elements outside of the domain with
  /// Boundary::kZero are set to `fill`. If `source` has the halos of this map, this request sends nothing.
  size_t add_gather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0,
                    const HaloSource& source = {});
  /// Does the same and writes into `into`, a tensor of the needed box's shape and of the same dtype and device.
  /// gathered() then returns it.
  size_t add_gather_into(const IntervalMap& map, const at::Tensor& local, const at::Tensor& into);
  /// Adds an adjoint. `grad` has the shape of the needed box.
  size_t add_scatter_add(const IntervalMap& map, const at::Tensor& grad);

  /// Posts the messages. It also waits if overlap is off (set_halo) and `asynchronous` is false, and always with the
  /// all-to-all backend.
  void start(bool asynchronous = halo_overlaps());
  void wait();

  /// True if anything is sent on any rank. Equal on all ranks.
  bool moves() const;
  /// Calls note_halo(event) if anything is sent.
  void trace(const char* event) const;

  /// Call after wait(). Returns the needed box of a gather. It may be the local block itself or a view of it.
  at::Tensor gathered(size_t request);
  /// Call after wait(). Returns per owned element the sum of the gradients of all its copies. If `owned` is defined,
  /// the sum is added to it in place.
  at::Tensor scattered(size_t request, const at::Tensor& owned = {});

 private:
  using Copy = IntervalMap::Copy;
  static bool gives_a_view(const IntervalMap& map);
  struct Request {
    const IntervalMap* map;
    at::Tensor given, result;  // result: of a gather
    bool back;
    bool whole = false;                                // a gather without copies: the result is a view of the input
    std::optional<std::vector<at::Tensor>> held = {};  // the halos, if a source has them: nothing is sent
    bool is_exchanged() const { return map->exchanges_ && !held; }
  };
  struct Part {  // one region of one request
    size_t request;
    const Copy* copy;
  };
  struct PeerBuffer {  // all regions for, or from, one peer
    int peer;
    std::vector<Part> parts;
    int64_t numel = 0;
    at::Tensor data;  // incoming: undefined if it is received in its final place
  };
  static bool halo_overlaps();
  std::vector<PeerBuffer> buffers(bool incoming) const;
  at::Tensor outgoing(const Part& part) const;
  at::Tensor lay_out(std::vector<PeerBuffer>& peers) const;
  void pack(const std::vector<PeerBuffer>& peers) const;
  Message outgoing_message(PeerBuffer& buffer, const Communicator& group) const;
  Message incoming_message(PeerBuffer& buffer, const Communicator& group) const;
  static void each_part(const PeerBuffer& buffer, c10::function_ref<void(const Part&, const at::Tensor&)> give);
  void send_p2p(Communicator& group);
  void send_all_to_all(Communicator& group);
  void place_held();
  void arrive();
  void unpack();

  std::vector<Request> requests_;
  std::vector<PeerBuffer> incoming_;
  at::TensorOptions tensor_options_;
  WorkPtr work_;
  bool under_way_ = false, unpacked_ = false;
  std::chrono::steady_clock::time_point started_;
};

/// Returns the needed box of `map`, filled. `local` is this rank's owned block, of any dtype. Elements outside of the
/// domain with Boundary::kZero are set to `fill`. Halos that `source` has are not sent. The result may be `local`
/// itself or a view of it. Collective over the mesh if anything moves.
at::Tensor gather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0,
                  const HaloSource& source = {});
/// The adjoint of gather. `grad` has the shape of the needed box. Returns per owned element the sum over all places it
/// was copied to. If `owned`, a block of this rank, is defined, the sum is added to it in place. Over all ranks
/// <gather(x), y> = <x, scatter_add(y)>. Collective over the mesh.
at::Tensor scatter_add(const IntervalMap& map, const at::Tensor& grad, const at::Tensor& owned = {});

/// A gather in two steps. The caller can compute between them.
class PendingGather {
 public:
  /// Posts the messages. `map` must outlive this object, and `local` must not be written before finish(). Collective
  /// over the mesh if anything moves.
  PendingGather(const IntervalMap& map, const at::Tensor& local, const at::Scalar& fill = 0);
  /// Waits for the rows and returns the needed box.
  at::Tensor finish();

 private:
  HaloExchange exchange_;
};

}  // namespace moonhalo
