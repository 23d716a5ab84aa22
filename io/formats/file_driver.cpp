// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/formats/file_driver.h"

#include <ATen/core/Tensor.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>

#include "moonhalo/io/base/new_file.h"
#include "moonhalo/io/base/pwrite_all.h"
#include "moonhalo/io/base/read_into.h"
#include "moonhalo/io/formats/heap_check.h"

namespace moonhalo::io::h5 {
namespace {

struct DriverInfo {
  WriteStatus* status;  // null: only read
};

/// HDF5 hands its pointer to the first member back to us.
struct DriverFile {
  H5FD_t base;
  int descriptor;
  haddr_t allocated;
  haddr_t end;
  dev_t device;
  ino_t inode;
  WriteStatus* status;
  HeapCheck heaps;
};

constexpr haddr_t kLargestAddress = std::numeric_limits<int64_t>::max();

DriverFile* self(H5FD_t* file) { return reinterpret_cast<DriverFile*>(file); }
const DriverFile* self(const H5FD_t* file) { return reinterpret_cast<const DriverFile*>(file); }

void report(const std::string& what) {
  H5Epush2(H5E_DEFAULT, "file_driver", "", 0, H5E_ERR_CLS, H5E_FILE, H5E_READERROR, "%s", what.c_str());
}
void report_errno(const char* what) { report(std::string(what) + ", error message = '" + std::strerror(errno) + "'"); }

/// HDF5 opens what a file leads to (links, virtual datasets) with the driver of that file, and asks it for these.
void* info_of(H5FD_t* file) { return new DriverInfo{self(file)->status}; }
void* copy_info(const void* info) { return new DriverInfo(*static_cast<const DriverInfo*>(info)); }
herr_t free_info(void* info) {
  delete static_cast<DriverInfo*>(info);
  return 0;
}

H5FD_t* open_dry_file(WriteStatus* status) {
  auto* file = new DriverFile{};
  file->descriptor = -1;
  file->end = status->dry->size();
  file->inode = reinterpret_cast<uintptr_t>(status->dry);  // device 0 has no files
  file->status = status;
  return &file->base;
}

H5FD_t* open_file(const char* name, unsigned flags, hid_t access, haddr_t) {
  const auto* info = static_cast<const DriverInfo*>(H5Pget_driver_info(access));
  if (info->status != nullptr && info->status->dry != nullptr) return open_dry_file(info->status);
  const int mode = (flags & H5F_ACC_RDWR ? O_RDWR : O_RDONLY) | O_CLOEXEC | (flags & H5F_ACC_CREAT ? O_CREAT : 0) |
                   (flags & H5F_ACC_EXCL ? O_EXCL : 0) | (flags & H5F_ACC_TRUNC ? O_TRUNC : 0);
  const int descriptor = ::open(name, mode, 0666);
  if (descriptor < 0) {
    report_errno("unable to open file");
    return nullptr;
  }
  struct stat found {};
  if (fstat(descriptor, &found) != 0) {
    report_errno("unable to inspect file");
    ::close(descriptor);
    return nullptr;
  }
  auto* file = new DriverFile{};
  file->descriptor = descriptor;
  file->end = static_cast<haddr_t>(found.st_size);
  file->device = found.st_dev;
  file->inode = found.st_ino;
  file->status = info->status;
  return &file->base;
}

herr_t close_file(H5FD_t* file) {
  DriverFile* mine = self(file);
  const bool closed = mine->descriptor < 0 || ::close(mine->descriptor) == 0;
  if (!closed && mine->status != nullptr && mine->status->error == 0) mine->status->error = errno;
  delete mine;
  return 0;
}

int compare(const H5FD_t* left, const H5FD_t* right) {
  const auto key = [](const H5FD_t* file) { return std::pair(self(file)->device, self(file)->inode); };
  return key(left) < key(right) ? -1 : key(left) > key(right) ? 1 : 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  if (flags) {
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA_WRITE | H5FD_FEAT_ACCUMULATE_METADATA_READ |
             H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  }
  return 0;
}

haddr_t get_allocated(const H5FD_t* file, H5FD_mem_t) { return self(file)->allocated; }
herr_t set_allocated(H5FD_t* file, H5FD_mem_t, haddr_t address) {
  self(file)->allocated = address;
  return 0;
}
haddr_t get_end(const H5FD_t* file, H5FD_mem_t) { return self(file)->end; }
herr_t get_handle(H5FD_t* file, hid_t, void** handle) {
  *handle = &self(file)->descriptor;
  return 0;
}

/// Returns the descriptor of the file on disk that the bytes are from; -1: of none. Past the end of a file are zeros.
std::optional<int> fill(const DriverFile& file, haddr_t address, size_t size, void* buffer) {
  if (const DryFile* dry = file.status != nullptr ? file.status->dry : nullptr) {
    return dry->read(buffer, size, address) ? std::optional(dry->origin_of(address, size)) : std::nullopt;
  }
  auto* const begin = static_cast<char*>(buffer);
  const int64_t got = read_into(file.descriptor, {{begin, static_cast<int64_t>(size)}}, address);
  if (got < 0) return std::nullopt;
  std::memset(begin + got, 0, size - static_cast<size_t>(got));
  return file.descriptor;
}

herr_t read_bytes(H5FD_t* file, H5FD_mem_t, hid_t, haddr_t address, size_t size, void* buffer) {
  const std::optional<int> origin = fill(*self(file), address, size, buffer);
  if (!origin) {
    report_errno("unable to read file");
    return -1;
  }
  if (*origin < 0) return 0;
  const std::string problem = self(file)->heaps.problem(*origin, address, buffer, size);
  if (problem.empty()) return 0;
  report(problem);
  return -1;
}

herr_t write_bytes(H5FD_t* file, H5FD_mem_t kind, hid_t, haddr_t address, size_t size, const void* buffer) {
  DriverFile* mine = self(file);
  if (mine->status->dry != nullptr) {
    if (!mine->status->dry->write(buffer, size, address)) {
      report_errno("unable to read file");
      return -1;
    }
  } else if (kind != H5FD_MEM_DRAW || !mine->status->drops_raw) {
    write_at(mine->descriptor, *mine->status, buffer, size, address);
  }
  mine->end = std::max(mine->end, address + size);
  return 0;
}

herr_t truncate_file(H5FD_t* file, hid_t, hbool_t) {
  DriverFile* mine = self(file);
  if (mine->status->dry != nullptr) {
    mine->status->dry->resize(mine->allocated);
  } else if (mine->end != mine->allocated && mine->status->error == 0 &&
             ftruncate(mine->descriptor, static_cast<off_t>(mine->allocated)) != 0) {
    mine->status->error = errno;
  }
  mine->end = mine->allocated;
  return 0;
}

/// A file that is written is a copy with a name of its own; one that is read must not be open for writing elsewhere.
herr_t lock_file(H5FD_t* file, hbool_t) {
  if (self(file)->status != nullptr || flock(self(file)->descriptor, LOCK_SH | LOCK_NB) == 0) return 0;
  if (errno == ENOSYS) return 0;  // a file system without locks
  report_errno("unable to lock file");
  return -1;
}
herr_t unlock_file(H5FD_t* file) {
  if (self(file)->status != nullptr || flock(self(file)->descriptor, LOCK_UN) == 0 || errno == ENOSYS) return 0;
  report_errno("unable to unlock file");
  return -1;
}

H5FD_class_t driver_class() {
  H5FD_class_t driver{};
  driver.name = "moonhalo";
  driver.maxaddr = kLargestAddress;
  driver.fc_degree = H5F_CLOSE_WEAK;
  driver.fapl_size = sizeof(DriverInfo);
  driver.fapl_get = info_of;
  driver.fapl_copy = copy_info;
  driver.fapl_free = free_info;
  driver.open = open_file;
  driver.close = close_file;
  driver.cmp = compare;
  driver.query = query;
  driver.get_eoa = get_allocated;
  driver.set_eoa = set_allocated;
  driver.get_eof = get_end;
  driver.get_handle = get_handle;
  driver.read = read_bytes;
  driver.write = write_bytes;
  driver.truncate = truncate_file;
  driver.lock = lock_file;
  driver.unlock = unlock_file;
  const H5FD_mem_t kinds[H5FD_MEM_NTYPES] = H5FD_FLMAP_DICHOTOMY;
  std::copy(std::begin(kinds), std::end(kinds), driver.fl_map);
  return driver;
}

hid_t driver_id(const Where& where) {
  static const H5FD_class_t driver = driver_class();
  static std::mutex mutex;
  static hid_t id = H5I_INVALID_HID;
  const std::lock_guard lock(mutex);
  const bool registered = id >= 0 && H5Iget_type(id) == H5I_VFL;  // not so after the program called H5close
  if (!registered) id = checked(where, "register its driver", [] { return H5FDregister(&driver); });
  return id;
}

Handle access_with(const DriverInfo& info, const Where& where) {
  Handle access = property_list(H5P_FILE_ACCESS, where);
  const hid_t driver = driver_id(where);
  checked(where, "choose its driver", [&] { return H5Pset_driver(access.get(), driver, &info); });
  return access;
}

}  // namespace

void write_at(int descriptor, WriteStatus& status, const void* data, size_t bytes, uint64_t offset) {
  if (status.error == 0) status.error = pwrite_all(descriptor, data, bytes, offset);
}

Handle read_access(const Where& where) { return access_with({nullptr}, where); }

Handle write_access(WriteStatus& status, const Where& where) { return access_with({&status}, where); }

void check_written(const WriteStatus& status, const Where& where) {
  TORCH_CHECK(status.error == 0, where.to_string(), ": cannot write it\n  have  ", std::strerror(status.error),
              disk_remedy(status.error));
}

}  // namespace moonhalo::io::h5
