// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>

#include <filesystem>

#include "moonhalo/io/checkpoint/safetensors.h"
#include "moonhalo/io/fields/domain_file.h"
#include "tests/fuzz/kinds.h"
#include "tests/fuzz/other_formats.h"
#include "tests/io/support/raw_file.h"

namespace moonhalo::testing {
namespace {

constexpr int64_t kMostElements = 1 << 20;
const std::string kH5 = std::string(kInputName) + ".h5";
const std::string kSafetensors = std::string(kInputName) + ".safetensors";

at::Tensor numbers(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return (at::arange(count, at::kDouble) * 0.37 + 1).reshape(shape);
}

// The oldest format: symbol tables, B-trees, local heaps.
void make_old(const std::string& path) {
  RawFile file(path);
  file.floats("grid", numbers({5, 4}));
  file.floats("packed", numbers({12, 9}), {.chunks = {5, 4}, .gzip = 4});
  H5Gclose(H5Gcreate2(file.id(), "a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  H5Gclose(H5Gcreate2(file.id(), "a/b", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  file.floats("a/b/deep", numbers({3}), {.compact = true});
  file.text("grid", "units", "kelvin");
  file.number<double>("grid", "scale_factor", H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {0.5});
}

// NetCDF-4's form: dimension scales, references, packed integers.
void make_netcdf(const std::string& path) {
  RawFile file(path);
  file.floats("lat", numbers({4}));
  file.floats("lon", numbers({6}));
  const at::Tensor packed = numbers({4, 6}).to(at::kShort);
  file.dataset("air", H5T_STD_I16BE, H5T_NATIVE_SHORT, {4, 6}, packed.const_data_ptr(), {.chunks = {2, 3}, .gzip = 1});
  file.number<float>("air", "scale_factor", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, {0.25F});
  file.number<short>("air", "_FillValue", H5T_STD_I16LE, H5T_NATIVE_SHORT, {-1});
  file.text("air", "units", "K");
  file.scales("air", {"lat", "lon"});
  file.text("/", "Conventions", "CF-1.8");
}

// The newest format, whose metadata have checksums, with checksums of what they describe.
void make_checked(const std::string& path) {
  RawFile file(path, 0, /*latest=*/true);
  file.floats("packed", numbers({12, 9}), {.chunks = {5, 4}, .gzip = 4, .checksum = true});
  file.floats("plain", numbers({12, 9}), {.chunks = {12, 9}, .checksum = true});
  file.floats("small", numbers({3}), {.compact = true});
  H5Gclose(H5Gcreate2(file.id(), "a", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
  for (const char* name : {"a/x", "a/y", "a/z"}) file.floats(name, numbers({2, 2}), {.compact = true});
  file.text("packed", "units", "kelvin");
}

void make_latest(const std::string& path) {
  RawFile file(path, 0, /*latest=*/true);
  file.floats("grid", numbers({5, 4}));
  file.floats("packed", numbers({12, 9}), {.chunks = {5, 4}, .gzip = 4});
  for (int i = 0; i < 12; ++i) file.floats("x" + std::to_string(i), numbers({2}), {.compact = true});
  for (int i = 0; i < 12; ++i)
    file.number<double>("grid", "n" + std::to_string(i), H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, {1.5 * i});
}

void make_ours(const std::string& path) {
  io::File file = io::open(path, "w");
  file.write("net/weight", numbers({3, 4}), {.attrs = {}, .dims = {"out", "in"}, .compression = 4});
  file.write("net/bias", numbers({3}).to(at::kFloat));
  file.write("step", at::full({}, 7, at::kLong));
  file.set_attr("note", std::string("a run"));
  file.close();
}

void make_safetensors(const std::string& path) {
  io::save_safetensors(
      path,
      {{"net.weight", numbers({3, 4})}, {"net.bias", numbers({3}).to(at::kHalf)}, {"step", at::full({}, 7, at::kLong)}},
      {{"format", "pt"}, {"note", "a run"}});
}

std::vector<InputFiles> valid(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<InputFiles> inputs;
  for (const auto make : {make_old, make_netcdf, make_checked, make_latest, make_ours}) {
    const std::string path = folder + "/" + kH5;
    std::filesystem::remove(path);
    make(path);
    inputs.push_back({.files = {{kH5, read_bytes(path)}}, .checked = make == make_checked});
  }
  make_safetensors(folder + "/" + kSafetensors);
  inputs.push_back({.files = {{kSafetensors, read_bytes(folder + "/" + kSafetensors)}}});
  for (InputFiles& input : other_formats()) inputs.push_back(std::move(input));
  return inputs;
}

// The values that were read, by name.
struct Contents {
  std::map<std::string, at::Tensor> tensors;
  int refused = 0;
  std::string wrong;
};

template <class Try>
void attempt(Contents& contents, Try act) {
  try {
    act();
  } catch (const c10::Error& error) {
    ++contents.refused;
    const std::string verdict = judge_error(error.what_without_backtrace());
    if (verdict != "refused") contents.wrong = verdict;
  } catch (const std::exception& error) {
    contents.wrong = std::string("an exception that is none of ours: ") + error.what();
  }
}

Contents read_fields(const std::string& path) {
  Contents contents;
  attempt(contents, [&] {
    const io::File file = io::open(path);
    attempt(contents, [&] { file.attrs(); });
    for (const std::string& name : file.datasets()) {
      attempt(contents, [&] {
        const io::Dataset data = file[name];
        attempt(contents, [&] { data.attrs(); });
        attempt(contents, [&] { data.dims(); });
        attempt(contents, [&] { data.units(); });
        double elements = 1;
        std::string first;
        for (const int64_t size : data.shape()) {
          elements *= static_cast<double>(size);
          first += first.empty() ? "0:1" : ", 0:1";
        }
        if (elements > kMostElements) {
          data[first].read();
          return;
        }
        contents.tensors[name] = data.read();
        attempt(contents, [&] { data.read({.decode = true}); });
      });
    }
  });
  return contents;
}

Contents read_safetensors(const std::string& path) {
  Contents contents;
  attempt(contents, [&] {
    for (const auto& [name, tensor] : io::load_safetensors(path).tensors) contents.tensors[name] = tensor;
  });
  return contents;
}

Contents read_file(const std::string& folder, const InputFiles& original) {
  if (original.files.count(kSafetensors) != 0) return read_safetensors(folder + "/" + kSafetensors);
  for (const std::string& name : {kH5, kClassic, kNpy}) {
    if (original.files.count(name) != 0) return read_fields(folder + "/" + name);
  }
  return read_fields(folder + "/" + kZarr);
}

/// True where numbers differ in nothing that Fletcher's checksum sees: its sums are taken modulo 65535, so two bytes of
/// ones are to it what two of zeros are.
bool same_by_checksum(const at::Tensor& found, const at::Tensor& meant) {
  if (found.sizes() != meant.sizes() || found.dtype() != meant.dtype()) return false;
  const auto words = [](const at::Tensor& numbers) {
    const at::Tensor pairs = numbers.contiguous().view(at::kShort);
    return pairs.masked_fill(pairs == -1, 0);
  };
  return at::equal(words(found), words(meant));
}

std::string judge(const std::string& folder, const InputFiles& original) {
  const Contents contents = read_file(folder, original);
  if (!contents.wrong.empty()) return contents.wrong;
  if (original.checked) {
    const std::string whole = folder + "-whole";
    write_input(whole, original);
    const Contents written = read_file(whole, original);
    for (const auto& [name, tensor] : contents.tensors) {
      const auto meant = written.tensors.find(name);
      if (meant == written.tensors.end()) return "a dataset '" + name + "' that was not written";
      if (!same_by_checksum(tensor, meant->second)) return "wrong numbers in '" + name + "'";
    }
  }
  return contents.refused ? "refused" : "read";
}

/// Edits put these words into metadata of Zarr.
const std::vector<std::string> kWords = {"null",
                                         "true",
                                         "-1",
                                         "0",
                                         "1",
                                         "2",
                                         "7",
                                         "1152921504606846976",
                                         "9223372036854775807",
                                         "18446744073709551615",
                                         "1e300",
                                         "NaN",
                                         "[]",
                                         "{}",
                                         "\"\"",
                                         "[",
                                         "]",
                                         "{",
                                         "}",
                                         ",",
                                         "\"<f8\"",
                                         "\">i2\"",
                                         "\"|S3\"",
                                         "\"|O\"",
                                         "\"float64\"",
                                         "\"bool\"",
                                         "\"complex64\"",
                                         "\"F\"",
                                         "\"name\"",
                                         "\"configuration\"",
                                         "\"transpose\"",
                                         "\"sharding_indexed\"",
                                         "\"zstd\"",
                                         "\"crc32c\"",
                                         "\"shape\"",
                                         "\"node_type\"",
                                         "\"array\"",
                                         "\"0x7fc00000\"",
                                         "\"\\u0000\"",
                                         "\xff"};

}  // namespace

const InputKind& files_kind() {
  static const InputKind kind{.name = "files", .valid = valid, .words = kWords, .judge = judge, .once = 4000};
  return kind;
}

}  // namespace moonhalo::testing
