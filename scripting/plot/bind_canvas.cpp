// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "moonhalo/scripting/core/binding.h"
#include "moonhalo/scripting/plot/canvas.h"

namespace moonhalo::scripting {

template <>
inline constexpr const char* kObjectName<Canvas> = "Canvas";

namespace {

Color check_color(lua_State* lua, int index) {
  const std::string text = check_string(lua, index);
  if (text.size() != 7 || text[0] != '#' || text.find_first_not_of("0123456789abcdefABCDEF", 1) != std::string::npos) {
    argument_error(lua, index, "a color such as \"#1f77b4\"");
  }
  Color color;
  for (size_t c = 0; c < 3; ++c) color[c] = static_cast<float>(std::stoi(text.substr(1 + 2 * c, 2), nullptr, 16)) / 255;
  return color;
}

float check_float(lua_State* lua, int index) { return static_cast<float>(check_number(lua, index)); }

Rectangle check_rectangle(lua_State* lua, int index) {
  return {check_float(lua, index), check_float(lua, index + 1), check_float(lua, index + 2),
          check_float(lua, index + 3)};
}

/// mh.canvas(width, height, background) -> Canvas
///   A picture to draw on; x counts to the right and y down, in pixels from the upper left corner. mh.plot draws on
///   these.
///   width       integer     pixels
///   height      integer     pixels
///   background   string     a colour such as "#ffffff"
///   returns     Canvas      write it by mh.files.write_png(path, canvas:picture())
///   collective  no
///   errors      ValueError: a size or a colour that cannot be
///   example
///     mh.canvas(20, 10, "#ffffff"):picture().shape    --> {10, 20, 3}
int make(lua_State* lua) {
  push_object(lua, std::make_shared<Canvas>(check_int(lua, 1), check_int(lua, 2), check_color(lua, 3)));
  return 1;
}

/// canvas:clip(...) -> nothing
///   Limits what follows to a rectangle: canvas:clip(x0, y0, x1, y1). Without arguments it is the whole picture.
///   returns     nothing
///   collective  no
///   example
///     local canvas = mh.canvas(4, 4, "#ffffff")
///     canvas:clip(0, 0, 2, 4)
///     canvas:fill(0, 0, 4, 4, "#000000")
///     canvas:picture():select(2, 0):tolist()[1]    --> {0, 0, 255, 255}
int clip(lua_State* lua) {
  const auto canvas = check_object<Canvas>(lua, 1);
  canvas->set_clip(is_nil(lua, 2)
                       ? Rectangle{0, 0, static_cast<float>(canvas->width()), static_cast<float>(canvas->height())}
                       : check_rectangle(lua, 2));
  return 0;
}

/// canvas:fill(x0, y0, x1, y1, color, opacity = 1) -> nothing
///   Fills a rectangle.
///   x0          number      left edge
///   y0          number      upper edge
///   x1          number      right edge
///   y1          number      lower edge
///   color       string      such as "#1f77b4"
///   opacity     number      from 0 to 1
///   returns     nothing
///   collective  no
///   example
///     local canvas = mh.canvas(2, 2, "#ffffff")
///     canvas:fill(0, 0, 2, 2, "#0000ff")
///     canvas:picture()["0, 0"]:tolist()    --> {0, 0, 255}
int fill(lua_State* lua) {
  check_object<Canvas>(lua, 1)->fill(check_rectangle(lua, 2), check_color(lua, 6),
                                     is_nil(lua, 7) ? 1.0f : check_float(lua, 7));
  return 0;
}

/// canvas:line(points, pen, color, opacity = 1) -> nothing
///   Draws a line through points; NaN interrupts it.
///   points      {number}    {x, y, x, y, ...}
///   pen         number      width in pixels
///   color       string      such as "#1f77b4"
///   opacity     number      from 0 to 1
///   returns     nothing
///   collective  no
///   example
///     local canvas = mh.canvas(9, 9, "#ffffff")
///     canvas:line({0, 4.5, 9, 4.5}, 3, "#000000")
///     canvas:picture()["4, 4"]:tolist()    --> {0, 0, 0}
int line(lua_State* lua) {
  const auto canvas = check_object<Canvas>(lua, 1);
  const std::vector<double> numbers = check_number_list(lua, 2);
  std::vector<Polyline> lines(1);
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) {
    if (std::isfinite(numbers[i]) && std::isfinite(numbers[i + 1])) {
      lines.back().push_back({static_cast<float>(numbers[i]), static_cast<float>(numbers[i + 1])});
    } else if (!lines.back().empty()) {
      lines.emplace_back();
    }
  }
  canvas->stroke(lines, check_float(lua, 3), check_color(lua, 4), is_nil(lua, 5) ? 1.0f : check_float(lua, 5));
  return 0;
}

/// canvas:text(x, y, text, size, color, align = 0, upwards = false, pen = nil) -> nothing
///   Writes a string whose baseline goes through (x, y).
///   x           number      where the part `align` of its width is
///   y           number      the baseline
///   text        string      what is written
///   size        number      height of capital letters in pixels
///   color       string      such as "#1f77b4"
///   align       number      0 for the left end at x, 0.5 for the middle, 1 for the right end
///   upwards     boolean     turns it by a quarter
///   pen         number?     width of the lines in pixels
///   returns     nothing
///   collective  no
///   example
///     local canvas = mh.canvas(40, 20, "#ffffff")
///     canvas:text(2, 15, "m", 10, "#000000")
///     canvas:picture():min():item() < 255    --> true
int text(lua_State* lua) {
  const auto canvas = check_object<Canvas>(lua, 1);
  const float x = check_float(lua, 2), y = check_float(lua, 3), size = check_float(lua, 5);
  Text laid_out = lay_out_text(check_string(lua, 4), size);
  const float shift = (is_nil(lua, 7) ? 0 : check_float(lua, 7)) * laid_out.width;
  const bool upwards = !is_nil(lua, 8) && check_bool(lua, 8);
  const float pen = is_nil(lua, 9) ? std::max(1.0f, size * 0.115f) : check_float(lua, 9);
  for (Polyline& stroke : laid_out.strokes) {
    for (Point& p : stroke) p = upwards ? Point{x + p.y, y - (p.x - shift)} : Point{x + p.x - shift, y + p.y};
  }
  canvas->stroke(laid_out.strokes, pen, check_color(lua, 6));
  return 0;
}

/// canvas:image(tensor, x0, y0, x1, y1) -> nothing
///   Draws a picture into a rectangle.
///   tensor      Tensor      uint8 [rows, columns, 3]
///   x0          number      left edge
///   y0          number      upper edge
///   x1          number      right edge
///   y1          number      lower edge
///   returns     nothing
///   collective  no
///   errors      ValueError: another shape or dtype
///   example
///     local canvas = mh.canvas(4, 4, "#ffffff")
///     canvas:image(mh.zeros({2, 2, 3}, {dtype = "uint8"}), 0, 0, 4, 4)
///     canvas:picture():max():item()    --> 0
int image(lua_State* lua) {
  check_object<Canvas>(lua, 1)->draw(check_tensor(lua, 2), check_rectangle(lua, 3));
  return 0;
}

/// canvas:picture() -> Tensor
///   What was drawn.
///   returns     Tensor      uint8 [height, width, 3], for mh.files.write_png
///   collective  no
///   example
///     mh.canvas(3, 2, "#102030"):picture()["0, 0"]:tolist()    --> {16, 32, 48}
int picture(lua_State* lua) {
  push(lua, check_object<Canvas>(lua, 1)->picture());
  return 1;
}

/// mh.text_width(text, size) -> number
///   The width of a string that canvas:text writes.
///   text        string      what is measured
///   size        number      height of capital letters in pixels
///   returns     number      pixels
///   collective  no
///   example
///     mh.text_width("mm", 10) > mh.text_width("m", 10)    --> true
int text_width(lua_State* lua) {
  push(lua, static_cast<double>(lay_out_text(check_string(lua, 1), check_float(lua, 2)).width));
  return 1;
}

const luaL_Reg methods[] = {
    {"clip", guard<clip>},   {"fill", guard<fill>},       {"line", guard<line>}, {"text", guard<text>},
    {"image", guard<image>}, {"picture", guard<picture>}, {nullptr, nullptr},
};
const luaL_Reg functions[] = {{"canvas", guard<make>}, {"text_width", guard<text_width>}, {nullptr, nullptr}};

const Binding binding("canvas", [](lua_State* lua) {
  define_object<Canvas>(lua, methods);
  add_functions(lua, functions);
});

}  // namespace

}  // namespace moonhalo::scripting
