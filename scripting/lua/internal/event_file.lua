-- SPDX-License-Identifier: Apache-2.0
-- Event files of TensorBoard: records {length, checksum, Event, checksum}. Event is a message of Protocol Buffers, of
-- which few fields are needed. They are packed here by their numbers (event.proto, summary.proto).

local mh = require "moonhalo"

-- metrics.jsonl has every record at once; here a kill may cost the last second.
local kFlushSeconds = 1

local Events = {}
Events.__index = Events

-- ---- Protocol Buffers ----------------------------------------------------------------------------------------------

local function varint(number)
  if number >= 0 and number < 128 then return string.char(number) end
  local bytes = {}
  repeat
    local rest = number >> 7
    bytes[#bytes + 1] = string.char((number & 127) | (rest > 0 and 128 or 0))
    number = rest
  until number == 0
  return table.concat(bytes)
end

local function integer(field, number) return varint(field << 3) .. varint(number) end

local function bytes(field, text) return varint(field << 3 | 2) .. varint(#text) .. text end

local function double(field, number) return varint(field << 3 | 1) .. string.pack("<d", number) end

local function float(field, number) return varint(field << 3 | 5) .. string.pack("<f", number) end

-- ---- Records -------------------------------------------------------------------------------------------------------

local function masked(text)
  local sum = mh._run.crc32c(text)
  return string.pack("<I4", ((sum >> 15 | sum << 17) + 0xa282ead8) & 0xffffffff)
end

local function append(self, step, content)
  local now = mh._checkpoint_files.now()
  local event = double(1, now) .. integer(2, step) .. content
  local length = string.pack("<I8", #event)
  local written, problem = self.file:write(length, masked(length), event, masked(event))
  if written and now >= self.flush_at then
    written, problem = self.file:flush()
    self.flush_at = now + kFlushSeconds
  end
  if not written then
    mh.fail(("run: the disk refused '%s': %s\n  fix   free space on that disk, or write the run somewhere else"):format(
        self.path, problem))
  end
end

local function summary(step, values, self) append(self, step, bytes(5, table.concat(values))) end

--- A new file in a folder. TensorBoard finds it by its name.
function Events.new(folder)
  mh.files.make_folder(folder)
  local stem = ("%s/events.out.tfevents.%d.%s.%d"):format(folder, math.floor(mh._checkpoint_files.now()),
      mh._run.host(), mh._run.pid())
  local path, attempt = stem, 0
  while mh.files.exists(path) do  -- a run that was resumed in the same second
    attempt = attempt + 1
    path = stem .. "." .. attempt
  end
  local file, problem = io.open(path, "wb")
  if not file then mh.fail("run: cannot write the events: " .. problem) end
  local self = setmetatable({file = file, path = path, flush_at = 0}, Events)
  append(self, 0, bytes(3, "brain.Event:2"))
  return self
end

--- The numbers of a record; tables of them under dotted names.
local function add_numbers(values, prefix, record)
  for name, value in pairs(record) do
    local tag = prefix .. tostring(name)
    if type(value) == "number" then
      values[#values + 1] = bytes(1, bytes(1, tag) .. float(2, value))
    elseif type(value) == "table" then
      add_numbers(values, tag .. ".", value)
    end
  end
end

--- Numbers of a record of mh.log, one event for all.
function Events:scalars(step, record)
  local values, rest = {}, {}
  for name, value in pairs(record) do
    if name ~= "step" and name ~= "seconds" then rest[name] = value end
  end
  add_numbers(values, "", rest)
  if #values > 0 then summary(step, values, self) end
end

--- A picture: the bytes of a PNG file.
function Events:picture(step, tag, png)
  local width, height = string.unpack(">I4I4", png, 17)
  local image = integer(1, height) .. integer(2, width) .. integer(3, 3) .. bytes(4, png)
  summary(step, {bytes(1, bytes(1, tag) .. bytes(4, image))}, self)
end

--- A histogram: {least, greatest, count, sum, squares, limits, counts}; limits are the upper ones of the bins.
function Events:histogram(step, tag, h)
  local format = "<" .. ("d"):rep(#h.counts)
  local parts = double(1, h.least) .. double(2, h.greatest) .. double(3, h.count) .. double(4, h.sum)
      .. double(5, h.squares) .. bytes(6, format:pack(table.unpack(h.limits)))
      .. bytes(7, format:pack(table.unpack(h.counts)))
  summary(step, {bytes(1, bytes(1, tag) .. bytes(5, parts))}, self)
end

--- A string, in Markdown.
function Events:text(step, tag, text)
  local tensor = integer(1, 7) .. bytes(2, bytes(2, integer(1, 1))) .. bytes(8, text)
  local metadata = bytes(1, bytes(1, "text"))
  summary(step, {bytes(1, bytes(1, tag) .. bytes(8, tensor) .. bytes(9, metadata))}, self)
end

--- Events of `step` and later that earlier files have are dropped by TensorBoard.
function Events:restart(step) append(self, step, bytes(7, integer(1, 1))) end

function Events:finish() assert(self.file:close()) end

return Events
