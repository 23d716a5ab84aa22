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

/// canvas(width, height, background)
int make(lua_State* lua) {
  push_object(lua, std::make_shared<Canvas>(check_int(lua, 1), check_int(lua, 2), check_color(lua, 3)));
  return 1;
}

/// clip(x0, y0, x1, y1), or clip() for the whole picture
int clip(lua_State* lua) {
  const auto canvas = check_object<Canvas>(lua, 1);
  canvas->set_clip(is_nil(lua, 2)
                       ? Rectangle{0, 0, static_cast<float>(canvas->width()), static_cast<float>(canvas->height())}
                       : check_rectangle(lua, 2));
  return 0;
}

/// fill(x0, y0, x1, y1, color, [opacity])
int fill(lua_State* lua) {
  check_object<Canvas>(lua, 1)->fill(check_rectangle(lua, 2), check_color(lua, 6),
                                     is_nil(lua, 7) ? 1.0f : check_float(lua, 7));
  return 0;
}

/// line({x, y, x, y, ...}, pen, color, [opacity]); NaN breaks the line.
int line(lua_State* lua) {
  const std::vector<double> numbers = check_number_list(lua, 2);
  std::vector<Polyline> lines(1);
  for (size_t i = 0; i + 1 < numbers.size(); i += 2) {
    if (std::isfinite(numbers[i]) && std::isfinite(numbers[i + 1])) {
      lines.back().push_back({static_cast<float>(numbers[i]), static_cast<float>(numbers[i + 1])});
    } else if (!lines.back().empty()) {
      lines.emplace_back();
    }
  }
  check_object<Canvas>(lua, 1)->stroke(lines, check_float(lua, 3), check_color(lua, 4),
                                       is_nil(lua, 5) ? 1.0f : check_float(lua, 5));
  return 0;
}

/// text(x, y, text, size, color, [align 0..1], [upwards], [pen]): the baseline's point at `align` of the width is (x,
/// y); upwards turns it by a quarter.
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

/// image(tensor, x0, y0, x1, y1): uint8 [rows, columns, 3]
int image(lua_State* lua) {
  check_object<Canvas>(lua, 1)->draw(check_tensor(lua, 2), check_rectangle(lua, 3));
  return 0;
}

int picture(lua_State* lua) {
  push(lua, check_object<Canvas>(lua, 1)->picture());
  return 1;
}

/// text_width(text, size)
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
