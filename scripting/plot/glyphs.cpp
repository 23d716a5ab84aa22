// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>

#include "moonhalo/scripting/plot/canvas.h"

namespace moonhalo::scripting {

namespace {

/// Strokes on a grid where capitals are 10 high, small letters 7, and y points up from the baseline.
/// "L x y x y ..." is a line through points; "A cx cy rx ry a b" an arc of an ellipse from angle a to b, in degrees.
struct Glyph {
  char32_t character;
  float width;
  const char* path;
};

constexpr Glyph kGlyphs[] = {
    {U' ', 2.6f, ""},
    {U'A', 8, "L 0 0 4 10 8 0 L 1.35 3.4 6.65 3.4"},
    {U'B', 6.8f, "L 4 5.3 0 5.3 L 3.9 10 0 10 0 0 4.1 0 A 3.9 7.65 2.4 2.35 90 -90 A 4.1 2.65 2.7 2.65 90 -90"},
    {U'C', 8.2f, "A 4.7 5 4.7 5 48 312"},
    {U'D', 7.8f, "L 3 10 0 10 0 0 3 0 A 3 5 4.8 5 90 -90"},
    {U'E', 5.8f, "L 5.8 10 0 10 0 0 5.8 0 L 0 5.2 5 5.2"},
    {U'F', 5.6f, "L 5.6 10 0 10 0 0 L 0 5 4.8 5"},
    {U'G', 9, "A 4.6 5 4.6 5 48 352 L 9.15 4.5 5.4 4.5"},
    {U'H', 7.2f, "L 0 0 0 10 L 7.2 0 7.2 10 L 0 5.2 7.2 5.2"},
    {U'I', 0, "L 0 0 0 10"},
    {U'J', 4.8f, "L 4.8 10 4.8 2.6 A 2.4 2.6 2.4 2.6 0 -160"},
    {U'K', 6.6f, "L 0 0 0 10 L 6.4 10 0 3.8 L 2.3 6 6.6 0"},
    {U'L', 5.4f, "L 0 10 0 0 5.4 0"},
    {U'M', 9, "L 0 0 0 10 4.5 2.4 9 10 9 0"},
    {U'N', 7.4f, "L 0 0 0 10 7.4 0 7.4 10"},
    {U'O', 9.4f, "A 4.7 5 4.7 5 0 360"},
    {U'P', 6.6f, "L 0 0 0 10 3.7 10 A 3.7 7.2 2.9 2.8 90 -90 L 3.7 4.4 0 4.4"},
    {U'Q', 9.4f, "A 4.7 5 4.7 5 0 360 L 5.8 2.6 9 -0.7"},
    {U'R', 6.8f, "L 0 0 0 10 3.7 10 A 3.7 7.2 2.9 2.8 90 -90 L 3.7 4.4 0 4.4 L 3.3 4.4 6.8 0"},
    {U'S', 6.8f, "A 3.4 7.55 3 2.45 35 270 A 3.4 2.55 3.4 2.55 90 -145"},
    {U'T', 7.4f, "L 0 10 7.4 10 L 3.7 10 3.7 0"},
    {U'U', 7.2f, "L 0 10 0 3.6 A 3.6 3.6 3.6 3.6 180 360 L 7.2 3.6 7.2 10"},
    {U'V', 8, "L 0 10 4 0 8 10"},
    {U'W', 11, "L 0 10 2.8 0 5.5 9 8.2 0 11 10"},
    {U'X', 7, "L 0 0 7 10 L 0 10 7 0"},
    {U'Y', 7.4f, "L 0 10 3.7 4.8 7.4 10 L 3.7 4.8 3.7 0"},
    {U'Z', 6.8f, "L 0.2 10 6.8 10 0 0 6.8 0"},
    {U'a', 6, "A 3 3.5 3 3.5 0 360 L 6 7 6 0"},
    {U'b', 6, "L 0 10 0 0 A 3 3.5 3 3.5 0 360"},
    {U'c', 5.3f, "A 3.1 3.5 3.1 3.5 48 312"},
    {U'd', 6, "A 3 3.5 3 3.5 0 360 L 6 10 6 0"},
    {U'e', 6, "L 0 3.6 6 3.6 A 3 3.5 3 3.5 2 312"},
    {U'f', 3.5f, "A 3.2 8.1 1.9 1.9 80 180 L 1.3 8.1 1.3 0 L 0 6.8 3.2 6.8"},
    {U'g', 6, "A 3 3.5 3 3.5 0 360 L 6 7 6 -0.2 A 3 -0.2 3 2.8 0 -150"},
    {U'h', 5.6f, "L 0 10 0 0 A 2.8 4.2 2.8 2.8 180 0 L 5.6 4.2 5.6 0"},
    {U'i', 0, "L 0 7 0 0 L 0 9.7 0 9.75"},
    {U'j', 1.4f, "L 1.4 7 1.4 -1.2 A -0.2 -1.2 1.6 1.8 0 -80 L 1.4 9.7 1.4 9.75"},
    {U'k', 5, "L 0 10 0 0 L 4.8 7 0 2.5 L 1.9 4.2 5 0"},
    {U'l', 0, "L 0 10 0 0"},
    {U'm', 9.2f, "L 0 7 0 0 A 2.3 4.6 2.3 2.4 180 0 L 4.6 4.6 4.6 0 A 6.9 4.6 2.3 2.4 180 0 L 9.2 4.6 9.2 0"},
    {U'n', 5.6f, "L 0 7 0 0 A 2.8 4.2 2.8 2.8 180 0 L 5.6 4.2 5.6 0"},
    {U'o', 6.2f, "A 3.1 3.5 3.1 3.5 0 360"},
    {U'p', 6, "L 0 7 0 -3 A 3 3.5 3 3.5 0 360"},
    {U'q', 6, "A 3 3.5 3 3.5 0 360 L 6 7 6 -3"},
    {U'r', 3.3f, "L 0 7 0 0 A 2.8 4.1 2.8 2.9 180 78"},
    {U's', 4.6f, "A 2.3 5.2 2 1.8 38 270 A 2.3 1.7 2.3 1.7 90 -148"},
    {U't', 3.3f, "L 1.3 9.2 1.3 1.8 A 3.1 1.8 1.8 1.8 180 275 L 0 6.8 3.2 6.8"},
    {U'u', 5.6f, "L 0 7 0 2.8 A 2.8 2.8 2.8 2.8 180 360 L 5.6 7 5.6 0"},
    {U'v', 5.6f, "L 0 7 2.8 0 5.6 7"},
    {U'w', 8.4f, "L 0 7 2.1 0 4.2 6.4 6.3 0 8.4 7"},
    {U'x', 5.2f, "L 0 0 5.2 7 L 0 7 5.2 0"},
    {U'y', 5.6f, "L 0 7 2.8 0 L 5.6 7 1.6 -3"},
    {U'z', 4.9f, "L 0.1 7 4.9 7 0 0 4.9 0"},
    {U'0', 6, "A 3 5 3 5 0 360"},
    {U'1', 6, "L 1.2 8.1 3.6 10 3.6 0"},
    {U'2', 6, "A 3 7.1 2.8 2.9 165 -32 L 5.37 5.56 0 0 6 0"},
    {U'3', 6, "A 2.9 7.55 2.6 2.45 150 -90 A 2.9 2.55 3 2.55 90 -150"},
    {U'4', 6.2f, "L 4.7 0 4.7 10 0 3 6.2 3"},
    {U'5', 6, "L 5.4 10 1 10 0.6 5.35 A 2.9 3.2 3.1 3.2 138 -148"},
    {U'6', 6, "A 3 3.1 3 3.1 0 360 L 0.35 4.7 4 10"},
    {U'7', 6, "L 0 10 6 10 2.2 0"},
    {U'8', 6, "A 3 7.6 2.5 2.4 0 360 A 3 2.6 3 2.6 0 360"},
    {U'9', 6, "A 3 6.9 3 3.1 0 360 L 5.65 5.3 2 0"},
    {U'.', 0.2f, "L 0.1 0.1 0.1 0.15"},
    {U',', 0.6f, "L 0.5 0.3 0 -1.8"},
    {U':', 0.2f, "L 0.1 0.3 0.1 0.35 L 0.1 5.9 0.1 5.95"},
    {U';', 0.6f, "L 0.5 0.3 0 -1.8 L 0.5 5.9 0.5 5.95"},
    {U'!', 0.2f, "L 0.1 10 0.1 3 L 0.1 0.1 0.1 0.15"},
    {U'?', 4.8f, "A 2.4 7.6 2.4 2.4 170 -45 L 4.1 5.9 2.4 4.2 2.4 2.8 L 2.4 0.1 2.4 0.15"},
    {U'-', 3.6f, "L 0 3.9 3.6 3.9"},
    {U'\u2212', 5.6f, "L 0 4 5.6 4"},
    {U'\u2013', 5, "L 0 3.9 5 3.9"},
    {U'+', 5.6f, "L 0 4 5.6 4 L 2.8 1.2 2.8 6.8"},
    {U'=', 5.6f, "L 0 5.3 5.6 5.3 L 0 2.7 5.6 2.7"},
    {U'*', 4, "L 2 9.8 2 5.4 L 0.1 8.7 3.9 6.5 L 0.1 6.5 3.9 8.7"},
    {U'/', 4.4f, "L 0 -1.5 4.4 11"},
    {U'\\', 4.4f, "L 0 11 4.4 -1.5"},
    {U'|', 0, "L 0 -2.5 0 11"},
    {U'(', 2, "A 6.6 4.2 6.6 9 148 212"},
    {U')', 2, "A -4.6 4.2 6.6 9 32 -32"},
    {U'[', 1.9f, "L 1.9 11 0 11 0 -2 1.9 -2"},
    {U']', 1.9f, "L 0 11 1.9 11 1.9 -2 0 -2"},
    {U'{', 2.6f, "L 2.6 11 1.6 10.6 1.4 9.6 1.4 6 1 5 0 4.5 1 4 1.4 3 1.4 -0.6 1.6 -1.6 2.6 -2"},
    {U'}', 2.6f, "L 0 11 1 10.6 1.2 9.6 1.2 6 1.6 5 2.6 4.5 1.6 4 1.2 3 1.2 -0.6 1 -1.6 0 -2"},
    {U'<', 5, "L 5 7.4 0 4 5 0.6"},
    {U'>', 5, "L 0 7.4 5 4 0 0.6"},
    {U'%', 8.4f, "A 1.8 7.9 1.8 2.1 0 360 A 6.6 2.1 1.8 2.1 0 360 L 1.2 0 7.2 10"},
    {U'^', 4.4f, "L 0 7 2.2 10 4.4 7"},
    {U'_', 5.6f, "L 0 -1.6 5.6 -1.6"},
    {U'~', 5.8f, "A 1.45 3.6 1.45 1.1 180 0 A 4.35 3.6 1.45 1.1 180 360"},
    {U'\'', 0, "L 0 10 0 7.4"},
    {U'"', 1.8f, "L 0 10 0 7.4 L 1.8 10 1.8 7.4"},
    {U'`', 1.6f, "L 0 10 1.6 8.2"},
    {U'#', 6.8f, "L 1.2 0 2.6 10 L 4.2 0 5.6 10 L 0.2 6.8 6.8 6.8 L 0 3.2 6.6 3.2"},
    {U'$', 6, "A 3 7.1 2.7 1.9 35 270 A 3 3.1 3 2.1 90 -145 L 3 10.6 3 -0.6"},
    {U'&', 7.2f,
     "L 7.2 0 1.6 6.9 A 3 8.2 1.9 1.8 222 -40 L 4.45 7.05 1.2 4.3 A 2.7 2.35 2.5 2.35 125 335 L 5 "
     "1.4 6.9 4.4"},
    {U'@', 9.6f, "A 4.8 4 4.8 5 -50 300 A 4.8 4 2.1 2.4 0 360 L 6.9 6.4 6.9 3 A 8.2 3 1.3 1.4 180 330"},
    {U'\u00b0', 2.8f, "A 1.4 8.5 1.4 1.5 0 360"},
    {U'\u00b5', 5.6f, "L 0 7 0 -3 L 0 2.8 0 2.7 A 2.8 2.8 2.8 2.8 180 360 L 5.6 7 5.6 0"},
    {U'\u00d7', 4.8f, "L 0 1.6 4.8 6.4 L 0 6.4 4.8 1.6"},
    {U'\u00b7', 0.2f, "L 0.1 4 0.1 4.05"},
    {U'\u00b1', 5.6f, "L 0 5 5.6 5 L 2.8 2.2 2.8 7.8 L 0 0.4 5.6 0.4"},
    {U'\u0394', 8, "L 0 0 4 10 8 0 0 0"},
    {U'\u00b2', 3.6f, "A 1.8 9.26 1.68 1.74 165 -32 L 3.22 8.34 0 5 3.6 5"},
    {U'\u00b3', 3.6f, "A 1.74 9.53 1.56 1.47 150 -90 A 1.74 6.53 1.8 1.53 90 -150"},
    {U'\u207b', 3.4f, "L 0 7.4 3.4 7.4"},
    {U'\u00b9', 2.4f, "L 0 9.86 1.44 11 1.44 5"},
};

constexpr const char* kMissing = "L 0 0 0 10 6 10 6 0 0 0";
constexpr float kMissingWidth = 6;
constexpr float kGap = 2.5f;  // between two characters
constexpr float kPi = 3.14159265f;

std::vector<Polyline> parse(const char* path) {
  std::vector<Polyline> strokes;
  std::istringstream words(path);
  std::string word;
  char command = 0;
  std::vector<float> numbers;
  const auto finish = [&] {
    Polyline stroke;
    if (command == 'L') {
      for (size_t i = 0; i + 1 < numbers.size(); i += 2) stroke.push_back({numbers[i], numbers[i + 1]});
    } else if (command == 'A') {
      const int pieces = std::max(4, static_cast<int>(std::abs(numbers[5] - numbers[4]) / 12));
      for (int i = 0; i <= pieces; ++i) {
        const float angle =
            (numbers[4] + (numbers[5] - numbers[4]) * static_cast<float>(i) / static_cast<float>(pieces)) * kPi / 180;
        stroke.push_back({numbers[0] + numbers[2] * std::cos(angle), numbers[1] + numbers[3] * std::sin(angle)});
      }
    }
    if (!stroke.empty()) strokes.push_back(stroke);
    numbers.clear();
  };
  while (words >> word) {
    if (word == "L" || word == "A") {
      finish();
      command = word[0];
    } else {
      numbers.push_back(std::stof(word));
    }
  }
  finish();
  return strokes;
}

struct Shape {
  float width;
  std::vector<Polyline> strokes;
};

const Shape& shape_of(char32_t character) {
  static const std::map<char32_t, Shape> shapes = [] {
    std::map<char32_t, Shape> all;
    for (const Glyph& glyph : kGlyphs) all[glyph.character] = {glyph.width, parse(glyph.path)};
    return all;
  }();
  static const Shape missing{kMissingWidth, parse(kMissing)};
  const auto found = shapes.find(character);
  return found == shapes.end() ? missing : found->second;
}

/// The next character of UTF-8 text; a broken byte counts as one character.
char32_t next_character(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const size_t length = first < 0x80 ? 1 : (first >> 5) == 6 ? 2 : (first >> 4) == 14 ? 3 : (first >> 3) == 30 ? 4 : 1;
  char32_t character = length == 1 ? first : first & (0x7f >> length);
  for (size_t i = 1; i < length && i < text.size(); ++i) {
    character = (character << 6) | (static_cast<unsigned char>(text[i]) & 0x3f);
  }
  text.remove_prefix(std::min(length, text.size()));
  return character;
}

}  // namespace

Text lay_out_text(std::string_view utf8, float size) {
  const float scale = size / 10;
  Text text{{}, 0};
  float x = 0;
  while (!utf8.empty()) {
    const Shape& shape = shape_of(next_character(utf8));
    for (const Polyline& stroke : shape.strokes) {
      Polyline placed;
      for (const Point p : stroke) placed.push_back({(x + p.x) * scale, -p.y * scale});
      text.strokes.push_back(std::move(placed));
    }
    text.width = (x + shape.width) * scale;
    x += shape.width + kGap;
  }
  return text;
}

}  // namespace moonhalo::scripting
