-- SPDX-License-Identifier: Apache-2.0
-- Trains one of seven models, six of them for tests/bench/bench_plan.py, which compares forecasts with real steps:
--     moonhalo plan tests/bench/plan_models.lua --ranks 2 --check --machine machine.json -- MODEL SIZE
-- MODEL: unet, vit, fno, convnext, padded (their fields are cut by rows; the last rank of padded has all new rows),
-- tensor (a transformer whose features are cut), stored (one whose parameters are in blocks, its batch is cut). SIZE:
-- small or large.
local mh = require "moonhalo"
local nn = mh.nn

local name, large = arg[1], arg[2] == "large"
local ranks = mh.world_size()
local mesh = mh.init_device_mesh(mh.device(), {ranks}, {"ranks"})
mh.manual_seed(1)

-- ---- Models of fields -----------------------------------------------------------------------------------------------

local function stage(from, to)
  return nn.Sequential(nn.Conv2d(from, to, 3, {padding = 1}), nn.GroupNorm(4, to), nn.SiLU(),
    nn.Conv2d(to, to, 3, {padding = 1}), nn.GroupNorm(4, to), nn.SiLU())
end

local UNet = nn.Module:extend("UNet")
function UNet:init()
  self.first, self.second, self.third = stage(3, 16), stage(16, 32), stage(32, 64)
  self.fourth, self.fifth, self.head = stage(64 + 32, 32), stage(32 + 16, 16), nn.Conv2d(16, 1, 1)
end
local function twice(x) return mh.interpolate(x, {scale_factor = 2, mode = "bilinear"}) end
function UNet:forward(x)
  local fine = self.first(x)
  local middle = self.second(mh.max_pool2d(fine, 2))
  local coarse = self.third(mh.max_pool2d(middle, 2))
  local up = self.fourth(mh.cat({twice(coarse), middle}, 1))
  return self.head(self.fifth(mh.cat({twice(up), fine}, 1)))
end

local Waves = nn.Module:extend("Waves")
function Waves:init(channels, modes)
  self.modes = modes
  for _, part in ipairs {"low", "high"} do
    self[part] = nn.Parameter(mh.randn{channels, channels, modes, modes, 2} / channels)
  end
  self.points = nn.Conv2d(channels, channels, 1)
end
function Waves:forward(x)
  local height, width = x.shape[3], x.shape[4]
  local spectrum = mh.fft_rfft2(x)
  local mixed = mh.zeros_like(spectrum)
  local function mix(first, weight)
    local waves = (":, :, %d:%d, 0:%d"):format(first, first + self.modes, self.modes)
    mixed[waves] = mh.einsum("bixy,ioxy->boxy", {spectrum[waves], mh.view_as_complex(weight)})
  end
  mix(0, self.low)
  mix(height - self.modes, self.high)
  return (mh.fft_irfft2(mixed, {height, width}) + self.points(x)):gelu()
end

local ConvNeXt = nn.Module:extend("ConvNeXtBlock")
function ConvNeXt:init(channels)
  self.space = nn.Conv2d(channels, channels, 7, {groups = channels, padding = 3})
  self.norm = nn.LayerNorm(channels, {eps = 1e-6})
  self.mix = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))
end
function ConvNeXt:forward(x) return x + self.mix(self.norm(self.space(x):movedim(1, -1))):movedim(-1, 1) end

-- ---- Transformers ---------------------------------------------------------------------------------------------------

local Block = nn.Module:extend("Block")
function Block:init(width, heads)
  self.heads, self.size = heads, width // heads
  self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
  for _, part in ipairs {"query", "key", "value", "mix"} do self[part] = nn.Linear(width, width) end
  self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
end
function Block:forward(x)
  local y = self.norm1(x)
  local function heads(layer) return layer(y):unflatten(-1, {self.heads, self.size}):transpose(1, 2) end
  local seen = mh.scaled_dot_product_attention(heads(self.query), heads(self.key), heads(self.value))
  x = x + self.mix(seen:transpose(1, 2):flatten(2))
  return x + self.narrow(mh.gelu(self.widen(self.norm2(x))))
end

local function blocks(width, heads, depth)
  local all = {}
  for i = 1, depth do all[i] = Block(width, heads) end
  return nn.Sequential(table.unpack(all))
end

local Vit = nn.Module:extend("VisionTransformer")
function Vit:init(width)
  self.patches, self.blocks, self.norm = nn.Conv2d(3, width, 8, {stride = 8}), blocks(width, 4, 4), nn.LayerNorm(width)
end
function Vit:forward(x) return self.norm(self.blocks(self.patches(x):flatten(2):transpose(1, 2))) end

-- ---- Cutting --------------------------------------------------------------------------------------------------------

local function field(net, channels, height)
  mh.distribute_module(net, mesh)
  local x = mh.distribute_tensor(mh.randn{1, channels, height, height}, mesh, {mh.Shard(2)})
  return net, x
end

local function sequence(rows, tokens, width) return mh.randn{rows, tokens, width} end

local kModels = {
  unet = function() return field(UNet(), 3, large and 256 or 128) end,
  vit = function() return field(Vit(large and 192 or 96), 3, large and 256 or 192) end,
  fno = function()
    local net = nn.Sequential(nn.Conv2d(3, 16, 1), Waves(16, 12), Waves(16, 12), Waves(16, 12), nn.Conv2d(16, 1, 1))
    return field(net, 3, large and 256 or 128)
  end,
  padded = function()
    mh.set_output_cut("keep")
    local Padded = nn.Module:extend("Padded")
    function Padded:init() self.inner = nn.Sequential(nn.Conv2d(3, 16, 1), Waves(16, 12), nn.Conv2d(16, 1, 1)) end
    function Padded:forward(x) return self.inner(mh.pad(x, {0, 0, 0, x.shape[3]})) end
    return field(Padded(), 3, large and 256 or 128)
  end,
  convnext = function()
    local net = nn.Sequential(nn.Conv2d(3, 32, 4, {stride = 4}), ConvNeXt(32), ConvNeXt(32), ConvNeXt(32),
      nn.Conv2d(32, 3, 1))
    return field(net, 3, large and 384 or 192)
  end,
  tensor = function()
    local net = blocks(large and 384 or 192, 12, 3)
    local plan = {parameter = {}}
    for _, part in ipairs {"query", "key", "value", "widen"} do plan.parameter["*." .. part .. ".*"] = {mh.Shard(0)} end
    for _, part in ipairs {"mix", "narrow"} do plan.parameter["*." .. part .. ".weight"] = {mh.Shard(1)} end
    mh.parallelize_module(net, mesh, plan)
    return net, sequence(2, 256, large and 384 or 192)
  end,
  stored = function()
    local net = blocks(large and 384 or 192, 6, 3)
    for _, block in ipairs(net:children()) do mh.fully_shard(block, {mesh = mesh}) end
    mh.fully_shard(net, {mesh = mesh})
    mh.manual_seed(2 + mh.rank())  -- each rank has other samples
    return net, sequence(2, 128, large and 384 or 192)
  end,
}

local net, x = assert(kModels[name], "no such model")()
local optimizer = mh.build_optimizer(net, mh.optim.AdamW, {lr = 1e-3})
for _ = 1, tonumber(arg[3] or 1000) do
  optimizer:zero_grad()
  net(x):square():mean():backward()
  optimizer:step()
end
