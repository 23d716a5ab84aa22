-- SPDX-License-Identifier: Apache-2.0
-- Weights of PyTorch in and out: the names are those of torch.nn, with a prefix that Lightning adds.
local mh = require "moonhalo"
local nn = mh.nn
mh.manual_seed(1)
local function model() return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)) end

local theirs = {}
for name, tensor in pairs(model():state_dict()) do theirs["model." .. name] = tensor end
if mh.rank() == 0 then mh.save_pt("theirs.ckpt", {state_dict = theirs}) end  -- torch.save(...) makes such files
mh.barrier()

local net = model()
net:load_state_dict(mh.load("theirs.ckpt").state_dict, {rename = {{"^model%.", ""}}})
print(net[0].weight:equal(theirs["model.0.weight"]))  --> true
if mh.rank() == 0 then mh.save_pt("mine.pt", net:state_dict()) end           -- torch.load("mine.pt")
