// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/scatter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/block_memory.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/diagnostics/call_fingerprint.h"
#include "moonhalo/engine/sharding/mesh_device.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/fields/read_together.h"
#include "moonhalo/io/fields/writer.h"
#include "moonhalo/io/shares/io_plan.h"

namespace moonhalo::io {
at::Tensor read_block(const Selection& source, const ShardSpec& spec, const ReadOptions& options,
                      const BlockHalo& halo) {
  TORCH_CHECK_VALUE(source.shape() == spec.global_shape(), "read_block: a selection of shape ",
                    shape_string(source.shape()), " is not the spec's tensor\n  have  ", spec.to_string(),
                    "\n  fix   make the spec from the selection's shape");
  Selection block = source;
  for (int64_t dim = 0; dim < spec.ndim(); ++dim) {
    Interval rows = spec.block_range(dim, spec.mesh()->rank());
    if (spec.is_cut(dim)) rows = with_halo(halo, dim, rows, spec.global_shape()[dim]);
    block = block.narrow(dim, rows.begin, rows.size());
  }
  return block.read(options);
}

}  // namespace moonhalo::io

namespace moonhalo {
namespace {

SpecPtr spec_of(const io::Selection& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                const io::h5::Where& where) {
  for (const auto& placement : placements) {
    TORCH_CHECK_VALUE(!placement.is_partial(), where.to_string(), ": ", placement.to_string(),
                      " is not a way to hold a dataset\n  have  ", source.dataset().type_name(), " of shape ",
                      shape_string(source.shape()), "\n  fix   use Shard(dim) or Replicate()");
  }
  return make_spec(mesh, source.shape(), placements);
}

// By page-locked memory, from which the device takes it while the host goes on.
at::Tensor on_device(const at::Tensor& block, const DeviceMesh& mesh) {
  if (is_on_device(mesh, block)) return block;
  const at::Tensor locked = at::empty(block.sizes(), block.options().pinned_memory(true));
  locked.copy_(block);
  return locked.to(device_of(mesh), /*non_blocking=*/true);
}

at::Tensor as_scattered(const at::Tensor& block, const SpecPtr& spec, const io::h5::Where& where) {
  const at::Tensor result = from_local(block, spec);
  set_new_origin(result, fingerprint_of(where.to_string()));
  return result;
}

io::h5::Where about_scatter(const io::Selection& source) {
  return {"scatter_tensor", source.dataset().path(), "dataset \"" + source.dataset().name() + "\""};
}

}  // namespace

at::Tensor scatter_tensor(const io::Selection& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          const ScatterOptions& options) {
  const io::h5::Where where = about_scatter(source);
  TORCH_CHECK_NOT_IMPLEMENTED(options.halo == 0, where.to_string(), ": halo ", options.halo,
                              " is not 0\n  have  a ShardTensor, which holds owned rows only"
                              "\n  fix   leave halo out (operators exchange what they need), or "
                              "use scatter_with_halo");
  const SpecPtr spec = spec_of(source, mesh, placements, where);
  const at::Tensor block = io::read_together(source, spec, {.dtype = options.dtype, .decode = options.decode});
  return as_scattered(on_device(block, *mesh), spec, where);
}

ScatteredHalo scatter_with_halo(const io::Selection& source, const MeshPtr& mesh,
                                const std::vector<Placement>& placements, const ScatterOptions& options) {
  const io::h5::Where where = about_scatter(source);
  TORCH_CHECK_VALUE(options.halo >= 0, where.to_string(), ": halo ", options.halo,
                    " is below 0\n  have  rows to read beyond each side of a block\n  fix   give 0 or more");
  const SpecPtr spec = spec_of(source, mesh, placements, where);
  const std::vector<int64_t> widths(spec->ndim(), options.halo);
  const io::BlockHalo halo{widths, widths};
  const at::Tensor padded =
      on_device(io::read_together(source, spec, {.dtype = options.dtype, .decode = options.decode}, halo), *mesh);
  at::Tensor owned = padded;
  for (int64_t dim = 0; dim < spec->ndim(); ++dim) {
    if (!spec->is_cut(dim)) continue;
    const Interval rows = spec->block_range(dim, mesh->rank());
    owned =
        owned.narrow(dim, rows.begin - io::with_halo(halo, dim, rows, spec->global_shape()[dim]).begin, rows.size());
  }
  return {as_scattered(copied_block(owned), spec, where), padded};
}

}  // namespace moonhalo
