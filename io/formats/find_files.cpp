// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/find_files.h"

#include <c10/util/Exception.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string_view>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/formats/zarr.h"

namespace moonhalo::io {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 8> kEndings = {".nc", ".nc4", ".cdf", ".h5", ".hdf5", ".he5", ".zarr", ".npy"};

bool has_known_ending(const std::string& path) {
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) { return path.ends_with(ending); });
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().string());
  }
  TORCH_CHECK_VALUE(!error, "data.open: cannot list '", folder.string(), "': ", error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> in_folder(const std::string& source) {
  std::vector<std::string> names = names_in(source), found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found), has_known_ending);
  TORCH_CHECK_VALUE(!found.empty(), "data.open: no file of a known format in the folder '", source, "'\n  have  ",
                    names.size(), " other entries\n  fix   give a pattern such as \"", source,
                    "/*.bin\" if their names end in another way");
  return found;
}

std::vector<std::string> matches(const std::string& pattern) {
  glob_t result{};
  const std::unique_ptr<glob_t, decltype(&globfree)> owner(&result, globfree);
  const int status = ::glob(pattern.c_str(), 0, nullptr, &result);
  TORCH_CHECK(status == 0 || status == GLOB_NOMATCH, "data.open: cannot list '", pattern,
              "': ", status == GLOB_NOSPACE ? "out of memory" : "a folder cannot be read");
  return {result.gl_pathv, result.gl_pathv + result.gl_pathc};
}

[[noreturn]] void refuse(const std::string& source) {
  const fs::path folder = fs::path(source).parent_path();
  const fs::path place = folder.empty() ? fs::path(".") : folder;
  std::error_code error;
  TORCH_CHECK_VALUE(fs::is_directory(place, error), "data.open: no file matches '", source, "'\n  have  no folder '",
                    place.string(), "'\n  fix   correct the path");
  std::vector<std::string> names = names_in(place);
  if (folder.empty()) {
    for (auto& name : names) name = name.substr(2);  // names_in(".") gives "./name"
  }
  TORCH_CHECK_VALUE(false, "data.open: no file matches '", source, "'", did_you_mean(source, names), "\n  have  ",
                    names.size(), " entries in '", place.string(), "'\n  fix   look at the name, or the pattern");
}

}  // namespace

std::vector<std::string> find_files(const std::string& source) {
  std::error_code error;
  if (fs::is_directory(source, error) && !is_zarr(source)) return in_folder(source);
  if (fs::exists(source, error)) return {source};
  const bool pattern = source.find_first_of("*?[") != std::string::npos;
  std::vector<std::string> found = pattern ? matches(source) : std::vector<std::string>();
  if (found.empty()) refuse(source);
  return found;
}

}  // namespace moonhalo::io
