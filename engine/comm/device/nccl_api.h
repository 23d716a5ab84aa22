// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace moonhalo {

/// The functions of NCCL that are used, found when they are needed: one build serves machines with and without it, and
/// tests give a table of their own (set_nccl_api). Names, numbers and argument lists are those of its documentation.
struct NcclApi {
  using Comm = void*;
  using Stream = void*;
  struct UniqueId {
    char bytes[128];
  };
  /// The fields of the first version that had any; later versions fill in the rest.
  struct Config {
    size_t size = sizeof(Config);
    unsigned magic = 0xcafebeef;
    unsigned version = 21400;
    int blocking = 0;
  };
  enum Result : int { kSuccess = 0, kSystemError = 2, kInternalError = 3, kRemoteError = 6, kInProgress = 7 };
  enum DataType : int {
    kInt8 = 0,
    kUint8 = 1,
    kInt32 = 2,
    kInt64 = 4,
    kFloat16 = 6,
    kFloat32 = 7,
    kFloat64 = 8,
    kBfloat16 = 9
  };
  enum Op : int { kSum = 0, kProduct = 1, kAvg = 4 };

  const char* (*get_error_string)(int result);
  const char* (*get_last_error)(Comm comm);
  int (*get_unique_id)(UniqueId* id);
  int (*comm_init_rank_config)(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
  int (*comm_get_async_error)(Comm comm, int* result);
  int (*comm_abort)(Comm comm);
  int (*comm_destroy)(Comm comm);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void* data, size_t count, int type, int peer, Comm comm, Stream stream);
  int (*recv)(void* data, size_t count, int type, int peer, Comm comm, Stream stream);
  int (*all_reduce)(const void* in, void* out, size_t count, int type, int op, Comm comm, Stream stream);
  int (*reduce_scatter)(const void* in, void* out, size_t count, int type, int op, Comm comm, Stream stream);
  int (*all_gather)(const void* in, void* out, size_t count, int type, Comm comm, Stream stream);
  int (*broadcast)(const void* in, void* out, size_t count, int type, int root, Comm comm, Stream stream);

  c10::DeviceType device_type = c10::kCUDA;
};

/// NCCL as it is on this machine: the table, and for people its version and file; else null and why there is none.
struct NcclFound {
  const NcclApi* api = nullptr;
  std::string text;
};
/// Looks for libnccl.so.2 once: where MOONHALO_NCCL says, among the system's libraries, and beside LibTorch.
const NcclFound& find_nccl();
/// For tests: the table from now on; null: what find_nccl found itself.
void set_nccl_api(const NcclApi* api);

}  // namespace moonhalo
