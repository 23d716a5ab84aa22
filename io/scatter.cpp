// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/scatter.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/comm/agreement.h"
#include "moonhalo/engine/comm/call_tag.h"
#include "moonhalo/engine/tensor/call_origin.h"
#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/h5_types.h"
#include "moonhalo/io/io_plan.h"
#include "moonhalo/io/read_together.h"
#include "moonhalo/io/writer.h"

namespace moonhalo::io {
namespace {

h5::Where about(const char* op, const std::string& path, const std::string& dataset) {
  return {op, path, "dataset \"" + dataset + "\""};
}

/// True on the one rank, of those that hold equal blocks, that writes them: the first along every
/// mesh dim that cuts nothing.
bool writes(const ShardSpec& spec, int64_t rank) {
  const DeviceMesh& mesh = *spec.mesh();
  for (int64_t mesh_dim = 0; mesh_dim < mesh.ndim(); ++mesh_dim) {
    if (!spec.layout().uses(mesh_dim) && mesh.coordinate(rank, mesh_dim) != 0) return false;
  }
  for (int64_t dim = 0; dim < spec.ndim(); ++dim) {
    const auto [begin, end] = spec.block_range(dim, rank);
    if (begin == end) return false;
  }
  return true;
}

}  // namespace

at::Tensor read_block(const Selection& source, const ShardSpec& spec, const ReadOptions& options,
                      const BlockHalo& halo) {
  TORCH_CHECK_VALUE(source.shape() == spec.global_shape(), "read_block: a selection of shape ",
                    shape_string(source.shape()), " is not the spec's tensor\n  have  ",
                    spec.to_string(), "\n  fix   make the spec from the selection's shape");
  Selection block = source;
  for (int64_t dim = 0; dim < spec.ndim(); ++dim) {
    const auto [begin, end] = spec.block_range(dim, spec.mesh()->rank());
    Interval rows{begin, end};
    if (spec.is_cut(dim)) rows = with_halo(halo, dim, rows, spec.global_shape()[dim]);
    block = block.narrow(dim, rows.begin, rows.size());
  }
  return block.read(options);
}

void write_shards(FileState& file, const std::string& name, const at::Tensor& tensor, const WriteOptions& options) {
  const auto where = about("write", file.path(), name);
  const SpecPtr target = without_partial(spec(tensor));
  const at::Tensor whole = redistribute(tensor.detach(), target);
  const at::Tensor block = to_local(whole).detach();
  const CommunicatorPtr group = target->mesh()->group_ptr();
  const bool owner = group->rank() == 0;

  at::Tensor data;
  fail_together(*group, [&] {
    file.check_writable(where);
    if (writes(*target, group->rank())) data = plain_data(block);
  });
  // What fails after the dataset was made leaves half of it: no rank may finish the file.
  file.change(where, [&] {
    std::string path;
    fail_together(*group, [&] {
      if (!owner) return;
      {
        const auto access = file.write(where);
        create_dataset_in(access, name, tensor.sizes(), tensor.scalar_type(), options, where).close(where);
      }
      path = file.share(group, where);
    });
    path = group->all_gather_strings(path).front();
    if (!owner) file.follow(group, path);

    for (int64_t rank = 0; rank < group->size(); ++rank) {
      if (!writes(*target, rank)) continue;
      fail_together(*group, [&] {
        if (rank != group->rank()) return;
        h5::WriteStatus status;
        h5::Handle turn = h5::open_file_for_writing(path, h5::write_access(status, where), where);
        h5::Handle dataset = h5::open_dataset(turn.get(), "/" + name, 0, nullptr, where);
        write_part(dataset.get(), target->offsets(), data, where);
        dataset.close(where);
        turn.close(where);
        h5::check_written(status, where);
      });
    }
  });
}

}  // namespace moonhalo::io

namespace moonhalo {

at::Tensor scatter_tensor(const io::Selection& source, const MeshPtr& mesh, const std::vector<Placement>& placements,
                          const ScatterOptions& options) {
  const auto where = io::about("scatter_tensor", source.dataset().path(), source.dataset().name());
  TORCH_CHECK_NOT_IMPLEMENTED(options.halo == 0, where.to_string(), ": halo ", options.halo,
                              " is not 0\n  have  a ShardTensor, which holds owned rows only"
                              "\n  fix   leave halo out (operators exchange what they need), or "
                              "use io::read_block");
  for (const auto& placement : placements) {
    TORCH_CHECK_VALUE(!placement.is_partial(), where.to_string(), ": ", placement.to_string(),
                      " is not a way to hold a dataset\n  have  ", source.dataset().type_name(),
                      " of shape ", shape_string(source.shape()),
                      "\n  fix   use Shard(dim) or Replicate()");
  }
  const SpecPtr spec = make_spec(mesh, source.shape(), placements);
  at::Tensor block = io::read_together(source, spec, {.dtype = options.dtype, .decode = options.decode});
  if (mesh->device_type() != "cpu") block = block.to(at::Device(mesh->device_type()));
  const at::Tensor result = from_local(block, spec);
  set_new_origin(result, tag_of(where.to_string()));
  return result;
}

}  // namespace moonhalo
