-- SPDX-License-Identifier: Apache-2.0
-- Every layer against PyTorch's own on the same weights: the sum of the result and its product with cos(0), cos(1), ...
local mh = require "moonhalo"
local testing = require "moonhalo.testing"
local nn, F = mh.nn, mh.functional

local function field() return (mh.arange(2 * 3 * 5 * 7, {dtype = "float64"}):reshape{2, 3, 5, 7} * 0.37):sin() end

--- Fills the parameters, in order, with cos(0.61 k).
local function filled(module)
  local k = 0
  mh.no_grad(function()
    for _, p in module:named_parameters() do
      local n = p:numel()
      p:copy_(((mh.arange(n, {dtype = "float64"}) + k) * 0.61):cos():reshape(p.shape))
      k = k + n
    end
  end)
  return module
end

local kF64 = {dtype = "float64"}
local function with(options)
  local all = {dtype = "float64"}
  for key, value in pairs(options) do all[key] = value end
  return all
end

local function sequence() return field():reshape{2, -1}["0:2, 0:96"]:reshape{2, 8, 12} end
local function attend(index)
  local x = sequence()
  return (select(index, filled(nn.MultiheadAttention(12, 3, with{batch_first = true}))(x, x, x)))
end

local function batch_norm() return filled(nn.BatchNorm2d(3, kF64)) end
local function after_one_batch(read)
  local norm = batch_norm()
  norm(field())
  return read(norm)
end

-- name, function, sum, weighted sum, shape
local cases = {
  {"conv2d", function(x) return filled(nn.Conv2d(3, 4, 3, with{padding = 1, stride = 2}))(x) end,
    -19.133569314045, -2.230882907237, {2, 4, 3, 4}},
  {"conv2d_lists", function(x)
    return filled(nn.Conv2d(3, 6, {3, 2}, with{padding = {2, 1}, dilation = {1, 2}, groups = 3, bias = false}))(x)
  end, 0.273350081383, -2.263256357479, {2, 6, 7, 7}},
  {"circular", function(x) return filled(nn.Conv2d(3, 4, 3, with{padding = {1, 2}, padding_mode = "circular"}))(x) end,
    -188.544378272099, -2.108489179721, {2, 4, 5, 9}},
  {"reflect", function(x) return filled(nn.Conv2d(3, 4, 3, with{padding = 1, padding_mode = "reflect"}))(x) end,
    -110.855697346142, 40.160858781704, {2, 4, 5, 7}},
  {"replicate", function(x) return filled(nn.Conv2d(3, 4, 3, with{padding = 1, padding_mode = "replicate"}))(x) end,
    -40.619224935145, -4.801039153575, {2, 4, 5, 7}},
  {"same", function(x) return filled(nn.Conv2d(3, 4, {4, 3}, with{padding = "same"}))(x) end,
    150.373193362901, 72.595496857262, {2, 4, 5, 7}},
  {"transposed", function(x)
    return filled(nn.ConvTranspose2d(3, 4, 3, with{stride = 2, padding = 1, output_padding = 1}))(x)
  end, -631.103383660379, -8.211217947967, {2, 4, 10, 14}},
  {"transposed_to_size", function(x)
    return filled(nn.ConvTranspose2d(3, 4, 3, with{stride = 2, padding = 1}))(x, {10, 13})
  end, -588.558888414557, -2.193498056636, {2, 4, 10, 13}},
  {"batch_norm", function(x) return batch_norm()(x) end, -141.115410439105, 0.374631289524, {2, 3, 5, 7}},
  {"running_mean", function() return after_one_batch(function(n) return n.running_mean end) end,
    0.005833186093, 0.001461572696, {3}},
  {"running_var", function() return after_one_batch(function(n) return n.running_var end) end,
    2.852579965982, 1.068390329625, {3}},
  {"batch_norm_eval", function(x) return after_one_batch(function(n) return n:eval()(x) end) end,
    -138.612554888150, 0.266027182719, {2, 3, 5, 7}},
  {"cumulative_var", function(x)
    local norm = nn.BatchNorm2d(3, with{momentum = false})
    norm(x)
    norm(x * 2)
    return norm.running_var
  end, 3.814499149554, 1.416260180911, {3}},
  {"group_norm", function(x) return filled(nn.GroupNorm(3, 3, kF64))(x) end, -141.115410439105, 0.359042810425,
  {2, 3, 5, 7}},
  {"layer_norm", function(x) return filled(nn.LayerNorm({5, 7}, kF64))(x) end, -11.337839468179, 0.919595578630,
  {2, 3, 5, 7}}, {"instance_norm", function(x) return nn.InstanceNorm2d(3)(x) end, 0, 0.679617937007, {2, 3, 5, 7}},
  {"rms_norm", function(x) return filled(nn.RMSNorm(7, kF64))(x) end, -3.327405257459, 0.529778833860, {2, 3, 5, 7}},
  {"attention", function() return attend(1) end, -30.437635751371, -202.882541623488, {2, 8, 12}},
  {"attention_weights", function() return attend(2) end, 16, 1.361369292838, {2, 8, 8}},
  {"bilinear", function(x) return F.interpolate(x, {scale_factor = 2, mode = "bilinear"}) end,
    16.332921060510, 2.201337736944, {2, 3, 10, 14}},
  {"bilinear_corners", function(x) return F.interpolate(x, {size = {9, 4}, mode = "bilinear",
    align_corners = true}) end, -0.591326130110, -0.385932027345, {2, 3, 9, 4}},
  {"nearest", function(x) return nn.Upsample{scale_factor = {1.5, 2.0}}(x) end, 93.401388214194, -1.479836248651,
  {2, 3, 7, 14}}, {"bicubic", function(x) return F.interpolate(x, {size = {9, 4}, mode = "bicubic"}) end,
    3.361945757084, -0.161741043094, {2, 3, 9, 4}},
  {"area", function(x) return F.interpolate(x, {size = {2, 3}, mode = "area"}) end, 3.721586027593, 0.811856011995,
  {2, 3, 2, 3}},
  {"antialias", function(x) return F.interpolate(x, {size = {3, 4}, mode = "bilinear", antialias = true}) end,
    -0.449202990217, -0.072323592685, {2, 3, 3, 4}},
  {"nearest_exact", function(x) return F.interpolate(x, {size = {3, 4}, mode = "nearest-exact"}) end,
    20.631894219191, -1.150358931102, {2, 3, 3, 4}},
  {"max_pool", function(x) return nn.MaxPool2d(2, {padding = 1})(x) end, 42.673077364841, -1.973551931998,
  {2, 3, 3, 4}}, {"avg_pool", function(x) return nn.AvgPool2d(3, {stride = 2, padding = 1, ceil_mode = true})(x) end,
    -5.079028289379, 0.158276266432, {2, 3, 3, 4}},
  {"adaptive_pool", function(x) return nn.AdaptiveAvgPool2d(2)(x) end, 2.451059654899, -0.020508697724, {2, 3, 2, 2}},
  {"two_inputs", function(x) return filled(nn.Bilinear(7, 7, 3, kF64))(x, x:cos()) end,
    -53.675633829261, -3.067974742581, {2, 3, 5, 3}},
  {"elu", function(x) return nn.ELU(0.5)(x) end, 46.329916746989, 0.873705709204, {2, 3, 5, 7}},
  {"gelu_tanh", function(x) return nn.GELU{approximate = "tanh"}(x) end, 39.388699521530, 0.693777410959, {2, 3, 5, 7}},
  {"softplus", function(x) return nn.Softplus(2, 1)(x) end, 92.387663990592, 0.757994149865, {2, 3, 5, 7}},
  {"celu", function(x) return nn.CELU(2)(x) end, 15.208275675424, 0.721944493248, {2, 3, 5, 7}},
  {"hardtanh", function(x) return nn.Hardtanh(-0.5, 0.3)(x) end, -13.571463574612, 1.002946585830, {2, 3, 5, 7}},
  {"mish", function(x) return nn.Mish()(x) end, 32.934654209985, 0.688547197242, {2, 3, 5, 7}},
  {"softsign", function(x) return nn.Softsign()(x) end, 2.297874988965, 0.702190412278, {2, 3, 5, 7}},
  {"tanhshrink", function(x) return nn.Tanhshrink()(x) end, 0.773586460747, -0.291644691417, {2, 3, 5, 7}},
  {"glu", function(x) return nn.GLU(0)(x) end, 5.706571247330, -1.101717063908, {1, 3, 5, 7}},
  {"softmin", function(x) return nn.Softmin(1)(x) end, 70, 0.627009546572, {2, 3, 5, 7}},
  {"prelu", function(x) return nn.PReLU(kF64)(x) end, 52.734816162988, 0.795762090306, {2, 3, 5, 7}},
  {"log_sigmoid", function(x) return nn.LogSigmoid()(x) end, -156.298518100655, -0.844790345395, {2, 3, 5, 7}},
  {"threshold", function(x) return nn.Threshold(0.1, 20)(x) end, 2248.420786250285, -27.378625406626, {2, 3, 5, 7}},
}

local tests = {}

for _, case in ipairs(cases) do
  tests["test_" .. case[1]] = function()
    local y = case[2](field())

    testing.assert_equal(y.shape, case[5])
    local weights = mh.arange(y:numel(), {dtype = "float64"}):cos():reshape(y.shape)
    testing.assert_close(y:sum():item(), case[3], {rtol = 1e-10, atol = 1e-9})
    testing.assert_close((y * weights):sum():item(), case[4], {rtol = 1e-10, atol = 1e-9})
  end
end

function tests.test_one_and_three_dimensions_agree_with_two()
  local x = field()
  local flat, line, deep = nn.Conv2d(3, 2, {1, 3}, kF64), nn.Conv1d(3, 2, 3, kF64), nn.Conv3d(3, 2, {1, 1, 3}, kF64)
  line:load_state_dict{weight = flat.weight:squeeze(2), bias = flat.bias}
  deep:load_state_dict{weight = flat.weight:unsqueeze(2), bias = flat.bias}

  local expected = flat(x)

  testing.assert_close(line(x:select(2, 1)), expected:select(2, 1))
  testing.assert_close(deep(x:unsqueeze(2)):squeeze(2), expected)
end

function tests.test_dropout_keeps_the_mean_and_is_off_in_eval()
  mh.manual_seed(3)
  local drop, x = nn.Dropout(0.25), mh.ones({200, 500}, {dtype = "float64"})

  local y = drop(x)

  testing.assert_close(y:mean():item(), 1.0, {atol = 0.01})
  testing.assert_close((y:eq(0)):double():mean():item(), 0.25, {atol = 0.01})
  testing.assert_close(y:max():item(), 4 / 3)
  testing.assert_equal(mh.equal(drop:eval()(x), x), true)
  local channels = nn.Dropout2d(0.5)(mh.ones{8, 16, 4, 4})
  testing.assert_equal(mh.equal(channels:amax{2, 3}, channels:amin{2, 3}), true)
end

function tests.test_embedding_rows_and_padding()
  local table_of = nn.Embedding(5, 3, {padding_idx = -1})
  local rows = table_of(mh.tensor{4, 1})

  testing.assert_equal(rows["0"]:tolist(), {0.0, 0.0, 0.0})
  testing.assert_equal(mh.equal(rows["1"], table_of.weight["1"]), true)
  rows:sum():backward()
  testing.assert_equal(table_of.weight.grad:sum(1):tolist(), {0.0, 3.0, 0.0, 0.0, 0.0})
end

-- X02: every rank and every rank count starts from the same weights.
function tests.test_X02_initial_weights_follow_the_seed()
  mh.manual_seed(11)
  local a = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(7, 5))
  mh.manual_seed(11)
  local b = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(7, 5))

  for name, p in a:named_parameters() do testing.assert_equal(mh.equal(p, b:named_parameters()[name]), true) end
  local bound = 1 / math.sqrt(27)
  testing.assert_equal(a[0].weight:abs():max():item() <= bound, true)
  testing.assert_close(a[0].weight:std():item(), bound / math.sqrt(3), {rtol = 0.1})
end

function tests.test_initial_values()
  local t = mh.empty{64, 32, 3}
  local init = nn.init
  testing.assert_close(init.kaiming_normal_(t, {mode = "fan_out", nonlinearity = "relu"}):std():item(),
      math.sqrt(2 / (64 * 3)), {rtol = 0.05})
  testing.assert_close(init.xavier_uniform_(t, 2):abs():max():item(), 2 * math.sqrt(6 / (96 * 3)), {rtol = 0.01})
  testing.assert_equal(init.trunc_normal_(t, 0, 1, -0.5, 0.5):abs():max():item() <= 0.5, true)
  local q = init.orthogonal_(mh.empty({6, 4}, kF64))
  testing.assert_close(q:t():matmul(q), mh.eye(4, kF64))
  local identity = nn.Conv2d(3, 3, 3, with{padding = 1, bias = false})
  init.dirac_(identity.weight)
  testing.assert_close(identity(field()), field())
  testing.assert_error(function() init.calculate_gain("rellu") end, "did you mean 'relu'")
end

function tests.test_wrong_calls_name_the_option()
  local refused = {
    {function() nn.Conv2d(1, 2, 3, {paddin = 1}) end, "Conv2d: unknown option 'paddin'; did you mean 'padding'?"},
    {function() nn.Conv2d(1, 2) end, "Conv2d: 'kernel_size' is missing"},
    {function() nn.Conv2d(3, 4, 3, {groups = 2}) end, "Conv2d: in_channels 3 is not divisible by groups 2"},
    {function() nn.Conv2d(3, 4, 3, 1, {stride = 2}) end, "'stride' is given twice"},
    {function() nn.Conv2d(3, 4, {3, 3, 3}) end, "Conv2d: kernel_size has 3 numbers, expected one or 2"},
    {function() nn.Conv2d(3, 4, 3, {padding_mode = "cyclic"}) end, "unknown padding_mode 'cyclic'"},
    {function() nn.Conv2d(3, 4, 3, {padding = "same", stride = 2}) end, "padding 'same' needs a stride of 1"},
    {function() nn.GroupNorm(4, 6) end, "GroupNorm: 6 channels are not divisible by 4 groups"},
    {function() nn.BatchNorm2d(3)(mh.zeros{2, 3, 4}) end, "BatchNorm2d: the input has 3 dimensions, expected 4"},
    {function() nn.Dropout(1.5) end, "expected a probability"},
    {function() return nn.Conv4d end, "nn: no module 'Conv4d'; did you mean"},
    {function() F.interpolate(mh.zeros{1, 1, 2, 2}, {mode = "bilinear"}) end, "give either size or scale_factor"},
  }
  for _, case in ipairs(refused) do testing.assert_error(case[1], case[2]) end
end

-- As PyTorch refuses it: the result would be zeros, and the running variance NaN.
function tests.test_one_value_is_not_normalized()
  local batch = nn.BatchNorm1d(2)
  local cases = {
    {batch, {1, 2}, "BatchNorm1d: expected more than 1 value per channel when training\n  have  an input {1, 2}"},
    {nn.BatchNorm2d(2), {1, 2, 1, 1}, "BatchNorm2d: expected more than 1 value per channel"},
    {nn.BatchNorm1d(2, {track_running_stats = false}):eval(), {1, 2, 1},
    "BatchNorm1d: expected more than 1 value per channel"},
    {nn.InstanceNorm1d(2), {3, 2, 1}, "InstanceNorm1d: expected more than 1 value per channel of a sample"},
    {nn.InstanceNorm2d(2), {2, 1, 1}, "InstanceNorm2d: expected more than 1 value per channel of a sample"},
    {nn.GroupNorm(2, 2), {1, 2, 1}, "GroupNorm: expected more than 1 value per group"},
  }
  for _, case in ipairs(cases) do testing.assert_error(function() case[1](mh.ones(case[2])) end, case[3]) end
  testing.assert_equal(batch.running_var:tolist(), {1, 1})
  testing.assert_equal(batch.num_batches_tracked:item(), 0)
  batch:eval()(mh.ones{1, 2})
  for module, shape in pairs{[nn.BatchNorm1d(2)] = {2, 2}, [nn.BatchNorm2d(2)] = {1, 2, 1, 2},
    [nn.BatchNorm3d(2)] = {0, 2, 1, 1, 1},
    [nn.InstanceNorm1d(2, {track_running_stats = true}):eval()] = {1, 2, 1}, [nn.GroupNorm(1, 2)] = {1, 2, 1},
      [nn.GroupNorm(2, 2)] = {2, 2}} do
    testing.assert_equal(module(mh.ones(shape)).shape, shape)
  end
end

-- A window as large as the domain is plain attention, causal or not.
function tests.test_X04_neighborhood_attention_of_the_whole_domain()
  for _, causal in ipairs{false, true} do
    local x = (mh.arange(2 * 6 * 12, kF64):reshape{2, 6, 12} * 0.37):sin()
    local dense = filled(nn.MultiheadAttention(12, 3, with{batch_first = true}))
    local near = nn.NeighborhoodAttention1d(12, 3, 6, with{is_causal = causal})
    testing.assert_equal(#near:parameters(), 4)
    mh.no_grad(function()
      near.qkv.weight:copy_(dense.in_proj_weight)
      near.qkv.bias:copy_(dense.in_proj_bias)
      near.proj.weight:copy_(dense.out_proj.weight)
      near.proj.bias:copy_(dense.out_proj.bias)
    end)
    testing.assert_close(near(x), dense(x, x, x, {need_weights = false, is_causal = causal}))
  end
  testing.assert_equal(nn.NeighborhoodAttention2d(8, 2, {3, 5}, {dilation = 2}):extra_repr(),
    "embed_dim=8, num_heads=2, window=(3, 5), dilation=(2, 2)")
  testing.assert_equal(nn.NeighborhoodAttention2d(8, 2, 3, {is_causal = {false, true}}):extra_repr(),
    "embed_dim=8, num_heads=2, window=(3, 3), is_causal=(false, true)")
  testing.assert_error(function() nn.NeighborhoodAttention2d(12, 5, 3) end,
    "NeighborhoodAttention2d: embed_dim 12 is not divisible by num_heads 5")
  testing.assert_error(function() nn.NeighborhoodAttention2d(12, 3, {3, 3, 3}) end,
      "window has 3 numbers, expected one or 2")
  testing.assert_error(function() nn.NeighborhoodAttention2d(12, 3, 3, {is_causal = {true}}) end,
      "expected true, false or a list of 2")
  testing.assert_error(function() nn.NeighborhoodAttention2d(12, 3, 3)(mh.zeros{1, 6, 12}) end,
    "NeighborhoodAttention2d: the input has 3 dimensions, expected 4")
  testing.assert_error(function() nn.NeighborhoodAttention1d(12, 3, 9)(mh.zeros{1, 6, 12}) end,
    "neighborhood_attention: window 9 along dim 1 is larger than the domain of 6")
end

-- The operator by name: one number for all dims, names in a last table, both results.
function tests.test_X04_neighborhood_attention_by_name()
  local zero, v = mh.zeros({1, 9, 1, 2}, kF64), mh.arange(9, kF64):reshape{1, 9, 1, 1}
  local output, logsumexp = mh.neighborhood_attention(zero, zero, v, 3, {is_causal = {true}})
  testing.assert_close(output:flatten(), mh.tensor({0, 0.5, 1, 2, 3, 4, 5, 6, 7}, kF64))
  testing.assert_close(logsumexp:flatten():exp(), mh.tensor({1, 2, 3, 3, 3, 3, 3, 3, 3}, kF64))
  testing.assert_close((zero:neighborhood_attention(zero, v, {2}, {stride = 2})):flatten(),
    mh.tensor({0.5, 0.5, 2.5, 2.5, 4.5, 4.5, 6.5, 6.5, 7.5}, kF64))
end

return tests
