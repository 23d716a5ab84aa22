// SPDX-License-Identifier: Apache-2.0
// Datasets whose elements are in other files: external links, virtual datasets, external raw storage.
#include <gtest/gtest.h>

#include "moonhalo/engine/tensor/shard_tensor.h"
#include "moonhalo/io/fields/domain_file.h"
#include "moonhalo/io/fields/scatter.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_other_files {
namespace {

using namespace testing;

/// An element of a linked dataset has the offset that it has in its own file, where the first file holds other bytes.
TEST(ExternalLinks, AreReadFromTheFileTheyLeadTo) {
  const Folder folder;
  const at::Tensor years[] = {field({4, 6}, 1), field({4, 6}, 2)};
  for (int i = 0; i < 2; ++i) {
    RawFile part(folder / ("year" + std::to_string(i) + ".h5"));
    part.floats("first", field({i + 1, 40}, 3));
    part.floats("deep", years[i], {.chunks = {2, 3}});
    part.floats("t", years[i]);
  }
  {
    RawFile master(folder / "all.h5");
    master.floats("grid", field({200, 50}, 4));
    for (int i = 0; i < 2; ++i) {
      const std::string year = "year" + std::to_string(i);
      ASSERT_GE(H5Lcreate_external((year + ".h5").c_str(), "/t", master.id(), year.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                0);
      ASSERT_GE(H5Lcreate_external((year + ".h5").c_str(), "/", master.id(), (year + "_all").c_str(), H5P_DEFAULT,
                                   H5P_DEFAULT),
                0);
    }
    ASSERT_GE(H5Lcreate_soft("/year1", master.id(), "soft", H5P_DEFAULT, H5P_DEFAULT), 0);
  }
  const File file = open(folder / "all.h5");

  EXPECT_TRUE(at::equal(file["year0"].read(), years[0]));
  EXPECT_TRUE(at::equal(file["year1"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["year1"]["1:, ::2"].read(), years[1].slice(0, 1).slice(1, 0, 6, 2)));
  EXPECT_TRUE(at::equal(file["soft"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["year1_all/t"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["year1_all/deep"].read(), years[1]));
  EXPECT_TRUE(at::equal(file["grid"].read(), field({200, 50}, 4)));
  on_mesh({3}, [&](const MeshPtr& mesh) {
    const at::Tensor x = scatter_tensor(open(folder / "all.h5")["year1"], mesh, {shard(0, {1, 2, 1})});
    EXPECT_TRUE(at::equal(full_tensor(x), years[1]));
  });
}

void external_link(RawFile& file, const std::string& name, const std::string& target, const std::string& object) {
  ASSERT_GE(H5Lcreate_external(target.c_str(), object.c_str(), file.id(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT), 0);
}

/// Four floats that are in `target` from its first byte on.
void raw_storage(RawFile& file, const std::string& name, const std::string& target) {
  const hsize_t size = 4;
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &size, nullptr);
  ASSERT_GE(H5Pset_external(list, target.c_str(), 0, 16), 0);
  H5Dclose(H5Dcreate2(file.id(), name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
  H5Pclose(list);
  H5Sclose(space);
}

/// Four floats that are those of dataset `object` in `target`.
void virtual_dataset(RawFile& file, const std::string& name, const std::string& target, const std::string& object) {
  const hsize_t size = 4;
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &size, nullptr);
  ASSERT_GE(H5Pset_virtual(list, space, target.c_str(), object.c_str(), space), 0);
  H5Dclose(H5Dcreate2(file.id(), name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
  H5Pclose(list);
  H5Sclose(space);
}

/// Blocks of four floats, as many as there are sources ("part-%b.h5").
void numbered_dataset(RawFile& file, const std::string& name, const std::string& target, const std::string& object) {
  const hsize_t size = 4, none = 0, unlimited = H5S_UNLIMITED;
  const hid_t list = H5Pcreate(H5P_DATASET_CREATE), block = H5Screate_simple(1, &size, nullptr),
              space = H5Screate_simple(1, &none, &unlimited);
  ASSERT_GE(H5Sselect_hyperslab(space, H5S_SELECT_SET, &none, &size, &unlimited, &size), 0);
  ASSERT_GE(H5Pset_virtual(list, space, target.c_str(), object.c_str(), block), 0);
  H5Dclose(H5Dcreate2(file.id(), name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
  for (const hid_t id : {block, space}) H5Sclose(id);
  H5Pclose(list);
}

/// A folder with x.h5, which leads to files in its folder and to secret.h5 and secret.raw outside, in every way there
/// is.
struct Leading {
  Folder outside;
  std::string path = outside / "in/x.h5";
  at::Tensor values = at::tensor({1.f, 2.f, 3.f, 4.f});

  Leading() {
    std::filesystem::create_directories(outside / "in/below");
    const std::string secret = outside / "secret.h5", raw = outside / "secret.raw";
    RawFile(secret).floats("t", values);
    std::ofstream(raw, std::ios::binary).write(static_cast<const char*>(values.const_data_ptr()), 16);
    std::filesystem::create_symlink(secret, outside / "in/symlink.h5");
    RawFile(outside / "in/below/good.h5").floats("t", values);
    {
      RawFile other(outside / "in/other.h5");
      external_link(other, "link", "../secret.h5", "/t");
      raw_storage(other, "raw", raw);
      virtual_dataset(other, "virtual", secret, "/t");
    }
    RawFile file(path);
    external_link(file, "good_link", "below/good.h5", "/t");
    virtual_dataset(file, "good_virtual", "below/good.h5", "/t");
    virtual_dataset(file, "good_self", ".", "/own");
    file.floats("own", values);
    external_link(file, "link", secret, "/t");
    external_link(file, "link_up", "../secret.h5", "/t");
    external_link(file, "link_by_symlink", "symlink.h5", "/t");
    external_link(file, "link_by_other", "other.h5", "/link");
    external_link(file, "other", "other.h5", "/");
    EXPECT_GE(H5Lcreate_soft("/link_up", file.id(), "soft", H5P_DEFAULT, H5P_DEFAULT), 0);
    raw_storage(file, "raw", raw);
    virtual_dataset(file, "virtual", secret, "/t");
    virtual_dataset(file, "virtual_of_raw", ".", "/raw");
    virtual_dataset(file, "virtual_of_other_raw", "other.h5", "/raw");
    virtual_dataset(file, "virtual_of_virtual", "other.h5", "/virtual");
    virtual_dataset(file, "virtual_by_link", ".", "/link_up");
  }
};

TEST(OtherFiles, OfTheFoldersAreRead) {
  const Leading files;
  const File file = open(files.path);
  for (const char* name : {"good_link", "good_virtual", "good_self"}) {
    EXPECT_TRUE(at::equal(file[name].read(), files.values)) << name;
  }
}

TEST(OtherFiles, X16_FromElsewhereAreRefusedUnlessAllowed) {
  const Leading files;
  const File file = open(files.path), allowed = open(files.path, "r", {.allow_external = true});
  const std::string outside = "\" leads outside the file's folder",
                    group = "open: a link in group \"/\" of file \"" + files.path + outside;
  const std::string in_other = "open: a link in group \"/\" of file \"" + (files.outside / "in/other.h5") + outside;
  const auto dataset = [&](const std::string& name, const std::string& text) {
    return "open: dataset \"" + name + "\" of file \"" + files.path + "\": " + text;
  };
  const std::string raw = "its elements are the bytes of another file",
                    source = "it is virtual, and a source is outside the file's folder";
  const std::pair<std::string, std::string> cases[] = {
      {"link", group},
      {"link_up", group},
      {"link_by_symlink", group},
      {"link_by_other", in_other},
      {"other/link", in_other},
      {"soft", group},
      {"raw", dataset("raw", raw)},
      {"other/raw", dataset("other/raw", raw)},
      {"virtual", dataset("virtual", source)},
      {"virtual_of_raw", dataset("virtual_of_raw", raw)},
      {"virtual_of_other_raw", dataset("virtual_of_other_raw", raw)},
      {"virtual_of_virtual", dataset("virtual_of_virtual", source)},
      {"virtual_by_link", group},
  };
  for (const auto& [name, text] : cases) {
    SCOPED_TRACE(name);
    const std::string message = message_of([&] { file[name].read(); });

    EXPECT_EQ(first_line(message), text);
    EXPECT_NE(message.find(name == "link_by_symlink" ? "symlink.h5" : "secret"), std::string::npos) << message;
    EXPECT_NE(message.find("\n  fix   if you trust the file, open it with allow_external = true"), std::string::npos)
        << message;
    EXPECT_TRUE(at::equal(allowed[name].read(), files.values));
    EXPECT_EQ(message_of([&] { file["own"].read(); }), "");
  }
  EXPECT_EQ(file.datasets().size(), allowed.datasets().size());
}

/// In names of sources "%%" is one percent sign and "%b" the number of a block.
TEST(OtherFiles, Y21_PercentSignsOfSourcesHideNothing) {
  const Folder outside;
  const at::Tensor values = at::tensor({1.f, 2.f, 3.f, 4.f});
  const std::string in = outside / "in/", raw = outside / "secret.raw", path = in + "x.h5";
  std::filesystem::create_directories(in + "below");
  std::ofstream(raw, std::ios::binary).write(static_cast<const char*>(values.const_data_ptr()), 16);
  RawFile(outside / "far0.h5").floats("t", values);
  for (const char* name : {"a%b.h5", "good0.h5", "good1.h5", "raw1.h5", "raw0x.h5", "below/0.h5"}) {
    RawFile file(in + name);
    file.floats("t", values);
    raw_storage(file, "raw", raw);
    raw_storage(file, "raw%b", raw);
    raw_storage(file, "raw7", raw);
    raw_storage(file, "late12", raw);
    file.floats("late3", values);
    external_link(file, "link0", "../far0.h5", "/t");
    virtual_dataset(file, "v0", ".", "/raw7");
  }
  std::filesystem::create_symlink(outside / "far0.h5", in + "sym0.h5");
  struct Hidden {
    std::string target, object;
    void (*add)(RawFile&, const std::string&, const std::string&, const std::string&);
  };
  const std::vector<Hidden> hidden = {
      {"good0.h5", "/raw%%b", virtual_dataset},   {"a%%b.h5", "/raw", virtual_dataset},
      {"a%%b.h5", "/raw%%b", virtual_dataset},    {"good%b.h5", "/raw", numbered_dataset},
      {"good%b.h5", "/raw%%b", numbered_dataset}, {"below/%b.h5", "/raw", numbered_dataset},
      {"good0.h5", "/raw%b", numbered_dataset},   {"good0.h5", "/late%b", numbered_dataset},
      {"good0.h5", "link%b", numbered_dataset},   {"good0.h5", "v%b", numbered_dataset},
      {".", "/own%b", numbered_dataset},          {"sym%b.h5", "/t", numbered_dataset},
      {"../far%b.h5", "/t", numbered_dataset},    {outside / "far%b.h5", "/t", numbered_dataset},
      {"%b/0.h5", "/t", numbered_dataset},        {"good0.h5", "/%b/t", numbered_dataset}};
  {
    RawFile file(path);
    raw_storage(file, "own0", raw);
    for (size_t i = 0; i < hidden.size(); ++i)
      hidden[i].add(file, "hidden" + std::to_string(i), hidden[i].target, hidden[i].object);
    virtual_dataset(file, "good_percent", "a%%b.h5", "/t");
    numbered_dataset(file, "good_files", "good%b.h5", "/t");
    numbered_dataset(file, "good_gap", "raw%b.h5", "/t");  // it has no block 0, and raw0x.h5 is none
  }
  const File file = open(path), allowed = open(path, "r", {.allow_external = true});
  for (size_t i = 0; i < hidden.size(); ++i) {
    SCOPED_TRACE("source " + hidden[i].target + ", dataset " + hidden[i].object);
    const std::string name = "hidden" + std::to_string(i), message = message_of([&] { file[name].read(); });
    EXPECT_NE(message.find("\n  fix   if you trust the file, open it with allow_external = true"), std::string::npos)
        << message;
    EXPECT_EQ(message_of([&] { allowed[name].read(); }), "");
  }
  EXPECT_TRUE(at::equal(file["good_percent"].read(), values));
  EXPECT_TRUE(at::equal(file["good_files"].read(), at::cat({values, values})));
  EXPECT_EQ(file["good_gap"].read().numel(), 0);
}

/// HDF5 looks for a block in the current folder, too.
TEST(OtherFiles, Y21_BlocksOfTheCurrentFolderAreNoSources) {
  const Folder folder, current;
  RawFile(folder / "part0.h5").floats("t", at::ones({4}));
  {
    RawFile file(folder / "x.h5");
    numbered_dataset(file, "v", "part%b.h5", "/t");
  }
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(current / "");
  EXPECT_TRUE(at::equal(open(folder / "x.h5")["v"].read(), at::ones({4})));
  RawFile("part1.h5").floats("t", at::ones({4}));
  const std::string message = message_of([&] { open(folder / "x.h5")["v"].read(); });
  std::filesystem::current_path(before);
  EXPECT_NE(message.find("a source is outside the file's folder\n  have  source \"part1.h5\""), std::string::npos)
      << message;
}

/// Ten datasets on each of seven floors, each made of the ten below it: ten million ways, seventy datasets.
TEST(OtherFiles, Y21_SourcesInCommonAreLookedAtOnce) {
  const Folder folder;
  const std::string path = folder / "x.h5";
  constexpr hsize_t kWidth = 10, kFloors = 7, kOne = 1;
  {
    RawFile file(path);
    for (hsize_t i = 0; i < kWidth; ++i) file.floats("0_" + std::to_string(i), at::full({10}, static_cast<float>(i)));
    for (hsize_t floor = 1; floor <= kFloors; ++floor) {
      const hid_t list = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(1, &kWidth, nullptr);
      for (hsize_t i = 0; i < kWidth; ++i) {
        ASSERT_GE(H5Sselect_hyperslab(space, H5S_SELECT_SET, &i, nullptr, &kOne, nullptr), 0);
        const std::string below = "/" + std::to_string(floor - 1) + "_" + std::to_string(i);
        ASSERT_GE(H5Pset_virtual(list, space, ".", below.c_str(), space), 0);
      }
      for (hsize_t i = 0; i < kWidth; ++i) {
        const std::string name = std::to_string(floor) + "_" + std::to_string(i);
        H5Dclose(H5Dcreate2(file.id(), name.c_str(), H5T_IEEE_F32LE, space, H5P_DEFAULT, list, H5P_DEFAULT));
      }
      H5Sclose(space);
      H5Pclose(list);
    }
    virtual_dataset(file, "a", ".", "/b");
    virtual_dataset(file, "b", ".", "/a");
    numbered_dataset(file, "c0", ".", "/c%b");
  }
  const File file = open(path);
  EXPECT_TRUE(at::equal(file["7_3"].read(), at::arange(10, at::kFloat)));
  for (const char* name : {"a", "c0"}) {
    const std::string message = message_of([&] { file[name]; });
    EXPECT_NE(message.find("may lead in a circle"), std::string::npos) << message;
  }
}

// A file is written as a copy that takes its place at the end; what it leads to has none.
TEST(OtherFiles, X16_AreNotWrittenThroughALink) {
  const Leading files;
  File file = open(files.path, "a");
  const std::string text = ": it is in another file";
  const at::Tensor ones = at::ones_like(files.values);

  EXPECT_NE(message_of([&] { file["good_link"].write_block({0}, ones); }).find(text), std::string::npos);
  EXPECT_NE(message_of([&] { file.set_attr("units", "K", "good_link"); }).find(text), std::string::npos);
  EXPECT_NE(message_of([&] { file.write("other/new", ones); }).find(text), std::string::npos);
  EXPECT_NE(message_of([&] { file.write("other/group/new", ones); }).find(text), std::string::npos);

  file.write("new", ones);  // nothing has failed halfway
  for (const char* name : {"good_link", "good_virtual", "good_self"})
    EXPECT_TRUE(at::equal(file[name].read(), files.values)) << name;
  file.close();
  EXPECT_TRUE(at::equal(open(files.path)["good_link"].read(), files.values));
  EXPECT_TRUE(at::equal(open(files.path)["new"].read(), ones));
  EXPECT_EQ(message_of([&] { open(files.outside / "in/other.h5")["new"]; }).find("not"), std::string::npos)
      << "it was written";
}

TEST(OtherFiles, AMissingSourceIsNoFillValue) {
  const Folder folder;
  RawFile(folder / "here.h5").floats("t", at::ones({4}));
  const std::string path = folder / "x.h5";
  {
    RawFile file(path);
    virtual_dataset(file, "v", "gone.h5", "/t");
    virtual_dataset(file, "w", "here.h5", "/gone");
    external_link(file, "link", "gone.h5", "/t");
  }
  for (const bool allowed : {false, true}) {
    const File file = open(path, "r", {.allow_external = allowed});
    EXPECT_EQ(
        message_of([&] { file["v"]; }),
        "open: dataset \"v\" of file \"" + path +
            "\": it is virtual, and a source is missing in the file's folder\n  have  source \"gone.h5\", dataset "
            "\"/t\"\n  fix   copy it together with its sources, or make it again");
    EXPECT_EQ(first_line(message_of([&] { file["w"]; })),
              "open: dataset \"w\" of file \"" + path + "\": it is virtual, and a source has no dataset \"/gone\"");
  }
  EXPECT_EQ(
      first_line(message_of([&] { open(path)["link"]; })),
      "open: a link in group \"/\" of file \"" + path + "\" leads to a file that is missing in the file's folder");
}

}  // namespace
}  // namespace moonhalo::io::test_other_files
