// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/engine/forecast/rank_kinds.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <unordered_set>

#include "moonhalo/engine/base/splitmix.h"
#include "moonhalo/engine/exchange/rank_shares.h"
#include "moonhalo/engine/forecast/tape_summary.h"
#include "moonhalo/engine/sharding/mesh.h"
#include "moonhalo/engine/sharding/spec.h"
#include "moonhalo/engine/sharding/spec_table.h"

namespace moonhalo {
namespace {

constexpr int64_t kRunAll = 16;      // as few ranks are all run
constexpr size_t kMostClasses = 64;  // of ranks
constexpr int64_t kMostStages = 16;  // of a mesh dim each of whose coordinates is run

// The differences of ranks that count. The first choice is exact for more programs, but gives too many classes where
// blocks are uneven.
enum class Grain : uint8_t { kAlignment, kNeighbours, kOwnBlock, kCount };

// The mesh dims along which exchanges go, by mesh.
using DimSets = std::vector<std::set<size_t>>;

void note_exchanges(const Tape& tape, const std::vector<SeenMesh>& meshes, DimSets& dims) {
  dims.resize(meshes.size());
  std::unordered_set<int32_t> offsets;
  for (const TapeEvent& event : tape.events) {
    const auto* exchange = std::get_if<TapeExchange>(&event.what);
    if (exchange == nullptr) continue;
    for (const auto* list : {&exchange->sends, &exchange->receives}) {
      for (const TapePart& part : *list) offsets.insert(part.offset);
    }
  }
  for (const int32_t offset : offsets) {
    for (size_t m = 0; m < meshes.size(); ++m) {
      const auto mine = meshes[m].coordinates(tape.rank), theirs = meshes[m].coordinates(tape.rank + offset);
      for (size_t d = 0; d < mine.size(); ++d) {
        if (mine[d] != theirs[d]) dims[m].insert(d);
      }
    }
  }
}

// Describes a rank by numbers. Ranks with the same numbers are taken to be of one kind.
class Likeness {
 public:
  Likeness(const std::vector<SeenMesh>& meshes, const DimSets& exchanges, const SeenShares& shares, Grain grain)
      : meshes_(meshes), exchanges_(exchanges), shares_(shares), grain_(grain) {
    for (const SeenMesh& mesh : meshes) {
      std::vector<Known>& known = known_.emplace_back();
      for (const auto& [cut, tensor] : mesh.cuts) {
        const bool next = known.empty() || known.back().cut->mesh_dims != cut.mesh_dims;
        known.push_back({&cut, {0}, next ? known.size() : known.back().first});
        for (const int64_t size : cut.sizes) known.back().starts.push_back(known.back().starts.back() + size);
      }
    }
  }

  std::vector<int64_t> of(int64_t rank) const {
    std::vector<int64_t> numbers;
    for (size_t m = 0; m < meshes_.size(); ++m) {
      add_edges(m, rank, numbers);
      for (const Known& known : known_[m]) add_block(known, known_[m][known.first], m, rank, numbers);
    }
    for (const std::vector<int64_t>& share : shares_) numbers.push_back(share[static_cast<size_t>(rank)]);
    return numbers;
  }

 private:
  struct Known {
    const SeenCut* cut;
    std::vector<int64_t> starts;  // of the blocks, and the end
    size_t first;                 // of the cuts over the same mesh dims
  };
  // Adds the distance of each coordinate from both edges.
  void add_edges(size_t m, int64_t rank, std::vector<int64_t>& numbers) const {
    const SeenMesh& mesh = meshes_[m];
    const auto at = mesh.coordinates(rank);
    for (size_t d = 0; d < at.size(); ++d) {
      const bool cuts = std::any_of(mesh.cuts.begin(), mesh.cuts.end(), [d](const auto& seen) {
        const std::vector<int64_t>& mesh_dims = seen.first.mesh_dims;
        return std::find(mesh_dims.begin(), mesh_dims.end(), static_cast<int64_t>(d)) != mesh_dims.end();
      });
      const bool exchanges = m < exchanges_.size() && exchanges_[m].contains(d);
      if (exchanges && !cuts && mesh.shape[d] <= kMostStages) {
        numbers.push_back(at[d]);
        continue;
      }
      const int64_t depth = exchanges && grain_ < Grain::kOwnBlock ? 2 : 1;
      numbers.push_back(std::min(at[d], depth));
      numbers.push_back(std::min(mesh.shape[d] - 1 - at[d], depth));
    }
  }

  // `first`: the first cut over the same mesh dims.
  void add_block(const Known& known, const Known& first, size_t m, int64_t rank, std::vector<int64_t>& numbers) const {
    const std::vector<int64_t>& sizes = known.cut->sizes;
    const size_t block = meshes_[m].block_of(*known.cut, rank);
    numbers.push_back(sizes[block]);
    if (grain_ > Grain::kNeighbours) return;
    numbers.push_back(block > 0 ? sizes[block - 1] : -1);
    numbers.push_back(block + 1 < sizes.size() ? sizes[block + 1] : -1);
    if (grain_ > Grain::kAlignment) return;
    // Where the block begins, against that of another cut whose rows are more or fewer.
    numbers.push_back(known.starts[block] * first.starts.back() - first.starts[block] * known.starts.back());
  }

  const std::vector<SeenMesh>& meshes_;
  const DimSets& exchanges_;
  const SeenShares& shares_;
  Grain grain_;
  std::vector<std::vector<Known>> known_;  // by mesh
};

// True if both ranks send the same and hold as much memory, to 1 %. Their tapes may differ in small blocks.
bool needs_the_same(const RankRun& run, const RankRun& other) {
  const int64_t rank = run.tape.rank;
  const double off = std::abs(static_cast<double>(run.peak - other.peak));
  return counts_of(run.tape, rank) == counts_of(other.tape, rank) && off <= 0.01 * static_cast<double>(run.peak);
}

using Classes = std::map<std::vector<int64_t>, std::vector<int64_t>>;  // ranks by what they are like

class Search {
 public:
  Search(int64_t ranks, const DryRun& dry_run, int64_t drawn) : ranks_(ranks), dry_run_(dry_run), drawn_(drawn) {}

  RankKinds find() {
    std::vector<int64_t> missing{0};
    if (ranks_ <= kRunAll) {
      missing.resize(ranks_);
      std::iota(missing.begin(), missing.end(), int64_t{0});
    }
    while (!missing.empty()) {
      run(missing);
      missing = unseen();
    }
    check_drawn();
    return result();
  }

 private:
  void run(const std::vector<int64_t>& ranks) {
    std::vector<RankRun> found = dry_run_(ranks);
    for (size_t i = 0; i < ranks.size(); ++i) {
      for (const SeenMesh& mesh : found[i].meshes) merge(mesh);
      for (const std::vector<int64_t>& share : found[i].shares) {
        if (std::ssize(share) == ranks_) shares_.insert(share);
      }
      hashes_[ranks[i]] = found[i].tape.hash();
      note_exchanges(found[i].tape, meshes_, exchanges_);
      runs_.emplace(ranks[i], std::move(found[i]));
    }
  }

  void merge(const SeenMesh& mesh) {
    if (c10::multiply_integers(mesh.shape) != ranks_) return;
    const auto known = std::find_if(meshes_.begin(), meshes_.end(), [&](const SeenMesh& one) {
      return one.shape == mesh.shape && one.names == mesh.names;
    });
    if (known == meshes_.end()) return meshes_.push_back(mesh);
    for (const auto& [cut, tensor] : mesh.cuts) known->cuts[cut].grow(tensor);
  }

  // The classes at the finest grain that does not give too many.
  Classes classes() const {
    for (int grain = 0;; ++grain) {
      const Likeness likeness(meshes_, exchanges_, shares_, static_cast<Grain>(grain));
      Classes all;
      for (int64_t rank = 0; rank < ranks_; ++rank) {
        std::vector<int64_t> numbers = likeness.of(rank);
        if (meshes_.empty()) numbers.insert(numbers.end(), {rank == 0, rank == ranks_ - 1});
        all[std::move(numbers)].push_back(rank);
      }
      if (all.size() <= kMostClasses || grain + 1 == static_cast<int>(Grain::kCount)) return all;
    }
  }

  // A rank of each class of which none was run; the classes of few ranks first, while there may be more runs.
  std::vector<int64_t> unseen() const {
    const Classes all = classes();
    std::vector<const std::vector<int64_t>*> left;
    for (const auto& [likeness, ranks] : all) {
      if (std::none_of(ranks.begin(), ranks.end(), [this](int64_t rank) { return runs_.contains(rank); }))
        left.push_back(&ranks);
    }
    std::sort(left.begin(), left.end(), [](const auto* a, const auto* b) {
      return a->size() != b->size() ? a->size() < b->size() : a->front() < b->front();
    });
    const size_t most = 2 * kMostClasses - std::min(2 * kMostClasses, runs_.size());
    std::vector<int64_t> missing;
    for (size_t i = 0; i < left.size() && i < most; ++i) missing.push_back(left[i]->front());
    std::sort(missing.begin(), missing.end());
    return missing;
  }

  // The rank that was run and stands for each rank.
  std::vector<int64_t> stand_ins() const {
    std::vector<int64_t> all(ranks_, -1);
    const Classes known = classes();
    std::vector<std::pair<const std::vector<int64_t>*, int64_t>> seen;
    for (const auto& [likeness, ranks] : known) {
      const auto run = std::find_if(ranks.begin(), ranks.end(), [this](int64_t rank) { return runs_.contains(rank); });
      if (run != ranks.end()) seen.emplace_back(&likeness, *run);
    }
    const auto nearest = [&](const std::vector<int64_t>& likeness) {
      const auto common = [&](const auto& one) {
        return std::inner_product(likeness.begin(), likeness.end(), one.first->begin(), 0, std::plus<>(),
                                  std::equal_to<>());
      };
      return std::max_element(seen.begin(), seen.end(),
                              [&](const auto& a, const auto& b) { return common(a) < common(b); })
          ->second;
    };
    for (const auto& [likeness, ranks] : known) {
      const int64_t stands = nearest(likeness);
      for (const int64_t rank : ranks) all[rank] = runs_.contains(rank) ? rank : stands;
    }
    return all;
  }

  void check_drawn() {
    std::vector<int64_t> others;
    const std::vector<int64_t> stands = stand_ins();
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      if (!runs_.contains(rank)) others.push_back(rank);
    }
    std::vector<int64_t> drawn;
    while (!others.empty() && std::ssize(drawn) < drawn_) {
      const auto at = others.begin() + static_cast<std::ptrdiff_t>(splitmix64(drawn.size()) % others.size());
      drawn.push_back(*at);
      others.erase(at);
    }
    std::sort(drawn.begin(), drawn.end());
    checked_ = std::ssize(drawn);
    if (drawn.empty()) return;
    run(drawn);
    for (const int64_t rank : drawn) {
      if (!needs_the_same(runs_.at(rank), runs_.at(stands[rank]))) unlike_.push_back(rank);
    }
  }

  RankKinds result() {
    RankKinds kinds;
    kinds.checked = checked_;
    kinds.unlike = unlike_;
    const std::vector<int64_t> stands = stand_ins();
    std::map<uint64_t, int32_t> numbers;
    for (auto& [rank, found] : runs_) {
      kinds.run.push_back(rank);
      const auto [number, added] = numbers.try_emplace(hashes_.at(rank), static_cast<int32_t>(numbers.size()));
      if (!added) continue;
      kinds.tapes.kinds.push_back(std::move(found.tape));
      kinds.runs.push_back(found);
    }
    for (int64_t rank = 0; rank < ranks_; ++rank) kinds.tapes.kind_of.push_back(numbers.at(hashes_.at(stands[rank])));
    kinds.meshes = meshes_;
    std::stable_sort(kinds.meshes.begin(), kinds.meshes.end(),
                     [](const SeenMesh& a, const SeenMesh& b) { return a.shape.size() > b.shape.size(); });
    kinds.tapes.mesh = meshes_.empty() ? std::vector<int64_t>{ranks_} : kinds.meshes[0].shape;
    kinds.tapes.mesh_dims = meshes_.empty() ? std::vector<std::string>{"ranks"} : kinds.meshes[0].names;
    return kinds;
  }

  const int64_t ranks_;
  const DryRun& dry_run_;
  const int64_t drawn_;
  std::map<int64_t, RankRun> runs_;
  std::map<int64_t, uint64_t> hashes_;
  std::vector<SeenMesh> meshes_;
  DimSets exchanges_;
  SeenShares shares_;
  int64_t checked_ = 0;
  std::vector<int64_t> unlike_;
};

}  // namespace

std::vector<int64_t> grid_coordinates(int64_t rank, const std::vector<int64_t>& sizes) {
  std::vector<int64_t> all(sizes.size());
  for (size_t d = sizes.size(); d-- > 0; rank /= sizes[d]) all[d] = rank % sizes[d];
  return all;
}

int64_t CutTensor::elements() const { return shape.empty() ? 0 : c10::multiply_integers(shape); }

void CutTensor::grow(const CutTensor& other) {
  if (other.elements() > elements()) *this = other;
}

size_t SeenMesh::block_of(const SeenCut& cut, int64_t rank) const {
  const std::vector<int64_t> at = coordinates(rank);
  int64_t block = 0;
  for (const int64_t d : cut.mesh_dims) block = block * shape[d] + at[d];
  return static_cast<size_t>(block);
}

SeenSpecs::SeenSpecs() {
  watch_specs([this](const ShardSpec& spec) { look(spec); });
  watch_shares([this](const DeviceMesh* mesh, const std::vector<int64_t>& numbers) { add_shares(mesh, numbers); });
}

SeenSpecs::~SeenSpecs() {
  watch_specs(nullptr);
  watch_shares(nullptr);
}

void SeenSpecs::add_shares(const DeviceMesh* mesh, const std::vector<int64_t>& numbers) {
  std::vector<int64_t> by_rank = numbers;
  if (mesh != nullptr) {
    const SeenMesh whole{mesh->root()->shape(), {}, {}};
    const SeenCut divided{mesh->root_dims(), {}};
    by_rank.clear();
    for (int64_t rank = 0; rank < c10::multiply_integers(whole.shape); ++rank)
      by_rank.push_back(numbers[whole.block_of(divided, rank)]);
  }
  const auto [least, most] = std::minmax_element(by_rank.begin(), by_rank.end());
  if (*least != *most) shares_.insert(std::move(by_rank));
}

void SeenSpecs::look(const ShardSpec& spec) {
  const MeshPtr whole = spec.mesh()->root();
  auto known = std::find_if(meshes_.begin(), meshes_.end(), [&](const SeenMesh& mesh) {
    return mesh.shape == whole->shape() && mesh.names == whole->names();
  });
  if (known == meshes_.end()) known = meshes_.insert(meshes_.end(), {whole->shape(), whole->names(), {}});
  for (int64_t dim = 0; dim < spec.ndim(); ++dim) {
    const Cut& cut = spec.layout().cuts[dim];
    if (!cut) continue;
    SeenCut seen{{}, cut.sizes};
    for (const int64_t m : cut.mesh_dims) seen.mesh_dims.push_back(spec.mesh()->root_dims()[m]);
    known->cuts[std::move(seen)].grow({spec.global_shape(), dim});
  }
}

RankKinds find_kinds(int64_t ranks, const DryRun& dry_run, int64_t drawn) {
  return Search(ranks, dry_run, drawn).find();
}

}  // namespace moonhalo
