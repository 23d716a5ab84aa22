// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

/// Regions of tensors that one launch copies, or adds up. Without LibTorch, since compilers of devices read it; host
/// and device share constexpr functions.
namespace moonhalo::regions {

constexpr int kMostDims = 6;
constexpr int kMostRegions = 32;  ///< of a launch; a block in three dims has 26 neighbours

/// One region: `size` elements per dim, in both memories.
struct Region {
  const void* from;
  void* to;
  int64_t end;  ///< elements of this region and those before it in the launch
  int64_t size[kMostDims], from_stride[kMostDims], to_stride[kMostDims];
  int64_t begin[kMostDims];  ///< where it begins in the tensor that is added to
};

/// Dims are those of every region, the innermost last.
struct Launch {
  int count, dims;
  Region regions[kMostRegions];

  constexpr int64_t elements() const { return count == 0 ? 0 : regions[count - 1].end; }
  /// The region of an element, which becomes its number there.
  constexpr int find(int64_t& element) const {
    int r = 0;
    while (element >= regions[r].end) ++r;
    if (r > 0) element -= regions[r - 1].end;
    return r;
  }
};

struct Place {
  int64_t index[kMostDims] = {};
};

constexpr Place place_of(const Launch& launch, const Region& region, int64_t element) {
  Place place;
  for (int d = launch.dims - 1; d >= 0; --d) {
    place.index[d] = element % region.size[d];
    element /= region.size[d];
  }
  return place;
}

constexpr int64_t offset(const Launch& launch, const int64_t* stride, const Place& place) {
  int64_t sum = 0;
  for (int d = 0; d < launch.dims; ++d) sum += place.index[d] * stride[d];
  return sum;
}

/// Copies one element of the launch.
template <typename T>
struct Copy {
  static constexpr void run(const Launch& launch, int64_t element) {
    const Region& region = launch.regions[launch.find(element)];
    const Place place = place_of(launch, region, element);
    static_cast<T*>(region.to)[offset(launch, region.to_stride, place)] =
        static_cast<const T*>(region.from)[offset(launch, region.from_stride, place)];
  }
};

/// The place in `other` of what is at `place` of `region`, both in the tensor that is added to; false if it is
/// outside.
constexpr bool shared(const Launch& launch, const Region& region, const Place& place, const Region& other,
                      Place& there) {
  for (int d = 0; d < launch.dims; ++d) {
    there.index[d] = region.begin[d] + place.index[d] - other.begin[d];
    if (there.index[d] < 0 || there.index[d] >= other.size[d]) return false;
  }
  return true;
}

/// Adds one element of the launch, and what other regions have for the same place. The first region that holds a
/// place does all its sums, in the order of regions: the same bits every time, and no two threads write one number.
/// All regions are in one tensor: `to` and `to_stride` are the same but for where they begin.
template <typename T>
struct Add {
  static constexpr void run(const Launch& launch, int64_t element) {
    const int own = launch.find(element);
    const Region& region = launch.regions[own];
    const Place place = place_of(launch, region, element);
    Place there;
    for (int r = 0; r < own; ++r) {
      if (shared(launch, region, place, launch.regions[r], there)) return;
    }
    T& sum = static_cast<T*>(region.to)[offset(launch, region.to_stride, place)];
    for (int r = own; r < launch.count; ++r) {
      const Region& other = launch.regions[r];
      if (!shared(launch, region, place, other, there)) continue;
      sum = sum + static_cast<const T*>(other.from)[offset(launch, other.from_stride, there)];
    }
  }
};

}  // namespace moonhalo::regions
