// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/scripting/plot/canvas.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include "moonhalo/engine/forecast/fake_tensor.h"

namespace moonhalo::scripting {

namespace {

/// The part of the pixel [i, i + 1] that is in [low, high].
float overlap(float i, float low, float high) {
  return std::clamp(std::min(i + 1, high) - std::max(i, low), 0.0f, 1.0f);
}

float distance(Point p, Point a, Point b) {
  const float dx = b.x - a.x, dy = b.y - a.y;
  const float length2 = dx * dx + dy * dy;
  float t = length2 > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length2 : 0;
  t = std::clamp(t, 0.0f, 1.0f);
  return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

struct Window {
  int64_t x0, y0, x1, y1;  ///< pixels, the last ones excluded
  int64_t width() const { return x1 - x0; }
  bool empty() const { return x0 >= x1 || y0 >= y1; }
};

Window pixels_of(Rectangle area, Rectangle clip, int64_t width, int64_t height) {
  const auto low = [](float a, float b) { return static_cast<int64_t>(std::floor(std::max({a, b, 0.0f}))); };
  const auto high = [](float a, float b, int64_t limit) {
    return static_cast<int64_t>(std::ceil(std::min({a, b, static_cast<float>(limit)})));
  };
  return {low(area.x0, clip.x0), low(area.y0, clip.y0), high(area.x1, clip.x1, width), high(area.y1, clip.y1, height)};
}

}  // namespace

Canvas::Canvas(int64_t width, int64_t height, Color background)
    : width_(width), height_(height), clip_{0, 0, static_cast<float>(width), static_cast<float>(height)} {
  TORCH_CHECK_VALUE(width > 0 && height > 0 && width <= 20000 && height <= 20000, "canvas: a picture of ", width, " x ",
                    height, " pixels");
  pixels_.assign(width * height, background);
}

void Canvas::blend(int64_t x, int64_t y, Color color, float coverage) {
  Color& pixel = pixels_[y * width_ + x];
  for (size_t c = 0; c < 3; ++c) pixel[c] += (color[c] - pixel[c]) * coverage;
}

void Canvas::fill(Rectangle area, Color color, float opacity) {
  const Window window = pixels_of(area, clip_, width_, height_);
  for (int64_t y = window.y0; y < window.y1; ++y) {
    const float rows = overlap(static_cast<float>(y), area.y0, area.y1);
    for (int64_t x = window.x0; x < window.x1; ++x) {
      blend(x, y, color, opacity * rows * overlap(static_cast<float>(x), area.x0, area.x1));
    }
  }
}

void Canvas::stroke(const std::vector<Polyline>& lines, float pen, Color color, float opacity) {
  const float reach = pen / 2 + 1;
  Rectangle bounds{1e9f, 1e9f, -1e9f, -1e9f};
  for (const Polyline& line : lines) {
    for (const Point p : line) {
      if (!std::isfinite(p.x) || !std::isfinite(p.y)) continue;
      bounds = {std::min(bounds.x0, p.x - reach), std::min(bounds.y0, p.y - reach), std::max(bounds.x1, p.x + reach),
                std::max(bounds.y1, p.y + reach)};
    }
  }
  const Window all = pixels_of(bounds, clip_, width_, height_);
  if (all.empty()) return;
  std::vector<float> mask(all.width() * (all.y1 - all.y0), 0.0f);
  const auto segment = [&](Point a, Point b) {
    const Rectangle box{std::min(a.x, b.x) - reach, std::min(a.y, b.y) - reach, std::max(a.x, b.x) + reach,
                        std::max(a.y, b.y) + reach};
    const Window window = pixels_of(box, clip_, width_, height_);
    for (int64_t y = window.y0; y < window.y1; ++y) {
      for (int64_t x = window.x0; x < window.x1; ++x) {
        const float d = distance({static_cast<float>(x) + 0.5f, static_cast<float>(y) + 0.5f}, a, b);
        const float covered = std::clamp(pen / 2 + 0.5f - d, 0.0f, 1.0f) * std::min(pen, 1.0f);
        float& mark = mask[(y - all.y0) * all.width() + x - all.x0];
        mark = std::max(mark, covered);
      }
    }
  };
  for (const Polyline& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      const Point a = line[i], b = i + 1 < line.size() ? line[i + 1] : a;
      if (!std::isfinite(a.x + a.y) || !std::isfinite(b.x + b.y)) continue;
      if (i + 1 < line.size() || line.size() == 1) segment(a, b);
    }
  }
  for (int64_t y = all.y0; y < all.y1; ++y) {
    for (int64_t x = all.x0; x < all.x1; ++x) {
      const float covered = mask[(y - all.y0) * all.width() + x - all.x0];
      if (covered > 0) blend(x, y, color, covered * opacity);
    }
  }
}

void Canvas::draw(const at::Tensor& image, Rectangle area) {
  TORCH_CHECK_VALUE(image.dim() == 3 && image.size(2) == 3 && image.scalar_type() == at::kByte && image.numel() > 0,
                    "canvas: an image is uint8 [height, width, 3], have ", image.scalar_type(), " ", image.sizes());
  check_computed(image, "canvas: the image");
  const at::Tensor bytes = image.cpu().contiguous();
  const uint8_t* data = bytes.const_data_ptr<uint8_t>();
  const int64_t rows = bytes.size(0), columns = bytes.size(1);
  const Window window = pixels_of(area, clip_, width_, height_);
  for (int64_t y = window.y0; y < window.y1; ++y) {
    const float down = (static_cast<float>(y) + 0.5f - area.y0) / (area.y1 - area.y0);
    const int64_t row = std::clamp(static_cast<int64_t>(down * static_cast<float>(rows)), int64_t{0}, rows - 1);
    for (int64_t x = window.x0; x < window.x1; ++x) {
      const float along = (static_cast<float>(x) + 0.5f - area.x0) / (area.x1 - area.x0);
      const int64_t column =
          std::clamp(static_cast<int64_t>(along * static_cast<float>(columns)), int64_t{0}, columns - 1);
      const uint8_t* element = data + (row * columns + column) * 3;
      const float covered =
          overlap(static_cast<float>(y), area.y0, area.y1) * overlap(static_cast<float>(x), area.x0, area.x1);
      blend(x, y, {element[0] / 255.0f, element[1] / 255.0f, element[2] / 255.0f}, covered);
    }
  }
}

at::Tensor Canvas::picture() const {
  at::Tensor picture = at::empty({height_, width_, 3}, at::kByte);
  uint8_t* out = picture.mutable_data_ptr<uint8_t>();
  for (const Color& pixel : pixels_) {
    for (const float value : pixel) *out++ = static_cast<uint8_t>(std::lround(std::clamp(value, 0.0f, 1.0f) * 255));
  }
  return picture;
}

}  // namespace moonhalo::scripting
