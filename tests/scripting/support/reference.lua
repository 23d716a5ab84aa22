-- SPDX-License-Identifier: Apache-2.0
-- The entries of the reference that the build gathers (docs/tools/README.md), and their examples: each runs as a chunk
-- with `mh`, `nn`, `mesh` (all ranks along the dim "domain") and `folder` (where files go). EXPRESSION --> TEXT
-- compares what print shows of the expression; of a statement, what was printed since the last comparison.
local mh = require "moonhalo"
local own_path = require "support.own_path"
local table_text = require "moonhalo.internal.table_text"

local reference = {}

reference.path = os.getenv("MOONHALO_REFERENCE") or "build/cpu/generated/reference.json"

function reference.entries() return mh.json.load(reference.path).entries end

--- The text that print shows of values.
function reference.text_of(...)
  local texts = {}
  for i, value in ipairs(table.pack(...)) do
    local meta = getmetatable(value)
    texts[i] = type(value) == "table" and not (meta and meta.__tostring) and table_text(value) or tostring(value)
  end
  for i = #texts + 1, select("#", ...) do texts[i] = tostring((select(i, ...))) end
  return table.concat(texts, "  ")
end

--- The example as one chunk: lines with a value call `compare(number, expected, values...)`.
local function chunk_of(entry)
  local lines, count = {}, 0
  for number, line in ipairs(entry.example) do
    local code, expected = line:match("^(.-)%s+%-%->%s(.*)$")
    if code then
      count = count + 1
      expected = expected:match("^%s*(.-)%s*$")
      if load("return " .. code) then
        line = ("__compare(%d, %q, %s)"):format(number, expected, code)
      else
        line = code .. (" __compare(%d, %q)"):format(number, expected)
      end
    end
    lines[number] = line
  end
  return table.concat(lines, "\n"), count
end

local function where(entry) return ("%s:%d: %s"):format(entry.file, entry.line, entry.names[1]) end

--- Runs the example of an entry. Returns what is wrong, a list of messages.
local function run(entry, mesh)
  local wrong, printed = {}, {}
  local code = chunk_of(entry)
  local scope = setmetatable({
    mesh = mesh, nn = mh.nn, mh = mh, folder = own_path("example"),
    print = function(...) printed[#printed + 1] = reference.text_of(...) end,
    __compare = function(number, expected, ...)
      local have = select("#", ...) > 0 and reference.text_of(...) or table.concat(printed, " | ")
      printed = {}
      if have ~= expected then
        wrong[#wrong + 1] = ("%s\n    line  %s\n    have  %s"):format(where(entry), entry.example[number], have)
      end
    end,
  }, {__index = _G})
  local chunk, message = load(code, "=example", "t", scope)
  if not chunk then return {where(entry) .. ": " .. message} end
  mh.manual_seed(0)
  local ok, failure = pcall(chunk)
  if not ok then wrong[#wrong + 1] = where(entry) .. ": " .. tostring(failure) end
  return wrong
end

--- Runs all examples, and resets settings of the run that an example changes.
function reference.run_examples()
  local mesh = mh.init_device_mesh(mh.device(), {mh.world_size()}, {"domain"})
  mh.files.make_folder(own_path("example"))
  local wrong = {}
  for _, entry in ipairs(reference.entries()) do
    local only = os.getenv("MOONHALO_EXAMPLE")
    if #entry.example > 0 and (not only or entry.names[1]:find(only)) then
      for _, text in ipairs(run(entry, mesh)) do wrong[#wrong + 1] = text end
      mh.barrier()  -- thread ranks share settings of the process
      mh.set_default_dtype("float32")
      mh.set_grad_enabled(true)
      mh.barrier()
    end
  end
  return wrong
end

return reference
