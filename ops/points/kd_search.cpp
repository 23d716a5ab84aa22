// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/points/kd_search.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "moonhalo/engine/base/fake_key.h"
#include "moonhalo/engine/base/parallel.h"
#include "moonhalo/engine/base/work_note.h"

namespace moonhalo {
namespace {

constexpr int64_t kLeaf = 16;          // points that are measured together
constexpr int64_t kMostFeatures = 16;  // beyond, boxes hardly exclude anything
constexpr int64_t kFewQueries = 16;    // fewer do not pay for a tree
constexpr int64_t kTileBytes = 1 << 15;

// True if candidate a is worse than b: farther, or as far with a larger index; NaN is farthest.
template <typename T>
bool worse(T a, int64_t index_a, T b, int64_t index_b) {
  if (a > b) return true;
  if (a < b) return false;
  if (std::isnan(a) != std::isnan(b)) return std::isnan(a);
  return index_a > index_b;
}

// The candidates of one query, a heap with the worst on top.
template <typename T>
struct Heap {
  T* distance;
  int64_t* index;
  int64_t* held;
  int64_t most;

  bool full() const { return *held == most; }
  void place(int64_t at, T d, int64_t i) {
    distance[at] = d;
    index[at] = i;
  }
  void sink(T d, int64_t i) {
    int64_t at = 0;
    for (int64_t child = 1; child < *held; child = 2 * at + 1) {
      if (child + 1 < *held && worse(distance[child + 1], index[child + 1], distance[child], index[child])) ++child;
      if (!worse(distance[child], index[child], d, i)) break;
      place(at, distance[child], index[child]);
      at = child;
    }
    place(at, d, i);
  }
  void offer(T d, int64_t i) {
    if (full()) {
      if (worse(distance[0], index[0], d, i)) sink(d, i);
      return;
    }
    int64_t at = (*held)++;
    for (; at > 0; at = (at - 1) / 2) {
      const int64_t parent = (at - 1) / 2;
      if (!worse(d, i, distance[parent], index[parent])) break;
      place(at, distance[parent], index[parent]);
    }
    place(at, d, i);
  }
  void sort() {
    const int64_t count = *held;
    while (*held > 1) {
      const T d = distance[0];
      const int64_t i = index[0], last = --*held;
      sink(distance[last], index[last]);
      place(last, d, i);
    }
    *held = count;
  }
};

// The largest square whose root is within the radius, so that what is given never exceeds it.
template <typename T>
T squared_radius(double radius) {
  const T r = static_cast<T>(radius), infinity = std::numeric_limits<T>::infinity();
  T square = r * r;
  while (std::sqrt(square) > radius) square = std::nextafter(square, T(0));
  while (square < infinity && std::sqrt(std::nextafter(square, infinity)) <= radius)
    square = std::nextafter(square, infinity);
  return square;
}

// Points of one batch entry in leaves of kLeaf, feature by feature; with a tree of their boxes if `divided`.
template <typename T>
class Cloud {
 public:
  Cloud(const T* points, int64_t count, int64_t features, bool divided)
      : points_(points), features_(features), order_(count) {
    std::iota(order_.begin(), order_.end(), 0);
    const int64_t leaves = (count + kLeaf - 1) / kLeaf;
    values_.resize(leaves * kLeaf * features);
    if (divided && count > 0) divide(0, count);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t f = 0; f < features; ++f)
        values_[(i / kLeaf * features + f) * kLeaf + i % kLeaf] = points[order_[i] * features + f];
    }
  }

  int64_t leaves() const { return static_cast<int64_t>(values_.size()) / std::max<int64_t>(1, kLeaf * features_); }

  // Measures the points of a leaf; those that may be among the nearest, or are within the radius, are offered.
  void scan(int64_t leaf, const T* query, Heap<T>& heap, int64_t first, const T* square, int64_t* within) const {
    T sums[kLeaf] = {};
    const T* values = values_.data() + leaf * kLeaf * features_;
    for (int64_t f = 0; f < features_; ++f, values += kLeaf) {
      const T q = query[f];
      for (int64_t i = 0; i < kLeaf; ++i) {
        const T difference = values[i] - q;
        sums[i] += difference * difference;
      }
    }
    const int64_t begin = leaf * kLeaf, count = std::min(kLeaf, static_cast<int64_t>(order_.size()) - begin);
    for (int64_t i = 0; i < count; ++i) {
      if (square != nullptr) {
        if (!(sums[i] <= *square)) continue;
        ++*within;
      }
      if (heap.full() && sums[i] > heap.distance[0]) continue;
      heap.offer(sums[i], first + order_[begin + i]);
    }
  }

  void search(const T* query, Heap<T>& heap, int64_t first, const T* square, int64_t* within) const {
    if (!nodes_.empty()) visit(0, bound(0, query), query, heap, first, square, within);
  }

 private:
  struct Node {
    int64_t leaf = -1;   // of a node without children
    int64_t right = -1;  // the left child is the next node
  };

  void divide(int64_t begin, int64_t end) {
    const int64_t node = static_cast<int64_t>(nodes_.size());
    nodes_.emplace_back();
    // NaN enters no box: such a point is farther than any bound anyhow.
    const size_t box = boxes_.size();
    boxes_.resize(box + 2 * features_);
    int64_t widest = 0;
    T width = -1;
    for (int64_t f = 0; f < features_; ++f) {
      T low = std::numeric_limits<T>::infinity(), high = -low;
      for (int64_t i = begin; i < end; ++i) {
        const T value = points_[order_[i] * features_ + f];
        low = value < low ? value : low;
        high = value > high ? value : high;
      }
      boxes_[box + f] = low;
      boxes_[box + features_ + f] = high;
      if (high - low > width) {
        width = high - low;
        widest = f;
      }
    }
    const int64_t leaves = (end - begin + kLeaf - 1) / kLeaf;
    if (leaves <= 1) {
      nodes_[node].leaf = begin / kLeaf;
      return;
    }
    const int64_t middle = begin + leaves / 2 * kLeaf;
    const auto value = [&](int64_t i) { return points_[i * features_ + widest]; };
    std::nth_element(order_.begin() + begin, order_.begin() + middle, order_.begin() + end,
                     [&](int64_t a, int64_t b) { return worse(value(b), b, value(a), a); });
    divide(begin, middle);
    nodes_[node].right = static_cast<int64_t>(nodes_.size());
    divide(middle, end);
  }

  // At most the squared distance, as scan() rounds it, of any point of the node: rounding is monotone, term by term.
  T bound(int64_t node, const T* query) const {
    const T *low = boxes_.data() + 2 * features_ * node, *high = low + features_;
    T sum = 0;
    for (int64_t f = 0; f < features_; ++f) {
      const T below = low[f] - query[f], above = query[f] - high[f];
      const T gap = below > 0 ? below : (above > 0 ? above : 0);
      sum += gap * gap;
    }
    return sum;
  }

  void visit(int64_t node, T least, const T* query, Heap<T>& heap, int64_t first, const T* square,
             int64_t* within) const {
    // All points within the radius are counted, so there the nearest found so far exclude nothing.
    if (square != nullptr ? least > *square : heap.full() && least > heap.distance[0]) return;
    const Node& here = nodes_[node];
    if (here.right < 0) return scan(here.leaf, query, heap, first, square, within);
    const int64_t children[2] = {node + 1, here.right};
    const T bounds[2] = {bound(children[0], query), bound(children[1], query)};
    const int near = bounds[1] < bounds[0] ? 1 : 0;
    visit(children[near], bounds[near], query, heap, first, square, within);
    visit(children[1 - near], bounds[1 - near], query, heap, first, square, within);
  }

  const T* points_;
  int64_t features_;
  std::vector<int64_t> order_;  // of the points, in leaves
  std::vector<T> values_;       // [leaf][feature][kLeaf]
  std::vector<Node> nodes_;
  std::vector<T> boxes_;  // [node][low, high][feature]
};

}  // namespace

NeighborLists::NeighborLists(int64_t batch, int64_t queries, int64_t most, std::optional<double> radius,
                             at::ScalarType dtype)
    : radius_(radius),
      distances_(at::zeros({batch, queries, most}, dtype)),
      indices_(at::zeros({batch, queries, most}, at::kLong)),
      held_(at::zeros({batch, queries}, at::kLong)),
      within_(at::zeros({batch, queries}, at::kLong)) {}

void NeighborLists::search(const at::Tensor& query, const at::Tensor& points, int64_t first) {
  const int64_t batch = query.size(0), queries = query.size(1), features = query.size(2), count = points.size(1),
                most = distances_.size(2);
  if (batch * queries == 0 || count == 0) return;
  TORCH_CHECK_NOT_IMPLEMENTED(!is_fake(query) && !is_fake(points),
                              "neighbors: the search needs the points, which are not computed\n  have  fake tensors",
                              "\n  fix   give points that are not results of the model");
  const bool divided = features <= kMostFeatures && queries >= kFewQueries;
  // By a tree a query looks at a few leaves, how many depends on where the points are.
  note_work("neighbors_search", batch * queries * features * (divided ? std::min(count, 8 * kLeaf) : count),
            memory_bytes({query, points, distances_, indices_}));
  AT_DISPATCH_FLOATING_TYPES(query.scalar_type(), "neighbors", [&] {
    using T = scalar_t;
    std::vector<std::optional<Cloud<T>>> clouds(batch);
    const T* all = points.const_data_ptr<T>();
    parallel_for(0, batch, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) clouds[b].emplace(all + b * count * features, count, features, divided);
    });
    const T* asked = query.const_data_ptr<T>();
    T* distances = distances_.mutable_data_ptr<T>();
    int64_t *indices = indices_.mutable_data_ptr<int64_t>(), *held = held_.mutable_data_ptr<int64_t>(),
            *within = within_.mutable_data_ptr<int64_t>();
    const T limit = radius_ ? squared_radius<T>(*radius_) : T(0);
    const T* square = radius_ ? &limit : nullptr;
    const auto heap_of = [&](int64_t q) { return Heap<T>{distances + q * most, indices + q * most, held + q, most}; };
    const int64_t tile =
        std::max<int64_t>(1, kTileBytes / (kLeaf * static_cast<int64_t>(sizeof(T)) * std::max<int64_t>(1, features)));
    parallel_for(0, batch * queries, 64, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin / queries; b * queries < end; ++b) {
        const Cloud<T>& cloud = *clouds[b];
        const int64_t low = std::max(begin, b * queries), high = std::min(end, (b + 1) * queries);
        if (divided) {
          for (int64_t q = low; q < high; ++q) {
            Heap<T> heap = heap_of(q);
            cloud.search(asked + q * features, heap, first, square, within + q);
          }
          continue;
        }
        for (int64_t from = 0; from < cloud.leaves(); from += tile) {
          const int64_t to = std::min(cloud.leaves(), from + tile);
          for (int64_t q = low; q < high; ++q) {
            Heap<T> heap = heap_of(q);
            for (int64_t leaf = from; leaf < to; ++leaf)
              cloud.scan(leaf, asked + q * features, heap, first, square, within + q);
          }
        }
      }
    });
  });
}

void NeighborLists::join(const NeighborLists& other) {
  const int64_t lists = held_.numel(), most = distances_.size(2);
  note_work("neighbors_sort", 0, 2 * memory_bytes({distances_, indices_}));
  AT_DISPATCH_FLOATING_TYPES(distances_.scalar_type(), "neighbors", [&] {
    scalar_t* distances = distances_.mutable_data_ptr<scalar_t>();
    const scalar_t* others = other.distances_.const_data_ptr<scalar_t>();
    int64_t *indices = indices_.mutable_data_ptr<int64_t>(), *held = held_.mutable_data_ptr<int64_t>();
    const int64_t *their_indices = other.indices_.const_data_ptr<int64_t>(),
                  *their_held = other.held_.const_data_ptr<int64_t>();
    for (int64_t q = 0; q < lists; ++q) {
      Heap<scalar_t> heap{distances + q * most, indices + q * most, held + q, most};
      for (int64_t i = q * most; i < q * most + their_held[q]; ++i) heap.offer(others[i], their_indices[i]);
    }
  });
  within_.add_(other.within_);
}

void NeighborLists::finish() {
  const int64_t lists = held_.numel(), most = distances_.size(2);
  AT_DISPATCH_FLOATING_TYPES(distances_.scalar_type(), "neighbors", [&] {
    scalar_t* distances = distances_.mutable_data_ptr<scalar_t>();
    int64_t *indices = indices_.mutable_data_ptr<int64_t>(), *held = held_.mutable_data_ptr<int64_t>();
    parallel_for(0, lists, 256, [&](int64_t begin, int64_t end) {
      for (int64_t q = begin; q < end; ++q) {
        Heap<scalar_t> heap{distances + q * most, indices + q * most, held + q, most};
        heap.sort();
        for (int64_t i = 0; i < *heap.held; ++i) heap.distance[i] = std::sqrt(heap.distance[i]);
        for (int64_t i = *heap.held; i < most; ++i) heap.place(i, 0, -1);
      }
    });
  });
}

}  // namespace moonhalo
