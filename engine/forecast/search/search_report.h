// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "moonhalo/engine/forecast/search/division_search.h"

namespace moonhalo {

/// True unless the division needs more memory than there is. Not collective.
bool fits(const DivisionResult& one);

/// Sorts the divisions of a search as SearchResult says. Not collective.
void rank_results(SearchResult& result);

/// Says of each division of a ranked result why it is not the best. Not collective.
void explain(SearchResult& result);

}  // namespace moonhalo
