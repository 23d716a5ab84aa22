-- SPDX-License-Identifier: Apache-2.0
-- V10, X14: pipelines in plans by the time of their steps, on 4 ranks.
return require "support.autodist_pipelines"
