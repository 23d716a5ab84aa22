-- SPDX-License-Identifier: Apache-2.0
-- Y11: event files of run folders, read by a reader of their format that is written here.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local own_path = require "support.own_path"

local tests = {}

--- CRC-32C, bit by bit.
local function crc32c(text)
  local sum = 0xffffffff
  for i = 1, #text do
    sum = sum ~ text:byte(i)
    for _ = 1, 8 do sum = sum & 1 == 1 and (sum >> 1) ~ 0x82f63b78 or sum >> 1 end
  end
  return sum ~ 0xffffffff
end

local function check_sum(text, stored)
  local sum = crc32c(text)
  assert(stored == ((sum >> 15 | sum << 17) + 0xa282ead8) & 0xffffffff, "a checksum is wrong")
end

local function varint(text, at)
  local number, shift = 0, 0
  repeat
    local byte = text:byte(at)
    number, shift, at = number | (byte & 127) << shift, shift + 7, at + 1
  until byte < 128
  return number, at
end

--- The fields of a message: number -> list of values.
local function fields(text)
  local found, at = {}, 1
  while at <= #text do
    local key, value
    key, at = varint(text, at)
    if key & 7 == 0 then
      value, at = varint(text, at)
    elseif key & 7 == 1 then
      value, at = string.unpack("<d", text, at)
    elseif key & 7 == 5 then
      value, at = string.unpack("<f", text, at)
    else
      assert(key & 7 == 2, "an unknown kind of field")
      local length
      length, at = varint(text, at)
      value, at = text:sub(at, at + length - 1), at + length
    end
    found[key >> 3] = found[key >> 3] or {}
    table.insert(found[key >> 3], value)
  end
  return found
end

local function events_of(run)
  local events = {}
  for _, name in ipairs(mh._run.list(run.folder .. "/tb")) do
    assert(name:find("^events%.out%.tfevents%."))
    local file = assert(io.open(run.folder .. "/tb/" .. name, "rb"))
    local text, at = file:read("a"), 1
    file:close()
    while at <= #text do
      local length, sum, event, last
      length, sum, at = string.unpack("<I8I4", text, at)
      check_sum(string.pack("<I8", length), sum)
      event, last, at = text:sub(at, at + length - 1), string.unpack("<I4", text, at + length)
      check_sum(event, last)
      events[#events + 1] = fields(event)
    end
  end
  return events
end

--- {step, tag, value fields} of all summaries.
local function summaries(events)
  local found = {}
  for _, event in ipairs(events) do
    for _, summary in ipairs(event[5] or {}) do
      for _, value in ipairs(fields(summary)[1]) do
        local parts = fields(value)
        found[#found + 1] = {step = event[2][1], tag = parts[1][1], parts = parts}
      end
    end
  end
  return found
end

function tests.test_Y11_events_have_scalars_pictures_and_settings()
  mh.config{lr = 0.5}
  local run = mh.run{folder = own_path("events")}
  testing.assert_error(function() run:step_done(5) end, "run: step_done: the options are a table, got 5")
  testing.assert_error(function() run:epoch_done("a") end, "run: epoch_done: the options are a table, got 'a'")
  testing.assert_equal({run.step, run.epoch}, {0, 0})
  mh.log{step = 3, loss = 0.25, text = "left out", net = {norm = 2}}
  mh.log{step = 300, loss = -1.5, large = 1e300}
  run:picture("curve", {{y = {1, 2, 3}}})
  run:histogram("field", mh.tensor{0, 1, 1, 4, 1 / 0, 0 / 0}, {bins = 4})
  run:histogram("same", mh.ones{3})
  run:histogram("none", mh.full({2}, 0 / 0))
  mh.testing.assert_error(function() run:histogram("empty", mh.ones{0}) end, "histogram takes a tensor with elements")
  mh.testing.assert_error(function() run:histogram("a", mh.ones{1}, {bin = 3}) end, "did you mean 'bins'?")
  mh.testing.assert_error(function() run:histogram("a", mh.ones{1}, {bins = 10001}) end, "run: bins is 10001, expected")
  run:finish()

  local events = events_of(run)
  assert(events[1][3][1] == "brain.Event:2")
  assert(math.abs(events[1][1][1] - os.time()) < 100)
  local found = {}
  for _, one in ipairs(summaries(events)) do found[one.tag .. "@" .. one.step] = one.parts end
  assert(found["loss@3"][2][1] == 0.25 and found["loss@300"][2][1] == -1.5)
  assert(found["net.norm@3"][2][1] == 2 and found["large@300"][2][1] == math.huge)
  assert(found["text@3"] == nil)
  assert(fields(found["settings@0"][8][1])[8][1] == "    lr = 0.5")
  local field = fields(found["field@0"][5][1])
  local function doubles(text) return {string.unpack("<" .. ("d"):rep(#text // 8), text)} end
  for number, value in ipairs{0, 4, 4, 6, 18} do assert(field[number][1] == value, number) end
  mh.testing.assert_equal({table.unpack(doubles(field[6][1]), 1, 4)}, {1.0, 2.0, 3.0, 4.0})
  mh.testing.assert_equal({table.unpack(doubles(field[7][1]), 1, 4)}, {1.0, 2.0, 0.0, 1.0})
  assert(fields(found["same@0"][5][1])[3][1] == 3 and found["none@0"] == nil)
  local image = fields(found["curve@0"][4][1])
  assert(image[1][1] == 760 and image[2][1] == 1280 and image[4][1]:sub(2, 4) == "PNG")
end

return tests
