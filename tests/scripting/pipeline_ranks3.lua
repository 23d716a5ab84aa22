-- SPDX-License-Identifier: Apache-2.0
-- N15-N20, V12: pipelines over 3 ranks.
return require "support.pipelines"
