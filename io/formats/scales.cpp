// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/scales.h"
#include "moonhalo/io/formats/link_policy.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <hdf5_hl.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>

namespace moonhalo::io {
namespace {

/// The NetCDF library writes this, and looks for it, as the name of a scale without values.
constexpr const char* kBare = "This is a netCDF dimension but not a netCDF variable.";

std::string leaf(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "" : path.substr(0, slash);
}

struct Extent {
  std::vector<hsize_t> now, most;
};

Extent extent_of(hid_t dataset, const h5::Where& where) {
  const h5::Handle space = h5::space_of(dataset, where);
  Extent extent{h5::extent(space.get(), where), {}};
  extent.most.resize(extent.now.size());
  if (!extent.now.empty()) {
    h5::checked(where, "read its shape",
                [&] { return H5Sget_simple_extent_dims(space.get(), nullptr, extent.most.data()); });
  }
  return extent;
}

h5::Handle make_bare_scale(const FileState::Access& file, const std::string& path, hsize_t length, bool grows,
                           const h5::Where& where) {
  const h5::Handle list = h5::new_dataset_list(where);
  if (grows) {
    const hsize_t chunk = 1024;
    h5::checked(where, "make a dimension", [&] { return H5Pset_chunk(list.get(), 1, &chunk); });
  }
  const h5::Handle space = h5::simple_space({length}, where, {grows ? H5S_UNLIMITED : length});
  h5::Handle scale = h5::make(where, "make a dimension", H5Dclose, [&] {
    return H5Dcreate2(file.id, ("/" + path).c_str(), H5T_IEEE_F32BE, space.get(), H5P_DEFAULT, list.get(), H5P_DEFAULT);
  });
  std::array<char, 100> name{};
  std::snprintf(name.data(), name.size(), "%s%10llu", kBare, static_cast<unsigned long long>(length));
  h5::checked(where, "make a dimension", [&] { return H5DSset_scale(scale.get(), name.data()); });
  return scale;
}

/// The members of REFERENCE_LIST that H5DS keeps with a scale.
struct User {
  hobj_ref_t dataset;
  unsigned dim;
};

std::vector<User> users_of(hid_t scale, const h5::Where& where) {
  if (h5::checked(where, "look for an attribute", [&] { return H5Aexists(scale, "REFERENCE_LIST"); }) <= 0) return {};
  const h5::Handle list = h5::make(where, "read what refers to it", H5Aclose,
                                   [&] { return H5Aopen(scale, "REFERENCE_LIST", H5P_DEFAULT); });
  const h5::Handle space =
      h5::make(where, "read what refers to it", H5Sclose, [&] { return H5Aget_space(list.get()); });
  const h5::Handle type =
      h5::make(where, "read what refers to it", H5Tclose, [] { return H5Tcreate(H5T_COMPOUND, sizeof(User)); });
  h5::checked(where, "read what refers to it", [&] {
    return std::min(H5Tinsert(type.get(), "dataset", HOFFSET(User, dataset), H5T_STD_REF_OBJ),
                    H5Tinsert(type.get(), "dimension", HOFFSET(User, dim), H5T_NATIVE_UINT));
  });
  std::vector<User> users(static_cast<size_t>(
      h5::checked(where, "read what refers to it", [&] { return H5Sget_simple_extent_npoints(space.get()); })));
  h5::checked(where, "read what refers to it", [&] { return H5Aread(list.get(), type.get(), users.data()); });
  return users;
}

}  // namespace

std::string find_dimension(const FileState::Access& file, const std::string& dataset, const std::string& dim) {
  for (std::string group = folder(dataset);; group = folder(group)) {
    const std::string path = group.empty() ? dim : group + "/" + dim;
    if (h5::link_exists(file.id, path, file.links)) return path;
    if (group.empty()) return "";
  }
}

bool is_bare_dimension(hid_t dataset, const h5::Where& where) {
  if (h5::checked(where, "look for an attribute", [&] { return H5DSis_scale(dataset); }) <= 0) return false;
  std::array<char, 128> name{};
  h5::checked(where, "read its name",
              [&] { return H5DSget_scale_name(dataset, name.data(), name.size()) < 0 ? -1 : 0; });
  return std::string(name.data()).starts_with(kBare);
}

NewScales::NewScales(const FileState::Access& file, std::string name, at::IntArrayRef shape,
                     std::vector<std::string> dims, bool grows, const h5::Where& where)
    : file_(file),
      name_(std::move(name)),
      group_(folder(name_)),
      shape_(shape.vec()),
      dims_(std::move(dims)),
      grows_(grows),
      where_(where) {
  const std::set<std::string> names(dims_.begin(), dims_.end());
  TORCH_CHECK_VALUE(dims_.empty() || names.contains("") || names.size() == dims_.size(), where.to_string(),
                    ": two dimensions of one name\n  have  ", c10::Join(", ", dims_),
                    "\n  fix   give every dimension a name of its own");
  TORCH_CHECK_VALUE(dims_.size() < 2 || !names.contains(leaf(name_)), where.to_string(),
                    ": only the 1-D coordinates of a dimension have its name\n  have  dims ", c10::Join(", ", dims_),
                    "\n  fix   give the dataset or the dimension another name");
  for (size_t dim = 0; dim < dims_.size(); ++dim) check(dim);
  const h5::Handle there = dataset_there();
  if (!there) return;
  takes_place_ = is_coordinate() && is_bare_dimension(there.get(), where_);
  const std::vector<hsize_t> now = extent_of(there.get(), where_).now;
  TORCH_CHECK_VALUE(takes_place_ || users_of(there.get(), where_).empty() ||
                        std::equal(now.begin(), now.end(), shape_.begin(), shape_.end(),
                                   [](hsize_t a, int64_t b) { return a == static_cast<hsize_t>(b); }),
                    where.to_string(),
                    ": other datasets have it as their dimension\n  have  another length than theirs"
                    "\n  fix   replace it by one of the same length, or write the others again too");
}

/// The dataset of this name that is there; empty where there is none.
h5::Handle NewScales::dataset_there() const {
  if (!h5::link_exists(file_.id, name_, file_.links)) return {};
  h5::Handle object =
      h5::make(where_, "open it", H5Oclose, [&] { return H5Oopen(file_.id, ("/" + name_).c_str(), file_.links); });
  const bool dataset = h5::checked(where_, "open it", [&] { return H5Iget_type(object.get()); }) == H5I_DATASET;
  return dataset ? std::move(object) : h5::Handle();
}

bool NewScales::is_coordinate() const { return dims_.size() == 1 && dims_[0] == leaf(name_); }

h5::Handle NewScales::open(const std::string& path) const {
  return h5::open_dataset(file_.id, "/" + path, 0, nullptr, where_);
}

void NewScales::check(size_t dim) const {
  const std::string path = dims_[dim].empty() ? "" : is_coordinate() ? name_ : find_dimension(file_, name_, dims_[dim]);
  if (path.empty() || !h5::link_exists(file_.id, path, file_.links)) return;
  const h5::Handle object = h5::make(where_, "open a dimension", H5Oclose,
                                     [&] { return H5Oopen(file_.id, ("/" + path).c_str(), file_.links); });
  const bool dataset =
      h5::checked(where_, "open a dimension", [&] { return H5Iget_type(object.get()); }) == H5I_DATASET;
  const Extent extent = dataset ? extent_of(object.get(), where_) : Extent{};
  TORCH_CHECK_VALUE(extent.now.size() == 1, where_.to_string(), ": \"", path, "\" is not a dimension\n  have  ",
                    dataset ? "a dataset that is not 1-D" : "a group", "\n  fix   give the dimension another name");
  if (is_coordinate() && !is_bare_dimension(object.get(), where_)) return;  // may be replaced
  const bool growing = grows_ && dim == 0;
  TORCH_CHECK_VALUE(growing ? extent.most[0] == H5S_UNLIMITED : extent.now[0] == static_cast<hsize_t>(shape_[dim]),
                    where_.to_string(), ": dimension \"", dims_[dim], "\" has length ", extent.now[0],
                    growing ? " and cannot grow" : "", "\n  have  length ", shape_[dim], " along it",
                    "\n  fix   give the dimension another name, or the length that it has");
}

void NewScales::detach() {
  const h5::Handle scale = dataset_there();
  if (!scale) return;
  for (const User& user : users_of(scale.get(), where_)) {
    const h5::Handle dataset = h5::make(where_, "follow a dimension", H5Oclose, [&] {
      return H5Rdereference2(scale.get(), H5P_DEFAULT, H5R_OBJECT, &user.dataset);
    });
    std::array<char, 1024> path{};
    h5::checked(where_, "name a dataset",
                [&] { return H5Iget_name(dataset.get(), path.data(), path.size()) <= 0 ? -1 : 0; });
    users_.emplace_back(path.data(), user.dim);
    h5::checked(where_, "detach a dimension", [&] { return H5DSdetach_scale(dataset.get(), scale.get(), user.dim); });
  }
}

/// The scale of one dim, which is made where it is missing.
h5::Handle NewScales::scale_of(size_t dim) const {
  const std::string path = find_dimension(file_, name_, dims_[dim]);
  if (path.empty()) {
    return make_bare_scale(file_, group_.empty() ? dims_[dim] : group_ + "/" + dims_[dim],
                           static_cast<hsize_t>(shape_[dim]), grows_ && dim == 0, where_);
  }
  h5::Handle scale = open(path);
  if (h5::checked(where_, "look for an attribute", [&] { return H5DSis_scale(scale.get()); }) <= 0)
    h5::checked(where_, "make a dimension", [&] { return H5DSset_scale(scale.get(), dims_[dim].c_str()); });
  return scale;
}

void NewScales::attach(hid_t dataset) const {
  if (is_coordinate()) {
    h5::checked(where_, "make a dimension", [&] { return H5DSset_scale(dataset, dims_[0].c_str()); });
  } else {
    for (size_t dim = 0; dim < dims_.size(); ++dim) {
      if (dims_[dim].empty()) continue;
      const h5::Handle scale = scale_of(dim);
      h5::checked(where_, "attach a dimension",
                  [&] { return H5DSattach_scale(dataset, scale.get(), static_cast<unsigned>(dim)); });
    }
  }
  for (const auto& [path, dim] : users_) {
    const h5::Handle user = h5::open_dataset(file_.id, path, 0, nullptr, where_);
    h5::checked(where_, "attach a dimension", [&, dim = dim] { return H5DSattach_scale(user.get(), dataset, dim); });
  }
}

void grow_scale(hid_t dataset, hsize_t rows, const h5::Where& where) {
  std::vector<h5::Handle> scales;
  const auto collect = [](hid_t, unsigned, hid_t scale, void* found) -> herr_t {
    if (H5Iinc_ref(scale) < 0) return -1;
    static_cast<std::vector<h5::Handle>*>(found)->emplace_back(scale, H5Dclose);
    return 0;
  };
  if (h5::checked(where, "count its dimensions", [&] { return H5DSget_num_scales(dataset, 0); }) <= 0) return;
  h5::checked(where, "find a dimension", [&] { return H5DSiterate_scales(dataset, 0, nullptr, collect, &scales); });
  for (const h5::Handle& scale : scales) {
    if (!is_bare_dimension(scale.get(), where) || extent_of(scale.get(), where).now.at(0) >= rows) continue;
    h5::checked(where, "let a dimension grow", [&] { return H5Dset_extent(scale.get(), &rows); });
  }
}

}  // namespace moonhalo::io
