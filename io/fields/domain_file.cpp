// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/fields/domain_file.h"

#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <optional>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/io_stats.h"
#include "moonhalo/io/base/memory.h"
#include "moonhalo/io/fields/conversion.h"
#include "moonhalo/io/fields/reader.h"
#include "moonhalo/io/fields/writer.h"
#include "moonhalo/io/formats/attributes.h"
#include "moonhalo/io/formats/catalog.h"
#include "moonhalo/io/formats/file_state.h"
#include "moonhalo/io/formats/scales.h"

namespace moonhalo::io {
namespace {

std::string in_quotes(const char* kind, const std::string& name) { return std::string(kind) + " \"" + name + "\""; }

h5::Where about(const char* op, const File& file, const std::string& dataset) {
  return {op, file.path(), in_quotes("dataset", dataset)};
}

h5::Where about(const char* op, const Dataset& dataset) {
  return {op, dataset.path(), in_quotes("dataset", dataset.name())};
}

std::optional<H5O_info_t> info_of(const FileState::Access& file, const std::string& path) {
  if (!h5::link_exists(file.id, path, file.links)) return std::nullopt;
  const h5::Scope scope;
  H5O_info_t info;
  if (H5Oget_info_by_name2(file.id, ("/" + path).c_str(), &info, H5O_INFO_BASIC, file.links) < 0) return std::nullopt;
  return info;
}

H5O_type_t object_type(const FileState::Access& file, const std::string& path) {
  if (file.catalog) {
    if (file.catalog->find(path) || file.catalog->broken.contains(path)) return H5O_TYPE_DATASET;
    return file.catalog->groups.contains(path) ? H5O_TYPE_GROUP : H5O_TYPE_UNKNOWN;
  }
  const auto info = info_of(file, path);
  return info ? info->type : H5O_TYPE_UNKNOWN;
}

herr_t add_link(hid_t, const char* name, const H5L_info_t*, void* data) {
  static_cast<std::vector<std::string>*>(data)->emplace_back(name);
  return 0;
}

/// Sorted by us: where a file is damaged, HDF5 1.10 frees a table that it never filled when it sorts (H5_ITER_INC).
std::vector<std::string> links(const FileState::Access& file, const std::string& group, const h5::Where& where) {
  if (file.catalog) return file.catalog->members(group);
  std::vector<std::string> names;
  hsize_t position = 0;
  h5::checked(where, "list it", [&] {
    return H5Literate_by_name(file.id, ("/" + group).c_str(), H5_INDEX_NAME, H5_ITER_NATIVE, &position, add_link,
                              &names, file.links);
  });
  std::sort(names.begin(), names.end());
  return names;
}

/// An object's file, and its address there.
using Place = std::pair<unsigned long, haddr_t>;

Place place_of(const H5O_info_t& info) { return {info.fileno, info.addr}; }

/// Depth first. A group is not followed where it is within itself, by a link to one above: `above` are those on the
/// way. Nor past 16 levels.
void add_datasets(const FileState::Access& file, const std::string& group, std::vector<Place>& above,
                  const h5::Where& where, std::vector<std::string>& found) {
  for (const auto& name : links(file, group, where)) {
    const std::string path = group.empty() ? name : group + "/" + name;
    std::optional<H5O_info_t> info;
    try {
      info = info_of(file, path);
    } catch (const c10::ValueError&) {  // a link that leads too far: opening it says what is wrong
      found.push_back(path);
    }
    if (!info) continue;
    if (info->type == H5O_TYPE_DATASET) found.push_back(path);
    if (info->type != H5O_TYPE_GROUP || above.size() > 16) continue;
    if (std::find(above.begin(), above.end(), place_of(*info)) != above.end()) continue;
    above.push_back(place_of(*info));
    add_datasets(file, path, above, where, found);
    above.pop_back();
  }
}

std::vector<std::string> all_datasets(const FileState::Access& file, const h5::Where& where) {
  if (file.catalog) return file.catalog->paths();
  const h5::Scope scope;
  std::vector<std::string> found;
  std::vector<Place> above;
  if (const auto root = info_of(file, "")) above.push_back(place_of(*root));
  add_datasets(file, "", above, where, found);
  return found;
}

/// "3 datasets: a, b, c"; of many only the first ones, of those that begin with `prefix` if there are any.
std::string some_names(std::vector<std::string> names, const std::string& prefix) {
  constexpr size_t kShown = 5;
  if (names.empty()) return "no datasets";
  const size_t count = names.size();
  std::stable_partition(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
  names.resize(std::min(count, kShown));
  return std::to_string(count) + (count == 1 ? " dataset" : " datasets") + (count > kShown ? ", such as " : ": ") +
         c10::Join(", ", names);
}

[[noreturn]] void no_object(const h5::Where& where) {
  TORCH_CHECK_VALUE(false, where.to_string(),
                    ": it does not exist\n  have  no dataset or group of that name"
                    "\n  fix   see keys() for the names");
}

h5::Handle open_object(const FileState::Access& file, const std::string& path, const h5::Where& where) {
  if (!path.empty() && !h5::link_exists(file.id, path, file.links)) no_object(where);
  return h5::make(where, "open it", H5Oclose, [&] { return H5Oopen(file.id, ("/" + path).c_str(), file.links); });
}

[[noreturn]] void no_attribute(const std::string& name, const std::vector<std::string>& names, const h5::Where& where) {
  TORCH_CHECK_VALUE(false, where.to_string(), ": no attribute \"", name, "\"", did_you_mean(name, names), "\n  have  ",
                    names.empty() ? "no attributes" : c10::Join(", ", names), "\n  fix   use one of these names");
}

AttributeValue attribute_or_throw(hid_t object, const std::string& name, const h5::Where& where) {
  if (auto value = h5::find_attribute(object, name, where)) return std::move(*value);
  no_attribute(name, h5::attribute_names(object, where), where);
}

const Catalog::AttributeMap& attributes_in(const Catalog& catalog, const std::string& object, const h5::Where& where) {
  const auto* attributes = catalog.attributes(object);
  if (!attributes) no_object(where);
  return *attributes;
}

AttributeValue attribute_in(const Catalog& catalog, const std::string& object, const std::string& name,
                            const h5::Where& where) {
  const auto& attributes = attributes_in(catalog, object, where);
  const auto found = attributes.find(name);
  if (found != attributes.end()) return found->second.value;
  std::vector<std::string> names;
  for (const auto& entry : attributes) names.push_back(entry.first);
  no_attribute(name, names, where);
}

void check_out(const at::Tensor& out, const std::vector<int64_t>& shape, const h5::Where& where) {
  TORCH_CHECK_VALUE(out.is_contiguous() && out.device().is_cpu() && out.sizes() == shape, where.to_string(),
                    ": `out` does not fit\n  have  a ", out.is_contiguous() ? "" : "non-contiguous ",
                    out.device().str(), " tensor of shape ", shape_string(out.sizes()), ", selection of shape ",
                    shape_string(shape), "\n  fix   give a contiguous CPU tensor of that shape");
}

/// Calls fn(slices) for pieces of a selection along its first longer dim, so that
/// whatever needs a copy in the stored type needs little memory. Pieces end where chunks end.
template <typename Fn>
void in_pieces(const Selection& selection, size_t element_size, Fn&& fn) {
  constexpr int64_t kPieceBytes = int64_t{8} << 20;
  const auto& slices = selection.slices();
  size_t dim = 0;
  while (dim < slices.size() && slices[dim].count == 1) ++dim;
  if (dim == slices.size()) return fn(slices);
  const Slice& all = slices[dim];
  int64_t row_bytes = static_cast<int64_t>(element_size);
  for (size_t inner = dim + 1; inner < slices.size(); ++inner) row_bytes *= slices[inner].count;
  const int64_t rows = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(1, row_bytes));
  const auto& chunks = selection.dataset().chunks();
  for (int64_t row = 0; row < all.count;) {
    int64_t end = std::min(all.count, row + rows);
    if (!chunks.empty() && end < all.count) {
      const int64_t chunk = chunks[dim];
      const int64_t next = (all.begin + (end - 1) * all.step) / chunk * chunk + chunk;
      end = std::min(all.count, (next - all.begin + all.step - 1) / all.step);
    }
    std::vector<Slice> piece = slices;
    piece[dim].begin = all.begin + row * all.step;
    piece[dim].count = end - row;
    fn(piece);
    row = end;
  }
}

}  // namespace

int64_t bytes_read() { return io_stats().asked; }

const std::string& Dataset::name() const { return info_->name; }
const std::string& Dataset::path() const { return file_->path(); }
const std::vector<int64_t>& Dataset::shape() const { return info_->shape; }
const std::string& Dataset::type_name() const { return info_->type_name; }
const std::vector<int64_t>& Dataset::chunks() const { return info_->chunks; }
const std::vector<std::string>& Dataset::filters() const { return info_->filters; }

at::ScalarType Dataset::dtype() const {
  TORCH_CHECK_TYPE(info_->members.empty(), about("read", *this).to_string(),
                   ": no tensor holds all of a compound\n  have  its members ", c10::Join(", ", members()),
                   "\n  fix   read one of them, as x[\"", members().front(), "\"]");
  TORCH_CHECK_TYPE(info_->dtype || info_->refusal.empty(), about("read", *this).to_string(), ": ", info_->refusal);
  TORCH_CHECK_TYPE(info_->dtype.has_value(), about("read", *this).to_string(), ": no tensor holds its type ",
                   type_name(), "\n  have  ", type_name(), "\n  fix   choose a dataset of numbers, or store it as one");
  return *info_->dtype;
}

const std::vector<std::string>& Dataset::members() const { return info_->members; }

Dataset Dataset::member(const std::string& name) const {
  const auto where = about("open", *this);
  const auto access = file_->read(where);
  TORCH_CHECK_VALUE(!access.catalog, where.to_string(), ": no member \"", name, "\"\n  have  ", type_name(),
                    " of a file that is not HDF5\n  fix   select rows, as \"0:100, ::2\"");
  const auto handle = file_->dataset(access.id, this->name(), where);
  return {file_, std::make_shared<DatasetInfo>(member_info(handle->get(), info(), name, where))};
}

Attributes Dataset::attrs() const {
  const auto where = about("attrs", *this);
  const auto access = file_->read(where);
  if (access.catalog) return plain(attributes_in(*access.catalog, name(), where));
  return h5::read_attributes(file_->dataset(access.id, name(), where)->get(), where);
}

AttributeValue Dataset::attr(const std::string& name) const {
  const auto where = about("attrs", *this);
  const auto access = file_->read(where);
  if (access.catalog) return attribute_in(*access.catalog, this->name(), name, where);
  return attribute_or_throw(file_->dataset(access.id, this->name(), where)->get(), name, where);
}

std::vector<std::string> Dataset::dims() const {
  const auto where = about("dims", *this);
  const auto access = file_->read(where);
  if (access.catalog) return access.catalog->find(name())->dims;
  return h5::dimension_names(file_->dataset(access.id, name(), where)->get(), name(), shape().size(), where);
}

std::string Dataset::units() const {
  const auto where = about("units", *this);
  const auto access = file_->read(where);
  if (access.catalog) {
    const auto attributes = access.catalog->find(name())->attrs;
    const auto found = attributes.find("units");
    return found == attributes.end() ? "" : to_string(found->second.value);
  }
  const auto value = h5::find_attribute(file_->dataset(access.id, name(), where)->get(), "units", where);
  return value ? to_string(*value) : "";
}

bool Dataset::is_bare_dimension() const {
  const auto where = about("dims", *this);
  const auto access = file_->read(where);
  if (access.catalog) return false;
  return io::is_bare_dimension(file_->dataset(access.id, name(), where)->get(), where);
}

std::vector<int64_t> Dataset::rows_together() const {
  if (!info_->dtype || !Reader::is_plain(*file_, *info_, whole(shape()))) return {};
  return io::rows_together(Reader::plain_array(*file_, *info_));
}

Selection Dataset::select(const std::string& slices) const { return Selection(*this).select(slices); }
Selection Dataset::operator[](const std::string& slices) const { return select(slices); }
at::Tensor Dataset::read(const ReadOptions& options) const { return Selection(*this).read(options); }

Selection::Selection(const Dataset& dataset) : Selection(dataset, whole(dataset.shape())) {}

Selection::Selection(Dataset dataset, std::vector<Slice> slices)
    : dataset_(std::move(dataset)), slices_(std::move(slices)), shape_(sliced_shape(slices_)) {}

std::vector<std::string> Selection::dims() const {
  const auto all = dataset_.dims();
  std::vector<std::string> kept;
  for (size_t dim = 0; dim < slices_.size(); ++dim) {
    if (!slices_[dim].dropped) kept.push_back(all[dim]);
  }
  return kept;
}

Selection Selection::select(const std::string& slices) const {
  const auto inner = parse_slices(slices, shape_, in_quotes("dataset", dataset_.name()));
  return {dataset_, compose(slices_, inner)};
}

Selection Selection::narrow(int64_t dim, int64_t begin, int64_t length) const {
  const int64_t at = dim < 0 ? dim + ndim() : dim;
  TORCH_CHECK_VALUE(at >= 0 && at < ndim() && begin >= 0 && length >= 0 && begin + length <= shape_[at],
                    about("narrow", dataset_).to_string(), ": rows ", begin, " to ", begin + length, " of dim ", dim,
                    " are out of range\n  have  a selection of shape ", shape_string(shape_),
                    "\n  fix   stay inside the selection");
  std::vector<Slice> inner = whole(shape_);
  inner[at] = {begin, length, 1, false};
  return {dataset_, compose(slices_, inner)};
}

at::ScalarType Selection::result_dtype(const ReadOptions& options) const {
  const auto where = about("read", dataset_);
  return Conversion::of(*this, options, where).dtype;
}

at::Tensor Selection::read(const ReadOptions& options) const {
  const auto where = about("read", dataset_);
  const DatasetInfo& info = dataset_.info();
  const auto conversion = Conversion::of(*this, options, where);
  const auto& [stored, dtype, decoder] = conversion;
  if (options.out.defined()) check_out(options.out, shape_, where);
  at::Tensor out = options.out.defined() ? options.out : allocate_for(shape_, dtype, where);
  if (out.numel() == 0) return out;
  // A dry run reads nothing into a fake tensor, but takes the same memory. Another one is computed, whatever the size
  // of what is read on the way.
  const bool is_read = !is_fake(out);
  std::optional<ComputedValues> computed;
  if (is_read) computed.emplace();

  Reader reader(*dataset_.file(), info, slices_, where);
  const bool decodes_in_place = decoder && dtype == stored && dtype != at::kHalf && dtype != at::kBFloat16;
  // Chunks that are decoded here become floats here: that clips nothing.
  const bool ours = Reader::decodes(*dataset_.file(), info) && at::isFloatingType(dtype);
  const bool library_converts =
      !info.enumeration && !ours && !dataset_.file()->has_catalog() && h5::library_converts(stored, dtype);
  if (dtype == stored ? !decoder || decodes_in_place : !decoder && library_converts) {
    if (!is_read) return out;
    reader.read(slices_, dtype, out.mutable_data_ptr());
    if (decoder) decoder->apply(out, out);
    return out;
  }
  const at::Tensor rows = out.view({-1}).detach();
  int64_t done = 0;
  in_pieces(*this, info.element_size, [&](const std::vector<Slice>& piece) {
    int64_t count = 1;
    for (const auto& slice : piece) count *= slice.count;
    at::Tensor raw = at::empty({count}, stored);
    if (is_read) reader.read(piece, stored, raw.mutable_data_ptr());
    if (is_read || is_fake(raw)) conversion.apply(raw, rows.narrow(0, done, count), where);
    done += count;
  });
  return out;
}

const std::string& File::path() const { return state_->path(); }

std::string File::format() const {
  const auto access = state_->read({"format", path()});
  return access.catalog ? access.catalog->format : "HDF5";
}

bool File::is_open() const { return state_->is_open(); }

std::vector<std::string> File::keys(const std::string& group) const {
  const h5::Where where{"keys", path(), in_quotes("group", group)};
  const std::string name = normalized(group);
  const auto access = state_->read(where);
  TORCH_CHECK_VALUE(name.empty() || object_type(access, name) == H5O_TYPE_GROUP, where.to_string(),
                    ": there is no such group\n  have  groups and datasets ", c10::Join(", ", links(access, "", where)),
                    "\n  fix   use one of the groups");
  return links(access, name, where);
}

std::vector<std::string> File::datasets() const {
  const h5::Where where{"keys", path()};
  return all_datasets(state_->read(where), where);
}

bool File::has(const std::string& path) const {
  const auto access = state_->read({"has", this->path()});
  if (access.catalog) return object_type(access, normalized(path)) != H5O_TYPE_UNKNOWN;
  return h5::link_exists(access.id, normalized(path), access.links);
}

bool File::is_group(const std::string& path) const {
  const std::string name = normalized(path);
  const auto access = state_->read({"is_group", this->path()});
  return name.empty() || object_type(access, name) == H5O_TYPE_GROUP;
}

Dataset File::operator[](const std::string& name) const {
  const std::string path = normalized(name);
  const auto where = about("open", *this, path);
  const auto access = state_->read(where);
  const auto type = path.empty() ? H5O_TYPE_GROUP : object_type(access, path);
  if (type != H5O_TYPE_DATASET) {
    const std::vector<std::string> names = all_datasets(access, where);
    const bool group = type == H5O_TYPE_GROUP;
    TORCH_CHECK_VALUE(false, "open: ", group ? "\"" : "no dataset \"", name,
                      group ? "\" is a group of file \"" : "\" in file \"", this->path(), "\"",
                      group ? "" : did_you_mean(path, names), "\n  have  ", some_names(names, group ? path + "/" : ""),
                      "\n  fix   name a dataset; keys() lists them");
  }
  if (access.catalog) {
    const auto broken = access.catalog->broken.find(path);
    TORCH_CHECK_VALUE(broken == access.catalog->broken.end(), where.to_string(), ": ", broken->second);
    return {state_, access.catalog->find(path)->info};
  }
  const auto handle = state_->dataset(access.id, path, where);
  state_->reach().check_storage(handle->get(), where);
  return {state_, std::make_shared<DatasetInfo>(read_info(access.id, handle->get(), path, where))};
}

Attributes File::attrs(const std::string& object) const {
  const h5::Where where{"attrs", path(), in_quotes("object", object)};
  const auto access = state_->read(where);
  if (access.catalog) return plain(attributes_in(*access.catalog, normalized(object), where));
  return h5::read_attributes(open_object(access, normalized(object), where).get(), where);
}

AttributeValue File::attr(const std::string& name, const std::string& object) const {
  const h5::Where where{"attrs", path(), in_quotes("object", object)};
  const auto access = state_->read(where);
  if (access.catalog) return attribute_in(*access.catalog, normalized(object), name, where);
  return attribute_or_throw(open_object(access, normalized(object), where).get(), name, where);
}

void File::discard() noexcept { state_->discard(); }

File open(const std::string& path, const std::string& mode, const OpenOptions& options) {
  const std::vector<std::string> modes = {"r", "w", "a"};
  const auto found = std::find(modes.begin(), modes.end(), mode);
  TORCH_CHECK_VALUE(found != modes.end(), "open: file \"", path, "\": unknown mode \"", mode, "\"\n  have  \"", mode,
                    "\"\n  fix   use \"r\" (read), \"w\" (make it new) or \"a\" (add to it)");
  return File(std::make_shared<FileState>(path, static_cast<Mode>(found - modes.begin()), options.allow_external,
                                          options.is_dry));
}

}  // namespace moonhalo::io
