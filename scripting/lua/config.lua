-- SPDX-License-Identifier: Apache-2.0
-- `local cfg = mh.config{lr = 1e-3, dtype = "float32", model = {width = 32}}`: the settings of a run. The table given
-- holds the defaults and thereby the keys and types that exist; the files of --config override them, --set key=value
-- overrides all. Dotted keys reach into tables. The result goes to the log file as {"config": {...}}.

local mh = require "moonhalo"
local is_group = require("moonhalo.internal.groups").is_group
local run_log = require "moonhalo.internal.run_log"
local yaml_settings = require "moonhalo.internal.yaml_settings"

local fail = mh.fail

local function is_list(value) return type(value) == "table" and #value > 0 end

--- "a number", "an integer", "a list of ..."; for messages.
local function kind_name(value)
  if is_list(value) then return "a list" end
  if type(value) == "table" then return "a table" end
  if type(value) == "number" then return math.type(value) == "integer" and "an integer" or "a number" end
  return ({string = "a string", boolean = "true or false"})[type(value)] or type(value)
end

local kShown = 200

--- For messages: one line, not endless.
local function shown(text)
  text = text:gsub("%c", " ")
  return #text > kShown and text:sub(1, kShown) .. "..." or text
end

local function show(value)
  if type(value) == "string" then return "'" .. shown(value) .. "'" end
  if type(value) ~= "table" then return tostring(value) end
  local written, json = pcall(mh.json.encode, value)
  return written and shown(json) or "a table"
end

local function wrong_type(path, default, value, source)
  fail(("config: '%s' is %s, got %s\n  have  %s (default %s)\n  fix   give %s"):format(path, kind_name(default),
    show(value), source, show(default), kind_name(default)))
end

--- `value` as the kind of `default`; an error names the key and where the value came from.
local function convert(path, default, value, source)
  if type(default) == "number" then
    if type(value) ~= "number" then wrong_type(path, default, value, source) end
    if math.type(default) == "integer" then
      return math.tointeger(value) or wrong_type(path, default, value, source)
    end
    return value + 0.0
  end
  if type(default) == "table" then
    if type(value) ~= "table" or is_group(value) then wrong_type(path, default, value, source) end
    local list = {}
    for i, element in ipairs(value) do
      list[i] = default[1] == nil and element or convert(path .. "[" .. i .. "]", default[1], element, source)
    end
    return list
  end
  if type(value) ~= type(default) then wrong_type(path, default, value, source) end
  return value
end

local function sorted_keys(values)
  local keys = {}
  for key in pairs(values) do keys[#keys + 1] = tostring(key) end
  table.sort(keys)
  return keys
end

local function unknown_key(path, key, values, source)
  local keys = sorted_keys(values)
  fail(("config: unknown key '%s'%s\n  have  %s\n  known %s"):format(shown(path .. key), mh.did_you_mean(key, keys),
    source, table.concat(keys, ", ")))
end

local function copy(values)
  local result = {}
  for key, value in pairs(values) do result[key] = type(value) == "table" and copy(value) or value end
  return result
end

--- Where each setting comes from, by dotted name, but for defaults.
local sources

local function merge(target, defaults, values, path, source, brief)
  for _, key in ipairs(sorted_keys(values)) do
    local default, value = defaults[key], values[key]
    if default == nil then unknown_key(path, key, defaults, source) end
    if is_group(default) then
      if type(value) ~= "table" or #value > 0 then wrong_type(path .. key, default, value, source) end
      merge(target[key], default, value, path .. key .. ".", source, brief)
    else
      target[key], sources[path .. key] = convert(path .. key, default, value, source), brief
    end
  end
end

-- ---- --config -----------------------------------------------------------------------------------------------------

local function read_file(path, defaults)
  local extension = path:match("%.(%w+)$")
  if extension == "json" then return mh.json.load(path) end
  if extension == "yaml" or extension == "yml" then return yaml_settings(path, defaults) end
  if extension ~= "lua" then fail("config: '" .. path .. "' is neither .lua, .yaml nor .json") end
  return mh._config_file(path)
end

-- ---- --set --------------------------------------------------------------------------------------------------------

local parse_element

local function parse_list(text, default, path, source)
  local inside = text:match("^%s*[%[{](.*)[%]}]%s*$") or text
  local list = {}
  for part in inside:gmatch("[^,]+") do
    list[#list + 1] = parse_element(part:match("^%s*(.-)%s*$"), default[1], path .. "[" .. #list + 1 .. "]", source)
  end
  return list
end

--- The text of --set as the kind of `default`; without one, what it looks like.
function parse_element(text, default, path, source)
  local bare = text:match('^"(.*)"$') or text:match("^'(.*)'$") or text
  if type(default) == "string" then return bare end
  if text == "true" or text == "false" then return text == "true" end
  if type(default) == "table" then return parse_list(text, default, path, source) end
  if tonumber(text) then return tonumber(text) end
  if default ~= nil then wrong_type(path, default, text, source) end
  return bare
end

local function set(target, defaults, key, text)
  local source, path = ("from %s %s=%s"):format(rawget(mh, "host") and "the host's settings" or "--set", key, text), ""
  local parts = {}
  for part in key:gmatch("[^.]+") do parts[#parts + 1] = part end
  if #parts == 0 then fail("config: --set needs key=value, got '=" .. text .. "'") end
  for i = 1, #parts - 1 do
    local part = parts[i]
    if defaults[part] == nil then unknown_key(path, part, defaults, source) end
    if not is_group(defaults[part]) then
      fail(("config: '%s' is %s and has no keys\n  have  %s"):format(path .. part, kind_name(defaults[part]), source))
    end
    path, target, defaults = path .. part .. ".", target[part], defaults[part]
  end
  local last = parts[#parts]
  local default = defaults[last]
  if default == nil then unknown_key(path, last, defaults, source) end
  if is_group(default) then
    fail(("config: '%s' is a table\n  have  %s\n  fix   set its keys one by one: %s"):format(path .. last, source,
      path .. last .. "." .. table.concat(sorted_keys(default), ", " .. path .. last .. ".")))
  end
  target[last] = convert(path .. last, default, parse_element(text, default, path .. last, source), source)
  sources[path .. last] = rawget(mh, "host") and "host" or "--set"
end

--- Reading a key that is not there is an error, in tables of the settings too; rawget(cfg, "key") asks.
local function refuse_unknown_keys(settings, path)
  for key, value in pairs(settings) do
    if is_group(value) then refuse_unknown_keys(value, path .. key .. ".") end
  end
  return setmetatable(settings, {
    __name = "config",
    __index = function(_, key)
      if type(key) ~= "string" then return nil end
      local keys = sorted_keys(settings)
      fail(("config: no key '%s'%s\n  have  %s\n" ..
        "  fix   give it a default in mh.config, or test for it with rawget(cfg, key)"):format(
        path .. key, mh.did_you_mean(key, keys), table.concat(keys, ", ")))
    end,
  })
end

--- mh.config(defaults) -> table
---   The settings of a run: defaults, overridden by the files of --config (.yaml, .lua or .json), then by --set
---   key=value. The defaults say which keys there are and of which types, in YAML whether a value is a number or a
---   text, too. The settings also go to the file of --log and the run folder; a resumed run has those that it had.
---   defaults    table       numbers, strings, booleans, lists, and tables of these
---   returns     table       the same on all ranks; reading a key that is not there is an error
---   collective  no
---   errors      ValueError: an unknown key, with the nearest one, or a value of another type
---   example
---     local settings = mh.config{lr = 1e-3, model = {width = 32}}
---     settings.model.width    --> 32
return function(defaults)
  if type(defaults) ~= "table" then fail("config: expected a table of defaults, got " .. mh._describe(defaults)) end
  local info = mh.run_info()
  local merged = copy(defaults)
  sources = {}
  local resumed = run_log.run and run_log.run.settings
  if resumed then
    local path = run_log.run.folder .. "/run.json"
    merge(merged, defaults, resumed, "", "from " .. path, "resumed")
  end
  for _, file in ipairs(info.config_files) do
    local values = read_file(file, defaults)
    if type(values) ~= "table" then fail("config: '" .. file .. "' does not give a table") end
    merge(merged, defaults, values, "", "from --config " .. file, file)
  end
  for _, setting in ipairs(info.settings) do set(merged, defaults, setting[1], setting[2]) end
  run_log.write_settings(merged, sources)
  return refuse_unknown_keys(merged, "")
end
