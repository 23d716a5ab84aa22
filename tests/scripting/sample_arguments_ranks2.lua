-- SPDX-License-Identifier: Apache-2.0
-- Arguments that are the same for all samples on 2 ranks: V15, N02, N17, N36.
return require "support.sample_arguments"
