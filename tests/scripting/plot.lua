-- SPDX-License-Identifier: Apache-2.0
-- Pictures: colours and places of what is drawn, and refused calls.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local axis = require "moonhalo.plot.axis"
local lines = require "moonhalo.plot.lines"
local own_path = require "support.own_path"

local function path(name) return own_path(name .. ".png") end

--- Width and height that a PNG file states.
local function png_size(file_name)
  local file = assert(io.open(file_name, "rb"))
  local head = file:read(24)
  file:close()
  testing.assert_equal(head:sub(1, 8), "\137PNG\r\n\26\n")
  local width, height = string.unpack(">I4I4", head, 17)
  return {width, height}
end

local function labels(ticks)
  local texts = {}
  for _, tick in ipairs(ticks) do
    if tick[2] then texts[#texts + 1] = tick[2] .. (tick[3] and "^" .. tick[3] or "") end
  end
  return table.concat(texts, " ")
end

local tests = {}

function tests.test_ticks_are_round_numbers()
  testing.assert_equal(labels(axis.linear_ticks(0, 1, 5)), "0 0.2 0.4 0.6 0.8 1.0")
  testing.assert_equal(labels(axis.linear_ticks(-3.2, 7.9, 4)), "\u{2212}2.5 0 2.5 5.0 7.5")
  testing.assert_equal(labels(axis.linear_ticks(0, 3e6, 3)), "0 1e6 2e6 3e6")
  testing.assert_equal(labels(axis.linear_ticks(250, 310, 4)), "260 280 300")
  testing.assert_equal(labels(axis.log_ticks(1e-3, 1)), "0.001 0.01 0.1 1")
  testing.assert_equal(labels(axis.log_ticks(1, 1e4)), "1 10 100 1000 10000")
  testing.assert_equal(labels(axis.log_ticks(1e-4, 1)), "10^\u{2212}4 10^\u{2212}3 10^\u{2212}2 10^\u{2212}1 10^0")
  testing.assert_equal(labels(axis.log_ticks(0.02, 0.6)), "0.02 0.05 0.1 0.2 0.5")
  testing.assert_equal(labels(axis.log_ticks(0.4, 0.7)), "0.40 0.45 0.50 0.55 0.60 0.65 0.70")
end

function tests.test_fields_are_coloured_by_range_and_nan_is_gray()
  local colors = axis.colored(mh.tensor({{0.0, 1.0}, {0 / 0, 5.0}}, {dtype = "float64"}), 0, 1, "viridis", "#b9bdc3")

  testing.assert_equal(colors:tolist(), {{{68, 1, 84}, {253, 231, 37}}, {{185, 189, 195}, {253, 231, 37}}})
end

function tests.test_a_canvas_blends_edges_by_coverage()
  local canvas = mh.canvas(6, 4, "#000000")
  canvas:fill(1, 1, 2.5, 3, "#ffffff")
  canvas:image(mh.tensor({{{10, 20, 30}}}, {dtype = "uint8"}), 4, 0, 6, 4)

  testing.assert_equal(canvas:picture():select(2, 1):tolist(),
    {{0, 0, 0, 0, 20, 20}, {0, 255, 128, 0, 20, 20}, {0, 255, 128, 0, 20, 20}, {0, 0, 0, 0, 20, 20}})
  canvas:line({0, 0.5, 6, 0.5}, 1, "#ff0000")
  testing.assert_equal(canvas:picture()["0, 3"]:tolist(), {255, 0, 0})
  testing.assert_equal(mh.text_width("abc", 20) > mh.text_width("abc", 10) * 1.99, true)
end

function tests.test_lines_and_maps_are_written()
  mh.plot.lines(path "lines", {{y = {3, 1, 0 / 0, 0.5}, label = "a", smooth = 3},
    {x = {1, 4}, y = mh.tensor{2.0, 1.0}, points = true}},
    {yscale = "log", xlabel = "step", ylabel = "loss", title = "t", size = {640, 400}})
  mh.plot.maps(path "maps", {{data = mh.rand{5, 9}, title = "a", x = {0, 8}, y = {10, 50}, range = "one"},
    {data = mh.zeros{5, 9}, range = "one"}, {data = mh.zeros{5, 9}, colormap = "diverging"}},
      {unit = "K", size = {800}})
  mh.plot.lines(path "empty", {{y = {}}})

  testing.assert_equal(png_size(path "lines"), {640, 400})
  testing.assert_equal(png_size(path "maps")[1], 800)
  testing.assert_equal(png_size(path "empty"), {1280, 760})
end

--- The number of places where the first series passes through the box of the legend.
local function behind_legend(x, y, options)
  local _, frame = lines.picture({{x = x, y = y, label = "a long label of a curve", points = true}}, options)
  local count, box = 0, frame.legend
  for k = 1, #x - 1 do
    for part = 0, 1, 0.01 do
      local px = frame.to_x(x[k]) * (1 - part) + frame.to_x(x[k + 1]) * part
      local py = frame.to_y(y[k]) * (1 - part) + frame.to_y(y[k + 1]) * part
      if px > box[1] and px < box[3] and py > box[2] and py < box[4] then count = count + 1 end
    end
  end
  return count
end

function tests.test_a_legend_is_where_no_curve_passes()
  local size = {760, 560}
  testing.assert_equal(behind_legend({2, 3, 4}, {460, 780, 1030}, {size = size}), 0)
  testing.assert_equal(behind_legend({0, 1, 2}, {2, 0, 2}, {size = size}), 0)
  testing.assert_equal(behind_legend({0, 1, 2, 1, 0}, {0.5, 1, 0.5, 0, 0.5}, {size = size}), 0)
end

function tests.test_ticks_may_be_given()
  local function shown(xticks)
    local _, frame = lines.picture({{x = {1, 8, 512}, y = {1, 2, 3}}}, {xscale = "log", xticks = xticks})
    return labels(frame.xticks)
  end
  testing.assert_equal(shown(nil), "1 10 100")
  testing.assert_equal(shown{1, 8, 64, 512}, "1 8 64 512")
  testing.assert_equal(shown{1, 500, 512}, "1 512")  -- numbers do not overlap
  testing.assert_error(function() lines.picture({{y = {1}}}, {xticks = {"a"}}) end,
    "plot: xticks has 'a', expected numbers")
end

--- The pictures of two calls, as the bytes of their files.
local function drawn(name, draw)
  draw(path(name))
  local file <close> = assert(io.open(path(name), "rb"))
  return file:read("a")
end

function tests.test_Y17_axes_of_maps_have_names()
  local panel = {data = mh.ones{4, 6}, x = {0, 5}, y = {0, 3}}
  mh.plot.maps(path "plain", {panel})
  mh.plot.maps(path "named", {panel}, {xlabel = "degrees east"})
  local plain, named = png_size(path "plain"), png_size(path "named")
  testing.assert_equal({named[1], named[2] - plain[2]}, {plain[1], 24})
  mh.plot.maps(path "named", {panel}, {ylabel = "degrees north"})
  testing.assert_equal(png_size(path "named")[2] < plain[2], true)  -- the map is narrower, so it is lower
end

function tests.test_panels_of_a_row_have_one_range_of_colours()
  local low, high = mh.tensor{{0.0, 1.0}}, mh.tensor{{2.0, 4.0}}
  local function maps(first, second, options)
    return drawn("ranges", function(file)
      mh.plot.maps(file, {{data = low, range = first, unit = "K"}, {data = high, range = second, unit = "K"}}, options)
    end)
  end
  local together = maps({0, 4}, {0, 4})
  testing.assert_equal(maps() == together, true)
  testing.assert_equal(maps("one", "one") == together, true)
  testing.assert_equal(maps(nil, nil, {range = "row"}) == together, true)
  testing.assert_equal(maps(nil, nil, {range = "one"}) == together, true)
  testing.assert_equal(maps({0, 4}) == maps({0, 4}, {2, 4}), true)

  local apart = maps({0, 1}, {2, 4})
  testing.assert_equal(maps("own", "own") == apart, true)
  testing.assert_equal(maps(nil, nil, {range = "own"}) == apart, true)
  testing.assert_equal(maps(nil, nil, {columns = 1}) == maps({0, 1}, {2, 4}, {columns = 1}), true)
  testing.assert_equal(together == apart, false)
end

function tests.test_other_colours_or_units_have_a_range_of_their_own()
  local truth, error = mh.tensor{{280.0, 300.0}}, mh.tensor{{-1.0, 3.0}}
  local function maps(more, ranges)
    return drawn("kinds", function(file)
      local second = {data = error, range = ranges and ranges[2]}
      for key, value in pairs(more) do second[key] = value end
      mh.plot.maps(file, {{data = truth, unit = "K", range = ranges and ranges[1]}, second})
    end)
  end
  local diverging = {colormap = "diverging", unit = "K"}
  testing.assert_equal(maps(diverging) == maps(diverging, {{280, 300}, {-3, 3}}), true)
  testing.assert_equal(maps{unit = "m"} == maps({unit = "m"}, {{280, 300}, {-1, 3}}), true)
  testing.assert_equal(maps{unit = "K"} == maps({unit = "K"}, {{-1, 300}, {-1, 300}}), true)
end

function tests.test_values_without_x_count_from_0()
  local function lines(x) return drawn("count", function(file) mh.plot.lines(file,
      {{y = {3, 1, 2}, x = x, points = true}}) end) end

  testing.assert_equal(lines() == lines{0, 1, 2}, true)
  testing.assert_equal(lines() == lines{1, 2, 3}, false)
end

--- The picture of a map with `over`, as rows of colours of the field's frame alone.
local function map(over)
  local panel = {data = mh.zeros{8, 8}, range = {0, 1}}
  for key, value in pairs(over or {}) do panel[key] = value end
  return drawn("over", function(file) mh.plot.maps(file, {panel}, {size = {400}}) end)
end

function tests.test_Y17_arrows_and_contours_over_maps()
  local plain, u = map(), mh.ones{8, 8}
  local right = map{arrows = {u = u, v = u * 0}}
  testing.assert_equal(right == plain, false)
  testing.assert_equal(map{arrows = {u = u, v = u}} == map{arrows = {u = u, v = -u}}, false)
  testing.assert_equal(map{arrows = {u = u * 0, v = u}} == map{arrows = {u = u * 0, v = -u}}, false)
  testing.assert_equal(map{arrows = {u = u * 0, v = u * 0}} == plain, true)
  -- Without a scale the longest arrow has one length; with one its length is the value's.
  testing.assert_equal(map{arrows = {u = u * 5, v = u * 0}} == right, true)
  testing.assert_equal(map{arrows = {u = u * 5, v = u * 0, scale = 0.1}} == map{arrows = {u = u, v = u * 0,
    scale = 0.5}}, true)
  local slope = mh.arange(8):double():expand{8, 8}
  testing.assert_equal(map{contours = {data = slope, levels = {20}}} == plain, true)
  local line = map{contours = {data = slope, levels = {3.5}}}
  testing.assert_equal(line == plain, false)
  testing.assert_equal(map{contours = {data = slope * 2, levels = {7}}} == line, true)
  testing.assert_equal(map{contours = {data = slope, levels = 1}} == line, true)
  testing.assert_equal(map{contours = {data = slope.T, levels = {3.5}}} == line, false)
end

function tests.test_Y17_points_and_histograms()
  local x, y = mh.tensor{0.0, 1.0, 2.0}, mh.tensor{2.0, 0.0, 1.0}
  local points = drawn("points", function(file) mh.plot.scatter(file, {{x = x, y = y}}) end)
  testing.assert_equal(points == drawn("points", function(file)
    mh.plot.lines(file, {{x = x, y = y, line = false}})
  end), true)
  testing.assert_equal(points == drawn("points", function(file)
    mh.plot.scatter(file, {{x = x, y = y}}, {diagonal = true})
  end), false)
  -- Three values in two bins, as the outline of the bins.
  local bars = drawn("bars", function(file)
    mh.plot.histogram(file, {{values = {0, 0.5, 2, 0 / 0}}}, {bins = 2, range = {0, 2}})
  end)
  testing.assert_equal(bars == drawn("bars", function(file)
    mh.plot.lines(file, {{x = {0, 0, 1, 1, 2, 2}, y = {0, 2, 2, 1, 1, 0}}})
  end), true)
  local dense = drawn("bars", function(file)
    mh.plot.histogram(file, {{values = mh.tensor{0, 0.5, 2}}}, {bins = 2, density = true})
  end)
  testing.assert_equal(dense == drawn("bars", function(file)
    mh.plot.lines(file, {{x = {0, 0, 1, 1, 2, 2}, y = {0, 2 / 3, 2 / 3, 1 / 3, 1 / 3, 0}}})
  end), true)
end

--- Kinds and lengths of the chunks of a PNG file.
local function chunks(text)
  local list, at = {}, 9
  while at < #text do
    local length = string.unpack(">I4", text, at)
    list[#list + 1] = {text:sub(at + 4, at + 7), text:sub(at + 8, at + 7 + length)}
    at = at + 12 + length
  end
  return list
end

function tests.test_Y17_films()
  local fields = {mh.zeros{4, 6}, mh.ones{4, 6}, mh.ones{4, 6} * 3}
  local film = drawn("film", function(file)
    mh.plot.animation(file, {{{data = fields[1]}}, {{data = fields[2]}}, {{data = fields[3]}}}, {seconds = 0.5,
      size = {300}})
  end)
  local kinds, numbers, pictures = {}, {}, {""}
  for _, one in ipairs(chunks(film)) do
    kinds[#kinds + 1] = one[1]
    if one[1] == "acTL" then testing.assert_equal({string.unpack(">I4I4", one[2])}, {3, 0, 9}) end
    if one[1] == "fcTL" then
      numbers[#numbers + 1] = string.unpack(">I4", one[2])
      testing.assert_equal({string.unpack(">I2I2", one[2], 21)}, {500, 1000, 25})
      if #numbers > 1 then pictures[#pictures + 1] = "" end
    elseif one[1] == "IDAT" then
      pictures[1] = pictures[1] .. one[2]
    elseif one[1] == "fdAT" then
      numbers[#numbers + 1] = string.unpack(">I4", one[2])
      pictures[#pictures] = pictures[#pictures] .. one[2]:sub(5)
    end
  end
  testing.assert_equal({kinds[1], kinds[2], kinds[3], kinds[#kinds]}, {"IHDR", "acTL", "fcTL", "IEND"})
  assert(film:sub(-8) == "IEND\xAE\x42\x60\x82", "the checksum of each chunk follows it")
  for i, number in ipairs(numbers) do testing.assert_equal(number, i - 1) end
  testing.assert_equal(#pictures, 3)
  -- Each frame is the picture of its map, with the range of all frames.
  for i, field in ipairs(fields) do
    local panel = {data = field, range = {0, 3}}
    local alone = drawn("one", function(file) mh.plot.maps(file, {panel}, {size = {300}}) end)
    local data = ""
    for _, one in ipairs(chunks(alone)) do data = data .. (one[1] == "IDAT" and one[2] or "") end
    testing.assert_equal(pictures[i] == data, true)
  end
  testing.assert_equal(mh.files.exists(path "film" .. ".frame"), false)
end

function tests.test_wrong_calls_are_refused()
  local refused = {
    {function() mh.plot.lines(path "x", {1, 2}) end, "plot.lines: the second argument is a list"},
    {function() mh.plot.maps({}) end, "plot.maps: the first argument is the file's name, got {}"},
    {function() mh.plot.lines(path "x", {{y = {1}}}, {ylable = "a"}) end,
    "plot: unknown option 'ylable'; did you mean 'ylabel'"},
    {function() mh.plot.lines(path "x", {{y = {1, 2}, x = {1}}}) end, "plot: series 1 has 1 x and 2 y"},
    {function() mh.plot.lines(path "x", {{y = {1}}}, {yscale = "logarithmic"}) end,
    "plot: unknown yscale 'logarithmic'"},
    {function() mh.plot.maps(path "x", {{data = mh.zeros{2, 3, 4}}}) end, "plot: panel 1 has 3 dimensions, expected 2"},
    {function() mh.plot.maps(path "x", {{data = mh.zeros{2, 3}, colormap = "virdis"}}) end,
    "unknown colormap 'virdis'; did you mean 'viridis'?"},
    {function() mh.plot.maps(path "x", {{data = mh.zeros{2, 3}, range = {1}}}) end,
    "plot: panel 1 has a range of another kind"},
    {function() mh.plot.maps(path "x", {{data = mh.zeros{2, 3}}}, {range = 3}) end,
    "plot: panel 1 has a range of another kind"},
    {function()
      mh.plot.maps(path "x", {{data = mh.zeros{2, 3}, arrows = {u = mh.ones{2, 2}, v = mh.ones{2, 3}}}})
    end,
    "plot: arrows: u has shape {2, 2}, the panel's data {2, 3}"},
    {function() mh.plot.maps(path "x", {{data = mh.zeros{2, 3}, contours = {level = 3}}}) end,
    "plot: contours: unknown option 'level'; did you mean 'levels'"},
    {function() mh.plot.lines(path "x", {{y = {1}}}, 5) end, "plot.lines: the options are a table, got 5"},
    {function() mh.plot.scatter(path "x", {{x = {1}}}) end, "plot.scatter: series 1 needs x and y"},
    {function() mh.plot.scatter(path "x", {{x = {1}, y = {1}, lable = "a"}}) end,
    "plot.scatter: unknown option 'lable'; did you mean 'label'"},
    {function() mh.plot.histogram(path "x", {{values = {1}}}, {bins = 0}) end, "plot.histogram: bins is 0"},
    {function() mh.plot.histogram(path "x", {{values = {1}}}, {bins = 1 << 40}) end,
    "plot.histogram: bins is 1099511627776, expected at most 10000"},
    {function() mh.plot.animation(path "x", {{{data = mh.zeros{2, 3}}}, {}}) end,
    "plot.animation: frame 2 is not a list of 1 panels"},
    {function() mh.canvas(4, 4, "red") end, "a color such as \"#1f77b4\""},
  }
  for _, case in ipairs(refused) do testing.assert_error(case[1], case[2]) end
  testing.assert_error(function() mh.plot.lines("/nowhere/x.png", {{y = {1}}}) end, "/nowhere/x.png")
end

return tests
