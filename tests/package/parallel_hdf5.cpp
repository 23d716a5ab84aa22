// SPDX-License-Identifier: Apache-2.0
// A host that writes by parallel HDF5 over its own MPI, and lets Moonhalo train on its rows and write by its own HDF5
// (X15).
//     mpirun -n N parallel_hdf5 FOLDER
#include <moonhalo/moonhalo.h>
#include <moonhalo/mpi_communicator.h>

#include <cstdio>
#include <string>
#include <vector>

#include <hdf5.h>
#include <mpi.h>

#ifndef H5_HAVE_PARALLEL
#error "this is not the host's HDF5"
#endif

namespace {

constexpr hsize_t kRows = 3, kColumns = 5;

void expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s\n", what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

/// Every rank's rows of one dataset, collectively.
void write_by_host(const std::string& path, const std::vector<double>& rows, int rank, int ranks) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS), transfer = H5Pcreate(H5P_DATASET_XFER);
  expect(H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL) >= 0, "the host's HDF5 supports MPI");
  H5Pset_dxpl_mpio(transfer, H5FD_MPIO_COLLECTIVE);
  const hsize_t whole[2] = {kRows * static_cast<hsize_t>(ranks), kColumns};
  const hsize_t begin[2] = {kRows * static_cast<hsize_t>(rank), 0}, mine[2] = {kRows, kColumns};
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  const hid_t space = H5Screate_simple(2, whole, nullptr), memory = H5Screate_simple(2, mine, nullptr);
  const hid_t data = H5Dcreate2(file, "u", H5T_NATIVE_DOUBLE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Sselect_hyperslab(space, H5S_SELECT_SET, begin, nullptr, mine, nullptr);
  expect(H5Dwrite(data, H5T_NATIVE_DOUBLE, memory, space, transfer, rows.data()) >= 0, "the host's HDF5 writes");
  H5Dclose(data);
  H5Sclose(memory);
  H5Sclose(space);
  H5Fclose(file);
  H5Pclose(transfer);
  H5Pclose(access);
}

void run(const std::string& folder) {
  const moonhalo::CommunicatorPtr world = moonhalo::make_mpi_communicator(MPI_COMM_WORLD);
  const int rank = world->rank(), ranks = world->size();
  std::vector<double> rows(kRows * kColumns);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<double>(rank * rows.size() + i);
  write_by_host(folder + "/host.h5", rows, rank, ranks);

  const auto mesh = moonhalo::init_device_mesh(*world, "cpu", {ranks}, {"rows"});
  const at::Tensor read =
      moonhalo::scatter_tensor(moonhalo::io::open(folder + "/host.h5")["u"], mesh, {moonhalo::shard(0)});
  const double count = static_cast<double>(ranks) * kRows * kColumns;
  expect(read.sum().item<double>() == count * (count - 1) / 2, "Moonhalo reads what the host wrote");
  auto file = moonhalo::io::open(folder + "/moonhalo.h5", "w");
  file.write("v", read * 2);
  file.close();
  world->barrier();
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
  const hid_t back = H5Fopen((folder + "/moonhalo.h5").c_str(), H5F_ACC_RDONLY, access);
  const hid_t data = H5Dopen2(back, "v", H5P_DEFAULT);
  std::vector<double> all(static_cast<size_t>(ranks) * rows.size());
  expect(H5Dread(data, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, all.data()) >= 0, "the host's HDF5 reads");
  expect(all.back() == 2 * (count - 1), "the host reads what Moonhalo wrote");
  H5Dclose(data);
  H5Fclose(back);
  H5Pclose(access);
  if (rank == 0) std::printf("moonhalo: beside a host's parallel HDF5 on %d ranks\n", ranks);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  run(argc > 1 ? argv[1] : ".");
  MPI_Finalize();
}
