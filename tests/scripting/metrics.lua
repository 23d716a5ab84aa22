-- SPDX-License-Identifier: Apache-2.0
-- Y17: losses, metrics and diagnostics of plain fields against their formulas, written as loops over numbers.
local mh = require "moonhalo"
local testing = require "moonhalo.testing"

local kF64 = {dtype = "float64"}
local L, M, D = mh.losses, mh.metrics, mh.diagnostics
local kShape = {3, 2, 4, 5}  -- batch, channel, y, x
local kPoints = 20
local tests = {}

local function draw(seed, shape)
  mh.manual_seed(seed)
  return mh.randn(shape or kShape, kF64)
end

local function close(a, b, tolerance)
  tolerance = tolerance or 1e-11
  if not (math.abs(a - b) <= tolerance * math.max(1, math.abs(b))) then
    error(("have %.17g, expected %.17g"):format(a, b), 2)
  end
end

--- visit(sample, channel, list of pairs {guess, truth}, list of positions {y, x})
local function each_plane(guess, truth, visit)
  local g, t = guess:tolist(), truth:tolist()
  for b = 1, #t do
    for c = 1, #t[b] do
      local values, at = {}, {}
      for y = 1, #t[b][c] do
        for x = 1, #t[b][c][y] do
          values[#values + 1] = {g[b][c][y][x], t[b][c][y][x]}
          at[#at + 1] = {y, x}
        end
      end
      visit(b, c, values, at)
    end
  end
end

--- Mean of fn(pairs, positions) over samples and channels.
local function mean_of_planes(guess, truth, fn)
  local total, count = 0, 0
  each_plane(guess, truth, function(_, _, values, at)
    total, count = total + fn(values, at), count + 1
  end)
  return total / count
end

local function sum(values, fn)
  local total = 0
  for i, pair in ipairs(values) do total = total + fn(pair[1], pair[2], i) end
  return total
end

local function value_of(name, options, ...)
  local metric = M[name](options)
  metric:add(...)
  return metric:value()
end

local kLatitudes = {-75, -10, 30, 60}
local function weight_of_row(y)
  local total = 0
  for _, lat in ipairs(kLatitudes) do total = total + math.cos(math.rad(lat)) end
  return math.cos(math.rad(kLatitudes[y])) / (total / #kLatitudes)
end

function tests.test_Y17_weighted_means()
  local g, t = draw(1), draw(2)
  local w = {weights = M.latitude_weights(kLatitudes)}
  local square, size, signed, total, largest = 0, 0, 0, 0, 0
  each_plane(g, t, function(_, _, values, at)
    for i, pair in ipairs(values) do
      local weight, d = weight_of_row(at[i][1]), pair[1] - pair[2]
      square, size, signed = square + weight * d * d, size + weight * math.abs(d), signed + weight * d
      total, largest = total + weight, math.max(largest, math.abs(d))
    end
  end)
  close(value_of("mse", w, g, t), square / total)
  close(value_of("rmse", w, g, t), math.sqrt(square / total))
  close(value_of("mae", w, g, t), size / total)
  close(value_of("bias", w, g, t), signed / total)
  close(value_of("max_error", {}, g, t), largest)
  close(L.mse(g, t, w):item(), square / total)
  close(L.mae(g, t, w):item(), size / total)
end

function tests.test_Y17_masked_elements_may_be_nan()
  local g, t = draw(1), draw(2)
  local mask = mh.ones({4, 5}, {dtype = "bool"})
  mask["1, 2"], mask["3, 4"] = false, false
  local square, count = 0, 0
  each_plane(g, t, function(_, _, values, at)
    for i, pair in ipairs(values) do
      local y, x = at[i][1], at[i][2]
      if not (y == 2 and x == 3 or y == 4 and x == 5) then
        square, count = square + (pair[1] - pair[2]) ^ 2, count + 1
      end
    end
  end)
  local land = mh.where(mask, t, mh.full({}, 0 / 0, kF64))
  close(value_of("mse", {mask = mask}, g, land), square / count)
  local input = g:clone():requires_grad_(true)
  L.mse(input, land, {mask = mask}):backward()
  close(L.mse(g, land, {mask = mask}):item(), square / count)
  assert(input.grad:isfinite():all():item(), "NaN of a masked target must not reach the gradient")
end

function tests.test_Y17_relative_errors_of_samples()
  local g, t = draw(1), draw(2) + 0.5
  local function relative(p)
    return mean_of_planes(g, t, function(values)
      return (sum(values, function(a, b) return math.abs(a - b) ^ p end) / sum(values, function(_, b) return
        math.abs(b) ^ p end)) ^ (1 / p)
    end)
  end
  for _, p in ipairs {1, 2, 3} do
    close(L.relative_lp(g, t, {p = p}):item(), relative(p))
    close(value_of("relative_lp", {p = p}, g, t), relative(p))
  end
  close(value_of("nrmse", {}, g, t), relative(2))
  local vrmse = mean_of_planes(g, t, function(values)
    local mean = sum(values, function(_, b) return b end) / kPoints
    local variance = sum(values, function(_, b) return (b - mean) ^ 2 end) / (kPoints - 1)
    return math.sqrt(sum(values, function(a, b) return (a - b) ^ 2 end) / kPoints / (variance + 1e-7))
  end)
  close(L.vrmse(g, t):item(), vrmse)
  close(value_of("vrmse", {}, g, t), vrmse)
  -- A large mean does not spoil the variance.
  close(value_of("vrmse", {}, g + 1e5, t + 1e5), vrmse, 1e-5)
  local large = (t * 64 + 1e5):float()  -- multiples of 1/128
  close(L.vrmse(large + 8, large):item(), L.vrmse(large:double() + 8, large:double()):item(), 1e-6)
  close(value_of("psnr", {data_range = 4.0}, g, t), mean_of_planes(g, t, function(values)
    return 10 * math.log(16 / (sum(values, function(a, b) return (a - b) ^ 2 end) / kPoints), 10)
  end))
end

function tests.test_Y17_sobolev_norm_by_central_differences()
  local g, t = draw(1), draw(2)
  local h = {0.5, 0.25}
  local function norm(values, fn)
    local total = 0
    local function at(y, x) return fn(table.unpack(values[(y % 4) * 5 + x % 5 + 1])) end
    for y = 0, 3 do
      for x = 0, 4 do
        local dy, dx = (at(y + 1, x) - at(y - 1, x)) / (2 * h[1]), (at(y, x + 1) - at(y, x - 1)) / (2 * h[2])
        total = total + at(y, x) ^ 2 + dy * dy + dx * dx
      end
    end
    return math.sqrt(total)
  end
  local expected = mean_of_planes(g, t, function(values)
    return norm(values, function(a, b) return a - b end) / norm(values, function(_, b) return b end)
  end)
  close(L.relative_h1(g, t, {spacing = h}):item(), expected)
  close(value_of("relative_h1", {spacing = h}, g, t), expected)
end

function tests.test_Y17_anomaly_correlation()
  local g, t, climate = draw(1), draw(2), draw(3, {2, 4, 5})
  local c, channel = climate:tolist(), 0
  local expected = mean_of_planes(g, t, function(values, at)
    channel = channel % 2 + 1
    local fo, ff, oo = 0, 0, 0
    for i, pair in ipairs(values) do
      local w, mean = weight_of_row(at[i][1]), c[channel][at[i][1]][at[i][2]]
      fo, ff = fo + w * (pair[1] - mean) * (pair[2] - mean), ff + w * (pair[1] - mean) ^ 2
      oo = oo + w * (pair[2] - mean) ^ 2
    end
    return fo / math.sqrt(ff * oo)
  end)
  local w = M.latitude_weights(mh.tensor(kLatitudes, kF64))
  close(value_of("acc", {climatology = climate, weights = w}, g, t), expected)
  local later = M.acc{weights = w}
  later:add(g, t, climate)
  close(later:value(), expected)
end

function tests.test_Y17_pdebench()
  local g, t = draw(1), draw(2)
  local function squares(values) return sum(values, function(a, b) return a - b end) ^ 2 / kPoints ^ 2 end
  close(value_of("conserved_rmse", {}, g, t), math.sqrt(mean_of_planes(g, t, squares)))
  local boundary = mean_of_planes(g, t, function(values, at)
    local total = 0
    for i, pair in ipairs(values) do
      local y, x, faces = at[i][1], at[i][2], 0
      if y == 1 or y == 4 then faces = faces + 1 end
      if x == 1 or x == 5 then faces = faces + 1 end
      total = total + faces * (pair[1] - pair[2]) ^ 2
    end
    return math.sqrt(total / (2 * 4 + 2 * 5))
  end)
  close(value_of("boundary_rmse", {}, g, t), boundary)
  close(value_of("drift", {}, g, t), mean_of_planes(g, t, function(values)
    return math.abs(sum(values, function(a, b) return a - b end) / sum(values, function(_, b) return b end))
  end))
end

function tests.test_Y17_energy_and_fractions_of_events()
  local g, t = draw(1), draw(2)
  close(value_of("drift", {energy = true}, g, t), mean_of_planes(g, t, function(values)
    return math.abs(sum(values, function(a, b) return a * a - b * b end) / sum(values, function(_, b) return b * b end))
  end))
  for _, periodic in ipairs {false, true} do
    local above, below = 0, 0
    each_plane(g, t, function(_, _, values)
      local function fraction(which, y, x)
        local count = 0
        for i = -1, 1 do
          for j = -1, 1 do
            local row, column = y + i, x + j
            if periodic then row, column = row % 4, column % 5 end
            local there = row >= 0 and row < 4 and column >= 0 and column < 5
            if there and values[row * 5 + column + 1][which] >= 0.3 then count = count + 1 end
          end
        end
        return count / 9
      end
      for y = 0, 3 do
        for x = 0, 4 do
          local p, o = fraction(1, y, x), fraction(2, y, x)
          above, below = above + (p - o) ^ 2, below + p * p + o * o
        end
      end
    end)
    close(value_of("fss", {threshold = 0.3, periodic = periodic}, g, t), 1 - above / below)
  end
  close(value_of("fss", {threshold = 0.3}, g, g), 1)
end

function tests.test_Y17_velocities_on_a_sphere()
  -- Solid rotation about an axis through the equator: no divergence; the rotation is 2 sin(latitude)-like around it.
  local rows, columns, radius = 90, 120, 2.0
  local latitudes = mh.arange(0, rows, kF64) * 2 - 89
  local lat = mh.deg2rad(latitudes):unsqueeze(1)
  local lon = (mh.arange(0, columns, kF64) * (2 * math.pi / columns)):unsqueeze(0)
  local u, v = -(lat:sin() * lon:cos()), lon:sin() * mh.ones_like(lat)
  local inner = "4:86"
  local curl = D.sphere_curl(u, v, latitudes, {radius = radius, order = 6})
  local divergence = D.sphere_divergence(u, v, latitudes, {radius = radius, order = 6})
  testing.assert_close(curl[inner], (lat:cos() * lon:cos() * 2 / radius)[inner], {atol = 1e-5})
  testing.assert_close(divergence[inner], (u * 0)[inner], {atol = 1e-5})
  -- The gradient of sin(latitude) has minus the divergence of its Laplacian, 2 sin(latitude) / r^2.
  local north = (lat:cos() / radius):expand{rows, columns}
  testing.assert_close(D.sphere_divergence(u * 0, north, latitudes, {radius = radius, order = 6})[inner],
      (lat:sin() * (-2 / radius ^ 2)):expand{rows, columns}[inner], {atol = 1e-5})
  testing.assert_error(function() D.sphere_curl(u, v, {1, 2}) end, "sphere_curl: latitudes are")
  testing.assert_error(function() D.sphere_curl(u, v, mh.linspace(-90, 90, rows, kF64)) end, "between the poles")
end

function tests.test_Y17_ensembles()
  local members, truth = draw(4, {3, 5, 2}), draw(5, {3, 2})
  local e, t = members:tolist(), truth:tolist()
  local fair, plain, spread, skill, brier = 0, 0, 0, 0, 0
  local ranks = {0, 0, 0, 0, 0, 0}
  for b = 1, 3 do
    for c = 1, 2 do
      local y, error, pairs_of, mean, above, rank = t[b][c], 0, 0, 0, 0, 0
      for i = 1, 5 do
        local x = e[b][i][c]
        error, mean = error + math.abs(x - y) / 5, mean + x / 5
        if x > 0.25 then above = above + 0.2 end
        if x < y then rank = rank + 1 end
        for j = 1, 5 do pairs_of = pairs_of + math.abs(x - e[b][j][c]) end
      end
      local variance = 0
      for i = 1, 5 do variance = variance + (e[b][i][c] - mean) ^ 2 / 4 end
      fair, plain = fair + (error - pairs_of / 40) / 6, plain + (error - pairs_of / 50) / 6
      spread, skill = spread + variance * 6 / 5, skill + (mean - y) ^ 2
      brier = brier + (above - (y > 0.25 and 1 or 0)) ^ 2 / 6
      ranks[rank + 1] = ranks[rank + 1] + 1 / 6
    end
  end
  close(L.crps(members, truth):item(), fair)
  close(value_of("crps", {}, members, truth), fair)
  close(value_of("crps", {fair = false}, members, truth), plain)
  close(value_of("spread_skill", {}, members, truth), math.sqrt(spread / skill))
  close(value_of("brier", {threshold = 0.25}, members, truth), brier)
  testing.assert_close(value_of("rank_histogram", {}, members, truth), mh.tensor(ranks, kF64))
  -- A truth that equals two of three members has three ranks.
  testing.assert_close(value_of("rank_histogram", {}, mh.tensor({{1.0, 1.0, 3.0}}, kF64), mh.tensor({1.0}, kF64)),
      mh.tensor({1 / 3, 1 / 3, 1 / 3, 0}, kF64))
end

function tests.test_Y17_structural_similarity()
  local g, t = draw(1, {1, 1, 7, 6}), draw(2, {1, 1, 7, 6})
  local a, b = g:tolist()[1][1], t:tolist()[1][1]
  local window, total = {}, 0
  for i = -1, 1 do window[i] = math.exp(-i * i / (2 * 1.5 ^ 2)) end
  for i = -1, 1 do total = total + window[i] end
  local c1, c2, value, count = (0.01 * 4) ^ 2, (0.03 * 4) ^ 2, 0, 0
  for y = 2, 6 do
    for x = 2, 5 do
      local m = {a = 0, b = 0, aa = 0, bb = 0, ab = 0}
      for i = -1, 1 do
        for j = -1, 1 do
          local w, p, q = window[i] * window[j] / total ^ 2, a[y + i][x + j], b[y + i][x + j]
          m.a, m.b, m.aa, m.bb, m.ab = m.a + w * p, m.b + w * q, m.aa + w * p * p, m.bb + w * q * q, m.ab + w * p * q
        end
      end
      local cov, va, vb = m.ab - m.a * m.b, m.aa - m.a ^ 2, m.bb - m.b ^ 2
      value = value + (2 * m.a * m.b + c1) * (2 * cov + c2) / ((m.a ^ 2 + m.b ^ 2 + c1) * (va + vb + c2))
      count = count + 1
    end
  end
  close(value_of("ssim", {data_range = 4.0, window = 3}, g, t), value / count)
  close(L.ssim(g, t, {data_range = 4.0, window = 3}):item(), 1 - value / count)
  close(value_of("ssim", {data_range = 4.0, window = 3}, g, g), 1)
  for _, shape in ipairs {{2, 3, 9}, {1, 2, 5, 6, 7}} do
    local x = draw(3, shape)
    close(value_of("ssim", {window = 5, periodic = true}, x, x), 1)
  end
end

function tests.test_Y17_spectra()
  local x = draw(1, {2, 6, 8})
  -- Parseval: the powers add up to the mean of squares.
  for _, options in ipairs {{}, {dim = 1}, {dim = 0}} do
    local power = D.power_spectrum(x, options)
    local dim = options.dim or -1
    testing.assert_close(power:sum(dim), (x * x):mean{dim = {dim}})
  end
  local all = D.radial_spectrum(x, {dims = {1, 2}, shells = 6})
  testing.assert_close(all:sum(-1), (x * x):mean{dim = {1, 2}})
  assert(table.concat(D.radial_spectrum(x, {dims = {1, 2}}).shape, ",") == "2,4", "min(n) // 2 + 1 shells")
  -- One wave: |k| = 2 in x, amplitude 3 has the power 9 / 2.
  local wave = (mh.arange(0, 8, kF64) * (2 * math.pi * 2 / 8)):cos() * 3
  testing.assert_close(D.power_spectrum(wave), mh.tensor({0, 0, 4.5, 0, 0}, kF64))
  testing.assert_close(D.radial_spectrum(wave:expand({8, 8}), {dims = {0, 1}}), mh.tensor({0, 0, 4.5, 0, 0}, kF64))
  -- Ten times the power is 10 decibel.
  local field = draw(2, {2, 1, 8, 8})
  close(L.log_spectral_distance(field * math.sqrt(10), field, {eps = 0.0}):item(), 10)
  local spectrum = M.spectrum{}
  spectrum:add(field * math.sqrt(10), field)
  close(spectrum:value().distance, 10, 1e-8)
end

function tests.test_Y17_fields_of_vectors()
  local n, length = 32, 2 * math.pi
  local at = mh.arange(0, n, kF64) * (length / n)
  local x, y = at:reshape{1, n}:expand{n, n}, at:reshape{n, 1}:expand{n, n}
  local options = {dims = {1, 0}, spacing = length / n, order = 6}
  -- u = sin y, v = sin 2x: the curl is 2 cos 2x - cos y, there is no divergence.
  local u, v = y:sin(), (x * 2):sin()
  local vorticity = (x * 2):cos() * 2 - y:cos()
  testing.assert_close(D.curl({u, v}, options), vorticity, {atol = 1e-4})
  testing.assert_close(D.divergence({u, v}, options), u * 0, {atol = 1e-10})
  testing.assert_close(D.divergence({v, u}, options), (x * 2):cos() * 2 + y:cos(), {atol = 1e-4})
  close(D.kinetic_energy({u, v}, {dims = {0, 1}}):item(), 0.5)
  close(D.enstrophy({u, v}, options):item(), 1.25, 1e-4)
  close(D.total(u * u, {dims = {0, 1}}):item(), n * n / 2)
  -- The same on three levels, w = 0: the rotation is along z alone.
  local function levels(one) return one:expand{3, n, n} end
  local three = D.curl({levels(u), levels(v), levels(u * 0)}, {dims = {2, 1, 0}, spacing = length / n, order = 6})
  testing.assert_close(three[3], levels(vorticity), {atol = 1e-4})
  testing.assert_close(three[1]:abs():max() + three[2]:abs():max(), mh.zeros({}, kF64))
end

function tests.test_Y17_batches_add_up()
  local g, t = draw(1), draw(2)
  for _, name in ipairs {"rmse", "vrmse", "acc", "spectrum", "max_error", "ssim"} do
    local options = name == "ssim" and {window = 3} or {}
    local whole, first, second = M[name](options), M[name](options), M[name](options)
    whole:add(g, t)
    first:add(g:narrow(0, 0, 1), t:narrow(0, 0, 1))
    second:add(g:narrow(0, 1, 2), t:narrow(0, 1, 2))
    first:value()
    first:merge(second)
    local a, b = first:value(), whole:value()
    if type(a) == "table" then a, b = a.distance, b.distance end
    close(a, b)
    local resumed = M[name](options)
    resumed:load_state_dict(first:state_dict())
    local c = resumed:value()
    close(type(c) == "table" and c.distance or c, b)
    first:reset()
    testing.assert_error(function() first:value() end, name .. ":value: no batch was added")
  end
end

function tests.test_Y17_a_merged_metric_stays_as_it_is()
  local one, other = M.mae{}, M.mae{}
  other:add(mh.tensor{2.0}, mh.tensor{0.0})

  one:merge(other)
  one:add(mh.tensor{4.0}, mh.tensor{0.0})

  testing.assert_close(one:value(), 3.0)
  testing.assert_close(other:value(), 2.0)
end

function tests.test_Y17_batches_of_different_ndim_add_up()
  local lines, maps = {draw(1):select(1, 0):flatten(1), draw(2):select(1, 0):flatten(1)}, {draw(3), draw(4)}
  for _, name in ipairs {"vrmse", "acc", "relative_lp"} do
    local both, other, first, second = M[name]{}, M[name]{}, M[name]{}, M[name]{}
    both:add(table.unpack(lines))
    both:add(table.unpack(maps))
    other:add(table.unpack(maps))
    other:merge(both)
    first:add(table.unpack(lines))
    second:add(table.unpack(maps))
    local a, b = first:value(), second:value()
    -- Three samples of one value, and three samples with two channels.
    close(both:value(), (3 * a + 6 * b) / 9)
    close(other:value(), (3 * a + 12 * b) / 15)
  end
end

function tests.test_Y17_mistakes()
  local g, t = draw(1), draw(2)
  local cases = {
    {function() M.rmse{weight = 1} end, "rmse: unknown option 'weight'; did you mean 'weights'?"},
    {function() M.rmse{weights = mh.ones{4}}:add(g, t) end, "rmse:add: weights of shape [4] does not broadcast"},
    {function() M.rmse{}:add(g, t:narrow(0, 0, 1)) end, "guess and truth have different shapes"},
    {function() M.rmse{mask = mh.ones{5}}:add(g, t) end, "rmse:add: mask is Tensor float32 [5]"},
    {function() M.rmse{keep = {7}}:add(g, t) end, "keep has 7, expected a dim between -4 and 3"},
    {function() M.vrmse{keep = {0}}:add(g, t) end, "vrmse:add: keep has dim 0, that of the samples"},
    {function() M.crps{}:add(g, t) end, "crps:add: the truth has shape [3, 2, 4, 5], expected [3, 4, 5]"},
    {function() M.crps{}:add(g:narrow(1, 0, 1), t:select(1, 0)) end, "the fair score needs two"},
    {function() M.ssim{}:add(g, t) end, "ssim:add: dim 2 has 4 elements, the window 11"},
    {function() M.fss{threshold = 1.0, window = 4} end, "fss: window is 4, expected an odd number"},
    {function() M.fss{threshold = 1.0, window = 5}:add(g, t) end, "fss:add: dim 2 has 4 elements, the window 5"},
    {function() M.ssim{window = 4}:add(g, t) end, "window is 4, expected an odd number"},
    {function() M.rmse{}:merge(M.mse{}) end, "rmse:merge: expected another rmse"},
    {function() M.rmse{}:load_state_dict(M.mse{}:state_dict()) end, "rmse:load_state_dict: the state is of 'mse'"},
    {function() M.rmse{}:add(g:long(), t) end, "rmse:add: guess is"},
    {function() M.latitude_weights{100} end, "latitude_weights: a latitude is beyond the poles"},
    {function() return M.rsme end, "metrics: no 'rsme'; did you mean 'rmse'?"},
    {function() L.relative_lp(g, t, {reduction = "avg"}) end, "relative_lp: unknown reduction 'avg'"},
    {function() L.mse(g:select(0, 0), t) end, "mse: input and target have different shapes"},
    {function() D.curl({g, t}, {dims = {3}}) end, "curl: 1 dims for 2 components"},
    {function() D.radial_spectrum(g, {dims = {1}}) end, "radial_spectrum: dims are not the last ones"},
  }
  for _, case in ipairs(cases) do testing.assert_error(case[1], case[2]) end
end

return tests
