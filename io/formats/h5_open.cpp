// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/h5_open.h"

#include <c10/util/Exception.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <vector>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/codecs/lzf.h"
#include "moonhalo/io/formats/file_driver.h"

namespace moonhalo::io::h5 {
namespace {

/// Explains a path that HDF5 could not open, or returns when nothing is visibly wrong with it.
void explain_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path file(path);
  if (!fs::exists(file, ignored)) {
    const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      names.push_back(entry.path().filename().string());
    }
    TORCH_CHECK_VALUE(false, "open: file \"", path, "\" does not exist", did_you_mean(file.filename().string(), names),
                      "\n  have  folder ", fs::absolute(folder, ignored).lexically_normal().string(),
                      fs::is_directory(folder, ignored) ? "" : " (does not exist either)",
                      "\n  fix   give the path from there, or an absolute one");
  }
  TORCH_CHECK_VALUE(!fs::is_directory(file, ignored), "open: \"", path,
                    "\" is a folder\n  have  a folder without zarr.json, .zgroup or .zarray\n  fix   name a file in "
                    "it, or the folder of "
                    "a Zarr group or array");
}

void explain_content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  TORCH_CHECK_VALUE(stream.good(), "open: file \"", path,
                    "\" may not be read\n  have  a file that the system refuses to open"
                    "\n  fix   change its permissions");
  std::array<char, 4> head{};
  stream.read(head.data(), head.size());
  const std::string magic(head.data(), static_cast<size_t>(stream.gcount()));
  const bool zip = magic.starts_with("PK");
  const bool classic = magic == "CDF\1" || magic == "CDF\2" || magic == "CDF\5";
  TORCH_CHECK_VALUE(false, "open: file \"", path, "\" is not an HDF5 file", "\n  have  ",
                    magic.empty() ? "an empty file"
                    : classic     ? "a NetCDF-3 (classic) file"
                    : zip         ? "a zip archive, as .npz and .pt files are"
                                  : "other content",
                    "\n  fix   ",
                    classic ? "open it with mode \"r\", or make it NetCDF-4 to add to it: nccopy -k nc4 OLD.nc NEW.nc"
                    : zip   ? "save its arrays one by one with numpy.save, or in HDF5"
                            : "give an HDF5, NetCDF, Zarr or .npy file");
}

}  // namespace

Handle open_file(const std::string& path) {
  explain_path(path);
  register_lzf();
  const Where where{"open", path};
  {
    const Scope scope;
    if (H5Fis_hdf5(path.c_str()) <= 0) explain_content(path);
  }
  const Handle access = read_access(where);
  checked(where, "relax file locking", [&] { return H5Pset_file_locking(access.get(), 1, 1); });
  const Scope scope;
  hid_t id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
  std::string said = id < 0 ? failure_text() : "";
  if (said.find("unable to lock file") != std::string::npos) {
    // This process may have it open for writing: HDF5 shares what one driver opened.
    checked(where, "choose the default driver", [&] { return H5Pset_fapl_sec2(access.get()); });
    id = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get());
    if (id < 0) said = failure_text();
  }
  if (id < 0) {
    TORCH_CHECK_VALUE(said.find("truncated file") == std::string::npos, "open: file \"", path,
                      "\" is cut short\n  have  ", std::filesystem::file_size(path),
                      " bytes, fewer than its header promises (", said, ")\n  fix   copy or download it again");
    TORCH_CHECK(false, "open: file \"", path, "\": cannot open it\n  have  ", said, "\n  fix   ", remedy(said));
  }
  return Handle(id, H5Fclose);
}

}  // namespace moonhalo::io::h5
