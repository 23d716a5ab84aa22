// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <png.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <functional>
#include <thread>

#include "moonhalo/io/base/png.h"
#include "moonhalo/io/fields/domain_file.h"
#include "tests/io/support/full_disk.h"
#include "tests/io/support/raw_file.h"
#include "tests/support/oracle.h"

namespace moonhalo::io::test_write {
namespace {

using namespace testing;

/// The number of times that the folder itself is opened while `work` runs, without files in it.
int times_opened(const std::string& folder, const std::function<void()>& work) {
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  // Names that are given separate opens, which would be one event.
  EXPECT_GE(inotify_add_watch(watch, folder.c_str(), IN_OPEN | IN_MOVED_TO), 0);
  work();
  alignas(inotify_event) char events[1 << 14];
  int count = 0;
  for (ssize_t got = 0; (got = ::read(watch, events, sizeof events)) > 0;) {
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(events + at);
      count += event->len == 0 && (event->mask & IN_OPEN) != 0 ? 1 : 0;
      at += static_cast<ssize_t>(sizeof *event) + event->len;
    }
  }
  ::close(watch);
  return count;
}

TEST(Write, EveryDtypeComesBack) {
  const Folder folder;
  const std::vector<at::ScalarType> dtypes = {at::kByte, at::kChar,   at::kShort, at::kUInt16, at::kInt,    at::kUInt32,
                                              at::kLong, at::kUInt64, at::kHalf,  at::kFloat,  at::kDouble, at::kBool};
  File out = open(folder / "out.h5", "w");
  for (const auto dtype : dtypes) {
    out.write(c10::toString(dtype), at::arange(6).view({2, 3}).to(dtype));
  }
  out.write("scalar", at::full({}, 2.5));
  out.write("none", at::empty({0, 3}));
  out.write("transposed", field({3, 5}).t().requires_grad_());
  out.close();

  const File file = open(folder / "out.h5");
  for (const auto dtype : dtypes) {
    const at::Tensor read = file[c10::toString(dtype)].read();
    EXPECT_EQ(read.scalar_type(), dtype);
    EXPECT_TRUE(at::equal(read.to(at::kDouble), at::arange(6).view({2, 3}).to(dtype).to(at::kDouble))) << dtype;
    EXPECT_TRUE(at::equal(file[c10::toString(dtype)].read({.dtype = at::kFloat}),
                          at::arange(6).view({2, 3}).to(dtype).to(at::kFloat)))
        << dtype;
  }
  EXPECT_EQ(file["scalar"].read().item<float>(), 2.5);
  EXPECT_EQ(file["none"].shape(), (std::vector<int64_t>{0, 3}));
  EXPECT_TRUE(at::equal(file["transposed"].read(), field({3, 5}).t()));
}

// Work that LibTorch has put off (a conjugation, a sign, zeros) is done before bytes are written.
TEST(Write, LazyTensorsAreWrittenAsTheirValues) {
  const Folder folder;
  const at::Tensor pairs = at::complex(field({4}), field({4}) + 2);
  const at::Tensor negated = at::imag(pairs.conj()), one = at::imag(pairs.narrow(0, 0, 1).conj());
  ASSERT_TRUE(negated.is_neg() && one.is_neg());
  const at::Tensor zeros = at::_efficientzerotensor({3}, at::kFloat);
  File out = open(folder / "out.h5", "w");
  out.write("negated", negated);
  out.write("one", one);
  out.write("zeros", zeros);
  out.close();

  const File file = open(folder / "out.h5");
  EXPECT_TRUE(at::equal(file["negated"].read(), negated));
  EXPECT_TRUE(at::equal(file["one"].read(), one));
  EXPECT_TRUE(at::equal(file["zeros"].read(), at::zeros({3})));
}

// A lock of the folder, which waits for others who have it, is for ranks beside this one.
TEST(Write, ARankAloneOpensTheFolderOnlyToStoreTheName) {
  const Folder folder;
  int count = 0;
  std::thread rank([&] {
    File out = open(folder / "out.h5", "w");
    out.write("u", field({3}));
    count = times_opened(folder.path(), [&] { out.close(); });
  });
  rank.join();
  EXPECT_EQ(count, 1);
}

TEST(Write, AttributesDimensionsChunksAndGroups) {
  const Folder folder;
  const Attributes attrs = {{"units", std::string("K")},
                            {"scale", 0.1},
                            {"levels", std::vector<int64_t>{1, 2, 3}},
                            {"range", std::vector<double>{0.5, 1.5}},
                            {"names", std::vector<std::string>{"a", "", "längs"}},
                            {"count", int64_t{-7}},
                            {"flag", true}};
  File out = open(folder / "out.h5", "w");
  out.write("deep/er/u", field({6, 50, 400}),
            {.attrs = attrs, .dims = {"t", "y", "x"}, .chunks = {1, 64, 64}, .compression = 4});
  out.write("auto", field({40, 100, 100}), {.compression = 1});
  out.set_attr("title", std::string("a test"));
  out.set_attr("title", std::string("a better test"));
  out["auto"].set_attr("valid_min", -1.0);
  out.close();

  const File file = open(folder / "out.h5");
  const Dataset x = file["deep/er/u"];
  EXPECT_EQ(x.attrs(), attrs);
  EXPECT_EQ(x.dims(), (std::vector<std::string>{"t", "y", "x"}));
  EXPECT_EQ(x.chunks(), (std::vector<int64_t>{1, 50, 64}));
  EXPECT_EQ(x.filters(), (std::vector<std::string>{"shuffle", "gzip 4"}));
  EXPECT_TRUE(at::equal(x.read(), field({6, 50, 400})));
  EXPECT_EQ(file["auto"].chunks(), (std::vector<int64_t>{20, 100, 100}));
  EXPECT_EQ(std::get<double>(file["auto"].attr("valid_min")), -1.0);
  EXPECT_EQ(std::get<std::string>(file.attr("title")), "a better test");
}

TEST(Write, BlocksFillADataset) {
  const Folder folder;
  const at::Tensor x = field({7, 9});
  File out = open(folder / "out.h5", "w");

  for (const int compression : {0, 1}) {
    const Dataset made =
        out.create_dataset("x" + std::to_string(compression), {7, 9}, at::kDouble, {.compression = compression});
    made.write_block({0, 0}, x.slice(0, 0, 4));
    made.write_block({4, 0}, x.slice(0, 4).slice(1, 0, 5));
    made.write_block({4, 5}, x.slice(0, 4).slice(1, 5));
    EXPECT_TRUE(at::equal(made.read(), x.to(at::kDouble)));  // before the file is finished
    EXPECT_EQ(first_line(message_of([&] {
                made.write_block({4, 5}, x);
              })),
              "write_block: dataset \"" + made.name() + "\" of file \"" + out.path() +
                  "\": a block of shape [7, 9] at [4, 5] does not fit");
  }
  out.close();

  const File file = open(folder / "out.h5");
  EXPECT_TRUE(at::equal(file["x0"].read(), x.to(at::kDouble)));
  EXPECT_TRUE(at::equal(file["x1"].read(), x.to(at::kDouble)));
}

TEST(Write, AFileAppearsWhenItIsFinished) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  {
    File out = open(path, "w");
    out.write("x", at::zeros({3}));
    EXPECT_FALSE(std::filesystem::exists(path));
  }  // a file that is dropped is finished
  EXPECT_TRUE(at::equal(open(path)["x"].read(), at::zeros({3})));

  {
    File again = open(path, "w");
    again.write("x", at::ones({3}));
    again.discard();
  }
  EXPECT_TRUE(at::equal(open(path)["x"].read(), at::zeros({3})));

  const auto fail = [&] {
    File again = open(path, "w");
    again.write("x", at::ones({3}));
    throw std::runtime_error("the program failed");
  };
  EXPECT_EQ(message_of(fail), "the program failed");
  EXPECT_TRUE(at::equal(open(path)["x"].read(), at::zeros({3})));

  open(path, "w").close();
  EXPECT_TRUE(open(path).keys().empty());
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out.h5"});
}

TEST(Write, AppendingKeepsWhatIsThere) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  for (const char* name : {"a", "b"}) {
    File out = open(path, "a");
    out.write(name, at::full({4}, name[0]));
    out.close();
  }
  File out = open(path, "a");
  EXPECT_EQ(out.keys(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(first_line(message_of([&] { out.write("a", at::zeros({2})); })),
            "write: dataset \"a\" of file \"" + path + "\": it exists already");
  out.write("a", at::zeros({2}), {.replace = true});
  EXPECT_TRUE(at::equal(open(path)["a"].read(), at::full({4}, int64_t{'a'})));
  out.close();

  const File file = open(path);
  EXPECT_TRUE(at::equal(file["a"].read(), at::zeros({2})));
  EXPECT_TRUE(at::equal(file["b"].read(), at::full({4}, int64_t{'b'})));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out.h5"});
}

TEST(Write, AFullDiskHarmsNothing) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  File good = open(path, "w");
  good.write("x", at::ones({1000}));
  good.close();
  std::string plain, compressed, late, picture;

  {
    const FullDisk disk(64 << 10);
    plain = message_of([&] {
      File out = open(path, "a");
      out.write("y", at::zeros({100000}));
      out.close();
    });
    compressed = message_of([&] {
      File out = open(path, "w");
      for (int i = 0; i < 8; ++i) {
        out.write("y" + std::to_string(i), field({100, 100}), {.compression = 1});
      }
    });
    picture = message_of([&] {
      write_png(folder / "x.png", testing::make_tensor({300, 300, 3}, 1, at::kLong).to(at::kByte));
    });
  }
  {
    const FullDisk disk(256);
    late = message_of([&] {
      File out = open(path, "w");
      out.set_attr("title", std::string("kept in memory until the file is closed"));
      out.close();
    });
  }

  EXPECT_EQ(first_line(plain), "write: dataset \"y\" of file \"" + path + "\": cannot write it");
  EXPECT_NE(plain.find("\n  have  File too large\n  fix   raise the limit"), std::string::npos) << plain;
  EXPECT_EQ(first_line(compressed), "write: dataset \"y1\" of file \"" + path + "\": cannot write it");
  EXPECT_EQ(first_line(late), "close: file \"" + path + "\": cannot write it");
  EXPECT_EQ(first_line(picture), "write_png: the disk refused '" + (folder / "x.png") + "': File too large");
  EXPECT_EQ(folder.names(), std::vector<std::string>{"out.h5"});
  EXPECT_TRUE(at::equal(open(path)["x"].read(), at::ones({1000})));
}

TEST(Write, RefusesWithTheNameAndTheRemedy) {
  const Folder folder;
  const std::string path = folder / "out.h5";
  File out = open(path, "w");
  const auto write = [&](const at::Tensor& tensor, const WriteOptions& options) {
    return [&out, tensor, options] { out.write("x", tensor, options); };
  };
  const at::Tensor x = at::zeros({4, 5});
  const std::string start = "write: dataset \"x\" of file \"" + path + "\": ";
  const std::vector<std::pair<std::function<void()>, std::string>> cases = {
      {write({}, {}), start + "no tensor was given"},
      {write(at::zeros({2}, at::kComplexHalf), {}), start + "dtype ComplexHalf has no HDF5 type"},
      {write(at::zeros({2}, at::kBFloat16), {}), start + "dtype bfloat16 cannot be written"},
      {write(x, {.chunks = {4}}), start + "chunks [4] do not fit"},
      {write(x, {.chunks = {4, 0}}), start + "chunks [4, 0] do not fit"},
      {write(x, {.compression = 10}), start + "compression 10 is not a gzip level"},
      {write(x, {.dims = {"y"}}), start + "1 names for 2 dimensions"},
      {[&] { out.write("/", x); }, "write: dataset \"/\" of file \"" + path + "\": a dataset needs a name"},
      {[&] { out.set_attr("a", 1.0, "nothing"); },
       "set_attr: object \"nothing\" of file \"" + path + "\": it does not exist"},
      {[&] { open(folder / "no/out.h5", "w"); },
       "open: file \"" + (folder / "no/out.h5") + "\" cannot be written: its folder does not exist"},
      {[&] { open(folder / "", "w"); }, "open: \"" + (folder / "") + "\" is a folder"},
      {[&] {
         File closed = out;
         closed.discard();
         closed.write("x", x);
       },
       start + "the file is closed"},
  };
  for (const auto& [call, expected] : cases) {
    const std::string message = message_of(call);
    EXPECT_EQ(first_line(message), expected);
    EXPECT_NE(message.find("\n  have  "), std::string::npos) << message;
    EXPECT_NE(message.find("\n  fix   "), std::string::npos) << message;
  }
}

TEST(Png, HoldsThePixelsGiven) {
  const Folder folder;
  const std::string path = folder / "x.png";
  const at::Tensor image = at::arange(5 * 7 * 3).view({5, 3, 7}).mul(2).to(at::kByte).transpose(1, 2);

  write_png(path, image);

  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  ASSERT_TRUE(png_image_begin_read_from_file(&header, path.c_str()));
  header.format = PNG_FORMAT_RGB;
  at::Tensor read = at::empty({header.height, header.width, 3}, at::kByte);
  ASSERT_TRUE(png_image_finish_read(&header, nullptr, read.mutable_data_ptr(), 0, nullptr));
  EXPECT_TRUE(at::equal(read, image));
  EXPECT_EQ(folder.names(), std::vector<std::string>{"x.png"});
}

TEST(Png, RefusesWhatIsNoPicture) {
  const Folder folder;
  const std::string start = "write_png: file \"" + (folder / "x.png") + "\": ";
  const auto message = [&](const at::Tensor& image) {
    return first_line(message_of([&] { write_png(folder / "x.png", image); }));
  };

  EXPECT_EQ(message(at::zeros({4, 4, 3})), start + "the image is not uint8");
  EXPECT_EQ(message(at::zeros({4, 4}, at::kByte)), start + "the image is not [height, width, 3]");
  EXPECT_EQ(message(at::zeros({4, 4, 4}, at::kByte)), start + "the image is not [height, width, 3]");
  EXPECT_EQ(first_line(message_of([&] {
              write_png(folder / "no/x.png", at::zeros({4, 4, 3}, at::kByte));
            })),
            "write_png: file \"" + (folder / "no/x.png") + "\": its folder does not exist");
}

}  // namespace
}  // namespace moonhalo::io::test_write
