-- SPDX-License-Identifier: Apache-2.0
-- shows:
--  * a model that Python exported runs on the blocks of a solver (solver.f90, solver.c), without Python
--  * the script says which fields are channels, and which field the result becomes
local mh = require "moonhalo"

local config = mh.config {model = "unet.pt2", output = "u.pt"}
local fields = mh.host.fields
local net = mh.export.load(config.model)

--- q = net(u). The network takes [samples, channels, rows, columns].
function infer()
  mh.no_grad(function() fields.q:copy_(net(fields.u:unsqueeze(0):unsqueeze(0))[0][0]) end)
end

--- Writes the whole field, for torch.load.
function save()
  local u = fields.u:full_tensor()
  if mh.rank() == 0 then mh.save_pt(config.output, {u = u}) end
end
