-- SPDX-License-Identifier: Apache-2.0
-- C4: complex parameters on plain tensors, and in files.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local optim = mh.optim
local runs = require "support.complex_runs"
local own_path = require "support.own_path"

local tests = runs.tests{plain = function(x) return x:clone() end}

function tests.test_the_numbers_of_a_hand_made_Adam()
  local start, c, lr = {{1.0, 0.3}, {0.5, 1.0}, {2.0, -1.0}}, {1.0, 2.0, 3.0}, 0.1
  local w = mh.view_as_complex(mh.tensor(start, {dtype = "float64"})):clone():requires_grad_(true)
  local opt = optim.Adam({w}, {lr = lr})
  for _ = 1, 3 do
    opt:zero_grad()
    local loss = (w:abs():square() * mh.tensor(c, {dtype = "float64"})):sum()
    loss:backward()
    opt:step()
  end

  local expected = {}
  for i, pair in ipairs(start) do
    expected[i] = {}
    for part, value in ipairs(pair) do
      local m, v = 0, 0
      for step = 1, 3 do
        local g = 2 * c[i] * value
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        value = value - lr * (m / (1 - 0.9 ^ step)) / (math.sqrt(v / (1 - 0.999 ^ step)) + 1e-8)
      end
      expected[i][part] = value
    end
  end
  testing.assert_close(mh.view_as_real(w:detach()), expected, {rtol = 1e-10})
end

local function file(name) return own_path(name .. ".safetensors") end

function tests.test_files_hold_pairs_and_give_complex_back()
  local path = file("pairs")
  local z = mh.complex(mh.arange(6.0):reshape{2, 3}, -mh.arange(6.0):reshape{2, 3})
  local all = {
    {"z", z}, {"x", mh.ones{2}}, {"conjugate", z:conj()}, {"imaginary", z:conj().imag}, {"turned", z:t()},
    {"number", z["1, 2"]},
    {"double", z:to("complex128")}, {"half", z:to("complex32")}, {"empty", mh.zeros({0, 2}, {dtype = "complex64"})},
  }
  mh.safetensors.save(path, all, {note = "x"})
  local back, notes = mh.safetensors.load(path)

  testing.assert_equal(notes, {note = "x"})
  for i, pair in ipairs(all) do
    testing.assert_equal({back[i][1], back[i][2].dtype, back[i][2].shape}, {pair[1], pair[2].dtype, pair[2].shape})
    local function parts(x)
      return x:is_complex() and mh.view_as_real(x:resolve_conj()):to("float64"):tolist() or x:tolist()
    end
    testing.assert_equal(parts(back[i][2]), parts(pair[2]))
  end
  -- Other programs see floats, and a string in the metadata.
  local handle = io.open(path, "rb")
  local header = handle:read(8)
  header = mh.json.decode(handle:read((string.unpack("<I8", header))))
  handle:close()
  testing.assert_equal({header.z.dtype, header.z.shape, header.double.dtype, header.number.shape, header.empty.shape},
    {"F32", {2, 3, 2}, "F64", {2}, {0, 2, 2}})
  testing.assert_equal(mh.json.decode(header.__metadata__["moonhalo.complex"]).double, "complex128")
  testing.assert_error(function() mh.safetensors.save(path, all, {["moonhalo.complex"] = "x"}) end,
    "the metadata's 'moonhalo.complex' is taken by the note of complex tensors")
end

function tests.test_wrong_notes_are_refused()
  local path = file("notes")
  local x = {{"x", mh.ones{3, 2}}}
  local function with(note)
    mh.safetensors.save(path, x, {["moonhalo.complex"] = note})
    return function() return mh.safetensors.load(path) end
  end
  testing.assert_equal(with('{"x": "complex64", "gone": "complex64"}')()[1][2].dtype, "complex64")
  testing.assert_error(with("no json"), "has a broken note of its complex tensors: no json")
  testing.assert_error(with('{"x": "complex128"}'),
      "says that 'x' is \"complex128\" in pairs, but it is of dtype Float and shape [3, 2]")
  testing.assert_error(with('{"x": 3}'), "says that 'x' is 3 in pairs")
  x = {{"x", mh.ones{2, 3}}}
  testing.assert_error(with('{"x": "complex64"}'), "but it is of dtype Float and shape [2, 3]")
end

return tests
