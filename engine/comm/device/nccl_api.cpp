// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/comm/device/nccl_api.h"

#include <ATen/Version.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <vector>

namespace moonhalo {
namespace {

// The first whose communicators can be made, used and aborted without blocking, as all of them are here.
constexpr int kOldest = 21800;

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// "libnccl.so.2" finds one that LibTorch has loaded, or the system's; wheels put it beside LibTorch.
std::vector<std::string> places() {
  if (const char* const named = std::getenv("MOONHALO_NCCL"); named != nullptr && *named != '\0') return {named};
  std::vector<std::string> all = {"libnccl.so.2"};
  Dl_info torch{};
  if (dladdr(reinterpret_cast<const void*>(&at::get_cxx_flags), &torch) == 0 || torch.dli_fname == nullptr) return all;
  const std::filesystem::path folder = std::filesystem::path(torch.dli_fname).parent_path();
  all.push_back(folder / "libnccl.so.2");
  all.push_back((folder / "../../nvidia/nccl/lib/libnccl.so.2").lexically_normal());
  return all;
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

NcclFound found_in(void* library) {
  static NcclApi api;
  int (*get_version)(int*) = nullptr;
  const bool complete =
      find(library, "ncclGetVersion", get_version) && find(library, "ncclGetErrorString", api.get_error_string) &&
      find(library, "ncclGetLastError", api.get_last_error) && find(library, "ncclGetUniqueId", api.get_unique_id) &&
      find(library, "ncclCommInitRankConfig", api.comm_init_rank_config) &&
      find(library, "ncclCommGetAsyncError", api.comm_get_async_error) &&
      find(library, "ncclCommAbort", api.comm_abort) && find(library, "ncclCommDestroy", api.comm_destroy) &&
      find(library, "ncclGroupStart", api.group_start) && find(library, "ncclGroupEnd", api.group_end) &&
      find(library, "ncclSend", api.send) && find(library, "ncclRecv", api.recv) &&
      find(library, "ncclAllReduce", api.all_reduce) && find(library, "ncclReduceScatter", api.reduce_scatter) &&
      find(library, "ncclAllGather", api.all_gather) && find(library, "ncclBroadcast", api.broadcast);
  Dl_info file{};
  const std::string where = get_version != nullptr && dladdr(reinterpret_cast<const void*>(get_version), &file) != 0
                                ? std::string(" (") + file.dli_fname + ")"
                                : "";
  int version = 0;
  if (get_version == nullptr || get_version(&version) != NcclApi::kSuccess)
    return {nullptr, "libnccl.so.2 reports no version"};
  if (!complete || version < kOldest)
    return {nullptr,
            "nccl " + version_text(version) + " is too old" + where + "; " + version_text(kOldest) + " is needed"};
  return {&api, "nccl " + version_text(version) + where};
}

NcclFound found_on_this_machine() {
  std::string problem;
  for (const std::string& place : places()) {
    if (void* const library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL)) return found_in(library);
    const char* const error = dlerror();
    if (problem.empty() && error != nullptr) problem = error;
  }
  return {nullptr, "libnccl.so.2 was not found (" + problem + ")"};
}

std::optional<NcclFound>& given() {
  static std::optional<NcclFound> found;
  return found;
}

}  // namespace

const NcclFound& find_nccl() {
  if (given()) return *given();
  static const NcclFound found = found_on_this_machine();
  return found;
}

void set_nccl_api(const NcclApi* api) {
  given().reset();
  if (api != nullptr) given() = {api, "a table that was given"};
}

}  // namespace moonhalo
