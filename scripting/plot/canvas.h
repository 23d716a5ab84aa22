// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace moonhalo::scripting {

/// A point in pixels: x to the right, y downwards, pixel centres at halves.
struct Point {
  float x, y;
};
using Polyline = std::vector<Point>;
using Color = std::array<float, 3>;  ///< red, green, blue, 0 to 1

struct Rectangle {
  float x0, y0, x1, y1;
};

/// A picture to draw on, anti-aliased. Coordinates may be outside.
class Canvas {
 public:
  Canvas(int64_t width, int64_t height, Color background);

  int64_t width() const { return width_; }
  int64_t height() const { return height_; }

  /// Only what is inside is drawn from now on.
  void set_clip(Rectangle clip) { clip_ = clip; }
  void fill(Rectangle area, Color color, float opacity = 1);
  /// Strokes with round ends and joints; where strokes of one call overlap, they count once.
  void stroke(const std::vector<Polyline>& lines, float pen, Color color, float opacity = 1);
  /// `image` is uint8 [height, width, 3], row 0 on top: each element becomes a rectangle of the area.
  void draw(const at::Tensor& image, Rectangle area);

  /// uint8 [height, width, 3].
  at::Tensor picture() const;

 private:
  void blend(int64_t x, int64_t y, Color color, float coverage);

  int64_t width_, height_;
  Rectangle clip_;
  std::vector<Color> pixels_;
};

/// Text in strokes: a plain geometric face made for this, ASCII and a few signs (degree, micro, times, minus, Greek
/// capital delta, superscript 2 and 3). A character that it lacks is a box.
struct Text {
  std::vector<Polyline> strokes;  ///< the baseline starts at (0, 0), y downwards
  float width;
};
/// `size` is the height of a capital letter, in pixels.
Text lay_out_text(std::string_view utf8, float size);

}  // namespace moonhalo::scripting
