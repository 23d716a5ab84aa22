// SPDX-License-Identifier: Apache-2.0
// Files of PyTorch: state dicts, pickles with objects and arrays, a .mdlus.
#include <ATen/ATen.h>

#include <filesystem>
#include <map>

#include "moonhalo/io/pytorch/numpy_values.h"
#include "moonhalo/io/pytorch/pt_file.h"
#include "moonhalo/io/pytorch/pt_names.h"
#include "moonhalo/io/pytorch/pt_write.h"
#include "moonhalo/io/pytorch/zip_writer.h"
#include "tests/fuzz/kinds.h"

namespace moonhalo::testing {
namespace {

using namespace std::string_literals;

const std::string kModel = std::string(kInputName) + ".pt";
constexpr double kMostElements = 1 << 20;

void make_state(const std::string& path) {
  const at::Tensor weight = at::arange(12, at::kFloat).reshape({3, 4});
  io::PtWriter writer("fuzz", path);
  writer.begin_dict();
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kLong, at::kBool, at::kUInt16, at::kComplexDouble}) {
    writer.text(c10::toString(type));
    writer.tensor(weight.to(type));
  }
  writer.text("values");
  writer.begin_list();
  writer.none(), writer.boolean(true), writer.integer(1 << 20), writer.integer(int64_t{1} << 40), writer.number(0.5);
  writer.text("\xff\x80");
  writer.end_list();
  writer.end_dict();
  writer.finish();
}

/// Protocol 4: an object with its state, a set, an array and a scalar of numpy, views of one storage.
std::string objects_pickle() {
  const std::string view =
      "\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93\x94((\x8c\x07storage\x8c\x05torch\x8c\x0c"s +
      "FloatStorage\x93\x8c\x01"s + "0\x8c\x03" + "cpuK\x0ctQ\x94K\x01K\x03K\x02\x86K\x01K\x04\x86\x89)}(\x8c\x04"s +
      "conj\x89utR\x94";
  const std::string dtype = "\x8c\x05numpy\x8c\x05"s + "dtype\x93\x8c\x02"s +
                            "f8\x89\x88\x87R\x94(K\x03\x8c\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"s;
  const std::string array =
      "\x8c\x15numpy.core.multiarray\x8c\x0c_reconstruct\x93\x94\x8c\x05numpy\x8c\x07ndarray\x93K\0\x85"s + "C\x01" +
      "b\x87R\x94(K\x01K\x01\x85"s + dtype + "\x89" + "C\x08\0\0\0\0\0\0\xf0\x3ftb"s;
  const std::string object =
      "\x8c\x08__main__\x8c\x06"s + "Config\x93)\x81}(\x8c\x04rateG\x3f\x50\x62\x4d\xd2\xf1\xa9\xfcub"s;
  return "\x80\x04}\x94(\x8c\x04view"s + view + "\x8c\x05" + "array" + array + "\x8c\x06" + "object" + object +
         "\x8c\x03set\x8f(K\x01K\x02\x90\x8c\x05tupleNK\x01K\x02\x87u."s;
}

void make_objects(const std::string& path) {
  const at::Tensor data = at::arange(12, at::kFloat);
  io::ZipWriter archive("fuzz", path);
  archive.add("model/data.pkl", objects_pickle());
  archive.add("model/byteorder", std::string_view("little"));
  archive.add("model/data/0", data.const_data_ptr(), data.nbytes());
  archive.finish();
}

void make_mdlus(const std::string& path) {
  const std::string inner = path + ".inner";
  make_state(inner);
  io::ZipWriter archive("fuzz", path);
  archive.add("model.pt", read_bytes(inner));
  archive.add("args.json", std::string_view("{\"__args__\": {}}"));
  archive.finish();
  std::filesystem::remove(inner);
}

std::vector<InputFiles> valid(const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::vector<InputFiles> inputs;
  for (const auto make : {make_state, make_objects, make_mdlus}) {
    make(folder + "/" + kModel);
    inputs.push_back({.files = {{kModel, read_bytes(folder + "/" + kModel)}}});
  }
  return inputs;
}

/// Reads all that is in the file, and keeps it: together the tensors take no more memory than twice the file.
std::string read_all(const std::string& path) {
  const auto file = io::PtFile::open(path);
  const io::Pickle& pickle = file->pickle();
  std::map<const void*, size_t> memory;
  std::vector<at::Tensor> kept;
  io::NumpyValues arrays(pickle);
  for (const io::PtName& one : io::pt_names("load: file \"" + path + "\"", pickle)) {
    io::pickle_text(pickle, one.value);
    if (one.value.kind == io::PickleKind::kTensor) {
      const io::PtTensor& tensor = file->tensor(one.value);
      kept.push_back(file->read(tensor));
      double elements = 1;
      Box box;
      for (const int64_t size : tensor.shape) elements *= static_cast<double>(size), box.push_back({size / 2, size});
      if (elements <= kMostElements) file->read_block(tensor, box);
    } else if (const auto array = arrays.array(one.value)) {
      kept.push_back(*array);
    } else {
      arrays.scalar(one.value);
      continue;
    }
    memory[kept.back().storage().data()] = kept.back().storage().nbytes();
  }
  size_t bytes = 0;
  for (const auto& [place, size] : memory) bytes += size;
  if (bytes <= 2 * std::filesystem::file_size(path)) return "read";
  return std::to_string(bytes) + " bytes of memory for a file of " + std::to_string(std::filesystem::file_size(path));
}

std::string judge(const std::string& folder, const InputFiles&) {
  try {
    return read_all(folder + "/" + kModel);
  } catch (const c10::Error& error) {
    return judge_error(error.what_without_backtrace());
  }
}

}  // namespace

const InputKind& models_kind() {
  static const InputKind kind{.name = "models", .valid = valid, .words = {}, .judge = judge, .once = 4000};
  return kind;
}

}  // namespace moonhalo::testing
