// SPDX-License-Identifier: Apache-2.0
// moonhalo inspect, also of files that would take the program along.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>

#include "moonhalo/io/checkpoint/safetensors.h"
#include "moonhalo/io/pytorch/pt_write.h"
#include "moonhalo/io/pytorch/zip_writer.h"
#include "moonhalo/scripting/program/session.h"
#include "tests/io/support/classic_file.h"
#include "tests/io/support/raw_file.h"
#include "tests/io/support/zarr_folder.h"
#include "tests/scripting/run_program.h"

namespace moonhalo::scripting::test_inspect {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

/// Sends a signal to the child of this process as soon as there is one.
class SignalToChild {
 public:
  explicit SignalToChild(int signal)
      : thread_([this, signal, file = "/proc/self/task/" + std::to_string(gettid()) + "/children"] {
          while (!done_) {
            pid_t child = 0;
            if (std::ifstream(file) >> child) kill(child, signal);
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
          }
        }) {}
  ~SignalToChild() {
    done_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

TEST(Inspect, X16_SafelyPrintsTheSame) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "x.h5";
  moonhalo::testing::RawFile(path).floats("air", at::zeros({2, 3}));

  const Result plain = run({"inspect", path}), safe = run({"inspect", path, "--safe"});

  EXPECT_EQ(safe.status, kDone);
  EXPECT_EQ(safe.out, plain.out);
  EXPECT_THAT(safe.out, HasSubstr("air  float32 [2, 3]"));
  EXPECT_THAT(safe.err, IsEmpty());
}

TEST(Inspect, X16_SafelySaysWhatIsWrong) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "x.h5";
  std::ofstream(path) << "no field";

  const Result plain = run({"inspect", path}), safe = run({"inspect", path, "--safe"});

  EXPECT_EQ(safe.status, kScriptFailed);
  EXPECT_EQ(safe.err, plain.err);
  EXPECT_THAT(safe.err, StartsWith("moonhalo: open: file \"" + path + "\" is not an HDF5 file"));
}

TEST(Inspect, ShowsWhatOtherFormatsHold) {
  const moonhalo::testing::Folder folder;
  const std::string classic = folder / "x.nc", zarr = folder / "x.zarr";
  std::ofstream(classic, std::ios::binary) << moonhalo::testing::classic_example(2).bytes();
  moonhalo::testing::ZarrFolder files;
  const at::Tensor full = moonhalo::testing::field({11, 13});
  files.files["zarr.json"] = moonhalo::testing::kGroup3;
  files.files["deep/zarr.json"] = R"({"zarr_format": 3, "node_type": "group", "attributes": {"model": "toy"}})";
  files.add_shards("deep/air", full, 2, 3, moonhalo::testing::kZstd3, moonhalo::testing::with_zstd);
  files.add3("odd", full, 4, 5, R"(, {"name": "numcodecs.lzma"})", moonhalo::testing::plain_bytes);
  files.add3("broken", full, 4, 5, ", 7", moonhalo::testing::plain_bytes);
  files.write(zarr);

  const Result of_classic = run({"inspect", classic}), of_zarr = run({"inspect", zarr}),
               safe = run({"inspect", zarr, "--safe"});

  EXPECT_THAT(of_classic.out, StartsWith(classic + "  NetCDF-3 (64-bit offsets)\n  @title = abc\n"));
  EXPECT_THAT(of_classic.out, HasSubstr("\nfixed3  int16 [3, 5]  dims (y, x)\n  @_FillValue = 3\n"));
  EXPECT_THAT(of_classic.out, HasSubstr("\nlayout "));
  EXPECT_THAT(of_zarr.out,
              StartsWith(zarr + "  Zarr 3\n  @title = by hand\nbroken  refused: open: dataset \"broken\""));
  EXPECT_THAT(
      of_zarr.out,
      HasSubstr(
          "\ndeep/\n  @model = toy\n"
          "deep/air  float32 [11, 13]  dims (y, -)  chunks [2, 3]  filters (sharding 2x2, zstd 3)\n  @units = K\n"));
  EXPECT_THAT(of_zarr.out, HasSubstr("not read: compressed with \"lzma\""));
  EXPECT_EQ(safe.out, of_zarr.out);
  EXPECT_EQ(of_classic.status + of_zarr.status + safe.status, 0);
  EXPECT_THAT(of_classic.err + of_zarr.err + safe.err, IsEmpty());
}

TEST(Inspect, Y03_ShowsWhatModelsHold) {
  const moonhalo::testing::Folder folder;
  const std::string pt = folder / "x.pt", safetensors = folder / "x.safetensors", zip = folder / "x.pt2";
  const at::Tensor weight = at::ones({2, 3});
  io::PtWriter writer("test", pt);
  writer.begin_dict();
  writer.text("epoch"), writer.integer(3), writer.text("net"), writer.begin_dict();
  writer.text("weight"), writer.tensor(weight), writer.end_dict(), writer.end_dict();
  writer.finish();
  io::save_safetensors(safetensors, {{"weight", weight}}, {{"format", "pt"}});
  io::ZipWriter archive("test", zip);
  archive.add("model/model.json", std::string_view("{}"));
  archive.finish();

  const Result of_pt = run({"inspect", pt}), of_safetensors = run({"inspect", safetensors}),
               of_zip = run({"inspect", zip});
  const Result drawn = run({"inspect", pt, "--plot", "net.weight"}), safe = run({"inspect", pt, "--safe"});

  EXPECT_EQ(of_pt.out, pt + "  PyTorch, zip, pickle protocol 2, 1 tensors\nepoch = 3\nnet.weight  float32 [2, 3]\n");
  EXPECT_EQ(of_safetensors.out, safetensors + "  safetensors, 1 tensors\n  @format = pt\nweight  float32 [2, 3]\n");
  EXPECT_EQ(of_zip.out, zip + "  zip archive, 1 entries\nmodel/model.json  2 bytes\n");
  EXPECT_EQ(safe.out, of_pt.out);
  EXPECT_EQ(of_pt.status + of_safetensors.status + of_zip.status + safe.status, kDone);
  EXPECT_EQ(drawn.status, kScriptFailed);
  EXPECT_THAT(drawn.err, HasSubstr("holds a model, of which nothing is drawn"));
}

TEST(Inspect, DrawsAVariable) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "x.nc", map = folder / "map.png", line = folder / "line.png";
  std::ofstream(path, std::ios::binary) << moonhalo::testing::classic_example(5).bytes();

  const Result drawn = run({"inspect", path, "--plot", "fixed3", "--output", map});
  const Result part = run({"inspect", path, "--plot", "rows6[:, 2]", "--output", line});
  const Result unknown = run({"inspect", path, "--plot", "fixde3", "--output", folder / "no.png"});
  const Result scalar = run({"inspect", path, "--plot", "one", "--output", folder / "no.png"});

  for (const auto& [result, picture] : {std::pair(drawn, map), {part, line}}) {
    EXPECT_EQ(result.status, kDone) << result.err;
    EXPECT_THAT(result.out, HasSubstr("written " + picture));
    std::ostringstream bytes;
    bytes << std::ifstream(picture, std::ios::binary).rdbuf();
    EXPECT_THAT(bytes.str(), StartsWith("\x89PNG"));
    EXPECT_GT(bytes.str().size(), 2000);
  }
  EXPECT_EQ(unknown.status, kScriptFailed);
  EXPECT_THAT(unknown.err, HasSubstr("no dataset \"fixde3\""));
  EXPECT_THAT(scalar.err, HasSubstr("inspect: 'one' has 0 dims to draw"));
}

/// A folder with in/x.h5, whose link leads to a file outside.
struct LinkOutside {
  moonhalo::testing::Folder folder;
  std::string path = folder / "in/x.h5";
  LinkOutside() {
    std::filesystem::create_directory(folder / "in");
    moonhalo::testing::RawFile(folder / "secret.h5").floats("t", at::ones({3}));
    const moonhalo::testing::RawFile file(path);
    EXPECT_GE(H5Lcreate_external("../secret.h5", "/t", file.id(), "link", H5P_DEFAULT, H5P_DEFAULT), 0);
  }
};

TEST(Inspect, X16_FilesFromElsewhereAreNamedAndNotRead) {
  const LinkOutside files;

  const Result result = run({"inspect", files.path});

  EXPECT_EQ(result.status, kDone);
  EXPECT_THAT(result.out, HasSubstr("link  refused: open: a link in group \"/\" of file \"" + files.path +
                                    "\" leads outside the file's folder\n  have  target \"../secret.h5\""));
}

TEST(OpenFromLua, X16_FilesFromElsewhereAreReadWhereAllowed) {
  const LinkOutside files;
  const std::string script = files.folder / "script.lua";
  std::ofstream(script) << "local h5 = require('moonhalo').h5\n"
                        << "local path = '" << files.path << "'\n"
                        << "print(h5.open(path, {allow_external = true}).link.shape[1], h5.open(path, 'r', "
                           "{allow_external = true}).link.shape[1])\n"
                        << "print(pcall(function() return h5.open(path, {allow = true}) end))\n"
                        << "print(h5.open(path).link)\n";

  const Result result = run({"run", script});

  EXPECT_THAT(result.out, StartsWith("3\t3\nfalse\t"));
  EXPECT_THAT(result.out, HasSubstr("allow_external"));  // did you mean
  EXPECT_EQ(result.status, kScriptFailed);
  EXPECT_THAT(result.err, HasSubstr("leads outside the file's folder"));
}

/// A pipe keeps the reading process waiting, so that it can be ended as a crash or the time limit would.
TEST(Inspect, X16_SafelySurvivesACrashAndAnEndlessLoop) {
  const moonhalo::testing::Folder folder;
  const std::string path = folder / "pipe.h5";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const std::pair<int, std::string> cases[] = {
      {SIGSEGV, "the HDF5 library crashed on this file (signal 11, Segmentation fault)"},
      {SIGABRT, "the HDF5 library crashed on this file (signal 6, Aborted)"},
      {SIGALRM, "the HDF5 library did not come to an end in 60 s"}};
  for (const auto& [signal, text] : cases) {
    const SignalToChild crash(signal);

    const Result result = run({"inspect", path, "--safe"});

    EXPECT_EQ(result.status, kScriptFailed);
    EXPECT_THAT(result.err, StartsWith("moonhalo: inspect: file \"" + path + "\": " + text));
    EXPECT_THAT(result.err, HasSubstr("\n  fix   "));
  }
}

}  // namespace
}  // namespace moonhalo::scripting::test_inspect
