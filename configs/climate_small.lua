-- SPDX-License-Identifier: Apache-2.0
-- examples/climate/train.lua in a few seconds; the network does not become good.
return {
  steps = 20,        -- optimizer steps
  batch = 8,         -- samples (target years) per step
  lr = 2e-3,         -- AdamW's first learning rate; decays to 0 along a cosine
  width = 8,         -- channels of the U-Net at full resolution
  dropout = 0.0,     -- probability with which an activation is dropped in training
  plot = false,      -- write no pictures
}
