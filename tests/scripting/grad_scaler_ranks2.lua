-- SPDX-License-Identifier: Apache-2.0
-- Y16: the history of mh.GradScaler's scales on another number of ranks than three.
return require "support.grad_scaler_history"
