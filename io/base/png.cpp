// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/base/png.h"

#include <ATen/ATen.h>
#include <png.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <string>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/engine/forecast/fake_tensor.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/io/base/h5_types.h"
#include "moonhalo/io/base/new_file.h"

namespace moonhalo::io {

void check_png_name(const std::string& what, const std::string& path) {
  static const std::set<std::string> kOthers = {".avif", ".bmp", ".eps", ".gif",  ".jpeg", ".jpg",
                                                ".pdf",  ".ps",  ".svg", ".tiff", ".tif",  ".webp"};
  const std::filesystem::path name(path);
  std::string end = name.extension().string();
  std::transform(end.begin(), end.end(), end.begin(), [](unsigned char c) { return std::tolower(c); });
  TORCH_CHECK_VALUE(!kOthers.contains(end), what, ": pictures are PNG files, not ", end.substr(1), "\n  have  '", path,
                    "'\n  fix   name it '", std::filesystem::path(name).replace_extension(".png").string(), "'");
}

void write_png(const std::string& path, const at::Tensor& image) {
  check_png_name("write_png", path);
  TORCH_CHECK_TYPE(image.scalar_type() == at::kByte, "write_png: file \"", path,
                   "\": the image is not uint8\n  have  dtype ", h5::dtype_name(image.scalar_type()),
                   "\n  fix   scale it to 0 .. 255 and convert it to uint8");
  TORCH_CHECK_VALUE(image.dim() == 3 && image.size(2) == 3 && image.numel() > 0, "write_png: file \"", path,
                    "\": the image is not [height, width, 3]\n  have  ", shape_string(image.sizes()),
                    "\n  fix   give red, green and blue in the last dim");
  check_computed(image, "write_png: file \"" + path + "\": the image");
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder), "write_png: file \"", path,
                    "\": its folder does not exist\n  have  ", folder.string(), "\n  fix   make the folder first");
  const at::Tensor pixels = image.to(at::kCPU).contiguous();

  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.size(1));
  header.height = static_cast<png_uint_32>(image.size(0));
  header.format = PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::string text(bytes, '\0');
  const bool done =
      png_image_write_to_memory(&header, text.data(), &bytes, 0, pixels.const_data_ptr(), 0, nullptr) != 0;
  TORCH_CHECK(done, "write_png: file \"", path, "\": cannot write it\n  have  ", header.message,
              "\n  fix   free space or choose another folder");
  NewFile file("write_png", path);
  file.write(text.data(), bytes);
  file.finish();
}

}  // namespace moonhalo::io
