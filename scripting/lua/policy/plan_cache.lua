-- SPDX-License-Identifier: Apache-2.0
-- Plans of parallelize on the disk: GEN_SAVEDIR/CLASS[/INSTANCE]/plan.json, with all that a plan was made from.

local mh = require "moonhalo"

local fail, files = mh.fail, mh._files
local plan_cache = {}

local kFormat = 1
plan_cache.modes = {"graph", "match", "moo", "override"}

function plan_cache.path(folder, class, instance)
  for what, name in pairs {instance_name = instance, ["the name of the class"] = class} do
    if name:find("[/\\%c]") or name == "." or name == ".." then
      fail(("parallelize: %s is the name of a folder below gen_savedir, without separators\n  have  '%s'\n" ..
        "  fix   letters, digits and _"):format(what, name))
    end
  end
  return folder .. "/" .. class .. (instance and "/" .. instance or "") .. "/plan.json"
end

--- A number for a function of Lua, from its code: FNV-1a.
local function fingerprint(fn)
  local hash = 0x811c9dc5
  for i = 1, #fn do hash = ((hash ~ fn:byte(i)) * 0x01000193) & 0xffffffff end
  return ("%08x"):format(hash)
end

local add_upvalues

--- A value, as strings and numbers by path in `found`. Objects and modules are left out: their fields are not data.
local function add_value(path, value, found, seen)
  if mh.is_tensor(value) then
    found[path] = ("%s[%s]"):format(value.dtype, table.concat(value.shape, ", "))
    if not value:is_shard_tensor() then found[path] = found[path] .. fingerprint(mh.json.encode(value:tolist())) end
  elseif type(value) == "function" then
    local of_lua = debug.getinfo(value, "S").what ~= "C"
    found[path] = of_lua and "function " .. fingerprint(string.dump(value, true)) or "function"
    if of_lua then add_upvalues(path .. ".", value, found, seen) end
  elseif type(value) == "table" then
    if seen[value] or getmetatable(value) or rawget(value, "instance_meta") ~= nil then return end
    seen[value] = true
    for key, one in pairs(value) do
      if type(key) == "string" or math.type(key) == "integer" then add_value(path .. "." .. key, one, found, seen) end
    end
  elseif type(value) == "number" then
    found[path] = ("%.17g"):format(value)
  elseif type(value) == "userdata" then
    found[path] = tostring(value):gsub("0x%x+", "")
  else
    found[path] = tostring(value)
  end
end

function add_upvalues(path, fn, found, seen)
  if seen[fn] then return end
  seen[fn] = true
  for _, library in pairs(package.loaded) do seen[library] = true end
  for i = 1, 255 do
    local name, value = debug.getupvalue(fn, i)
    if not name then return end
    if name ~= "_ENV" then add_value(path .. name, value, found, seen) end
  end
end

local function upvalues_of(policy)
  local found = {}
  add_upvalues("", policy, found, {})
  return found
end

--- The name of a policy; of a function its code and the values of its upvalues, and of theirs, on which its plan may
--- depend. (Globals are not looked at.)
function plan_cache.name_of(policy)
  if type(policy) == "string" then return policy end
  return {code = fingerprint(string.dump(policy, true)), upvalues = upvalues_of(policy)}
end

--- After `policy` has made a plan for `key`: upvalues that it has written itself are not reason for another plan.
function plan_cache.forget_written(key, policy)
  if type(policy) == "string" then return end
  local before, now, written = key.policy.upvalues, upvalues_of(policy), {}
  for _, values in ipairs {before, now} do
    for name in pairs(values) do
      if before[name] ~= now[name] then written[name] = true end
    end
  end
  for name in pairs(written) do before[name] = nil end
  key.policy.written = written
end

--- `now`, the key that is required, without upvalues that the policy wrote when it made the plan of `before`.
local function without_written(now, before)
  local written = type(before.policy) == "table" and before.policy.written
  if not written or type(now.policy) ~= "table" then return now end
  for name in pairs(written) do now.policy.upvalues[name] = nil end
  now.policy.written = written
  return now
end

--- Paths at which two tables of plain data differ: {{path, before, now}, ...}.
local function differences(path, before, now, found)
  if type(before) ~= "table" or type(now) ~= "table" then
    if before ~= now then found[#found + 1] = {path, before, now} end
    return found
  end
  local keys, seen = {}, {}
  for _, one in ipairs {before, now} do
    for key in pairs(one) do
      if not seen[key] then seen[key], keys[#keys + 1] = true, key end
    end
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, key in ipairs(keys) do
    differences(path == "" and tostring(key) or path .. "." .. tostring(key), before[key], now[key], found)
  end
  return found
end

local kShown = 3

local function shown(value)
  if value == nil then return "nothing" end
  return type(value) == "table" and mh.json.encode(value) or tostring(value)
end

--- Says what changed since the plan was made, for messages; nil when nothing did.
local function changed(before, now)
  local found, lines = differences("", before, now, {}), {}
  if #found == 0 then return nil end
  for i = 1, math.min(#found, kShown) do
    lines[i] = ("'%s' was %s, is %s"):format(found[i][1], shown(found[i][2]), shown(found[i][3]))
  end
  if #found > kShown then lines[#lines + 1] = ("%d more"):format(#found - kShown) end
  return table.concat(lines, "\n  also  ")
end

local function decoded(path, text)
  local done, entry = pcall(mh.json.decode, text)
  local known = done and type(entry) == "table" and entry.format == kFormat
  if not known or type(entry.key) ~= "table" or type(entry.plan) ~= "table" then
    fail(("parallelize: '%s' is not a plan that this version has written\n  fix   remove it, or reuse = \"override\"")
      :format(path))
  end
  return entry
end

local function read_file(path)
  if not mh.files.exists(path) then return nil end
  local file <close> = assert(io.open(path, "rb"))
  return file:read("a")
end

--- The plan at `path` as JSON keeps tables: numbers without fraction come back as integers, so both sides pass through
--- it.
local function as_saved(key) return mh.json.decode(mh.json.encode(key)) end

--- Finds what there is for `key` under `path`: {plan =} and, where the model and its arguments are the same, {graph =}.
--- Mode "match" refuses a plan that was made from something else, "moo" passes over it, "graph" and "override" never
--- take a plan. Collective where `shared`.
function plan_cache.find(path, key, mode, shared)
  if mode == "override" then return {} end
  local now = as_saved(key)
  local look = shared and files.on_first_rank or files.on_every_rank
  local text = look(function()
    local saved = read_file(path)
    if not saved then return nil end
    local entry = decoded(path, saved)
    now = without_written(now, entry.key)
    local difference = changed(entry.key, now)
    if difference and mode == "match" then
      fail(("parallelize: '%s' holds a plan of something else: %s\n" ..
          "  fix   reuse = \"moo\" makes another plan where something "
        .. "changed; give two models an instance_name each")
        :format(path, difference))
    end
    local found = {}
    if not difference and mode ~= "graph" then found.plan = entry.plan end
    if mode == "graph" and not changed(entry.key.model, now.model) then found.graph = entry.graph end
    return (found.plan or found.graph) and mh.json.encode(found) or nil
  end)
  return text and mh.json.decode(text) or {}
end

--- Rank 0 writes; all wait. Collective.
function plan_cache.write(path, key, plan, graph)
  files.on_first_rank(function()
    mh.files.make_folder(path:match("^(.*)/"))
    files.write("parallelize", path, mh.json.encode({format = kFormat, key = key, plan = plan, graph = graph}, 1)
        .. "\n")
  end)
end

return plan_cache
