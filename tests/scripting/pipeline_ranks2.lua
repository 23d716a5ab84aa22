-- SPDX-License-Identifier: Apache-2.0
-- N15-N20, V12: pipelines over 2 ranks.
return require "support.pipelines"
