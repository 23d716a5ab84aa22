// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/dataset_template.h"

#include <algorithm>
#include <set>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/fields/reader.h"

namespace moonhalo::io {
namespace {

Attributes described(Attributes attrs) {
  static const std::set<std::string> left_out = {
      "scale_factor",        "add_offset",  "_FillValue",  "missing_value", "valid_min",
      "valid_max",           "valid_range", "_Unsigned",   "coordinates",   "grid_mapping",
      "ancillary_variables", "bounds",      "climatology", "cell_measures", "formula_terms"};
  std::erase_if(attrs, [](const auto& entry) { return left_out.contains(entry.first); });
  return attrs;
}

/// The 1-D dataset of a dim's name in the group of the source, or a group around it.
std::optional<Dataset> coordinates_of(const Selection& source, const std::string& dim) {
  const File file(source.dataset().file());
  std::string group = source.dataset().name();
  do {
    const size_t slash = group.rfind('/');
    group = slash == std::string::npos ? "" : group.substr(0, slash);
    const std::string path = group.empty() ? dim : group + "/" + dim;
    if (!file.has(path) || file.is_group(path)) continue;
    Dataset found = file[path];
    if (found.ndim() == 1 && found.info().dtype && !found.is_bare_dimension()) return found;
    return std::nullopt;
  } while (!group.empty());
  return std::nullopt;
}

}  // namespace

DatasetTemplate read_dataset_template(const Selection& source, at::IntArrayRef shape, bool grows,
                                      const h5::Where& where) {
  DatasetTemplate likeness{.dims = source.dims(), .attrs = described(source.dataset().attrs()), .coordinates = {}};
  const bool named = std::any_of(likeness.dims.begin(), likeness.dims.end(), [](auto& dim) { return !dim.empty(); });
  TORCH_CHECK_VALUE(named, where.to_string(), ": `like` is a dataset whose dimensions have no names\n  have  \"",
                    source.dataset().name(), "\" of file \"", source.dataset().path(),
                    "\"\n  fix   pass dims and attrs instead");
  const size_t free = grows ? 1 : 0;
  TORCH_CHECK_VALUE(source.shape().size() == shape.size() &&
                        std::equal(shape.begin() + free, shape.end(), source.shape().begin() + free),
                    where.to_string(), ": `like` has another shape\n  have  shape ", shape_string(shape), ", `like` ",
                    shape_string(source.shape()),
                    "\n  fix   select the rows that the tensor stands for, as in x[\"10:\"]");
  size_t dim = 0;
  for (const Slice& slice : source.slices()) {
    if (slice.dropped) continue;
    const std::string& name = likeness.dims[dim++];
    if (name.empty() || (grows && dim == 1)) continue;
    const auto coordinates = coordinates_of(source, name);
    if (!coordinates) continue;
    Attributes attrs = coordinates->attrs();
    attrs.erase("bounds");
    attrs.erase("climatology");
    likeness.coordinates.push_back({name, Selection(*coordinates, {slice}).read(), std::move(attrs)});
  }
  return likeness;
}

WriteOptions completed(WriteOptions options, const DatasetTemplate& likeness) {
  if (options.dims.empty()) options.dims = likeness.dims;
  options.attrs.insert(likeness.attrs.begin(), likeness.attrs.end());
  return options;
}

}  // namespace moonhalo::io
