// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <moonhalo/moonhalo.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

/// A plain solver of the heat equation u' = div grad u on a rectangle whose edge is held at 0: explicit Euler,
/// five-point stencil. Stands for a simulation code: it owns its memory and its decomposition (uneven blocks of rows,
/// one ghost row on either side), and knows nothing of tensors but to wrap rows for sending.
class HeatSolver {
 public:
  HeatSolver(moonhalo::Communicator& world, int64_t rows, int64_t columns)
      : world_(world), total_(rows), columns_(columns) {
    // The first rank takes twice its share: simulation codes rarely balance by rows.
    const int64_t shares = world.size() + 1, rank = world.rank();
    begin_ = rank == 0 ? 0 : (rank + 1) * rows / shares;
    rows_ = (rank + 2) * rows / shares - begin_;
    now_.assign((rows_ + 2) * columns_, 0.0);
    next_ = now_;
  }

  int64_t rows() const { return rows_; }
  /// The owned rows, without ghosts: [rows, columns], row-major. Stays where it is for the solver's lifetime.
  double* owned() { return now_.data() + columns_; }

  /// A smooth initial field; the same for any number of ranks.
  void start(int seed) {
    for (int64_t i = 0; i < rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) owned()[i * columns_ + j] = initial(begin_ + i, j, seed);
    }
  }

  /// One time step of dt = 0.2 (grid spacing 1; stable below 0.25). Collective.
  void step() {
    exchange_ghosts();
    const double diffusion = 0.2;
    for (int64_t i = 1; i <= rows_; ++i) {
      for (int64_t j = 0; j < columns_; ++j) {
        const double here = at(i, j), left = j > 0 ? at(i, j - 1) : 0, right = j + 1 < columns_ ? at(i, j + 1) : 0;
        next_[i * columns_ + j] = here + diffusion * (at(i - 1, j) + at(i + 1, j) + left + right - 4 * here);
      }
    }
    std::copy(next_.begin() + columns_, next_.end() - columns_, owned());
  }

 private:
  double at(int64_t i, int64_t j) const { return now_[i * columns_ + j]; }

  double initial(int64_t i, int64_t j, int seed) const {
    double value = 0;
    for (int wave = 1; wave <= 6; ++wave) {
      const double phase = std::sin(12.9898 * wave + 78.233 * seed) * 43758.5453;
      const double amplitude = phase - std::floor(phase) - 0.5;
      value += amplitude * std::sin(M_PI * wave * (i + 1.0) / (total_ + 1)) *
               std::sin(M_PI * (1 + (wave * 5 + seed) % 7) * (j + 1.0) / (columns_ + 1));
    }
    return value;
  }

  void exchange_ghosts() {
    const int rank = world_.rank(), last = world_.size() - 1;
    const auto row = [&](int64_t i) { return at::from_blob(now_.data() + i * columns_, {columns_}, at::kDouble); };
    std::vector<moonhalo::Message> sends, receives;
    if (rank > 0) {
      receives.push_back({rank - 1, row(0)});
      sends.push_back({rank - 1, row(1)});
    }
    if (rank < last) {
      receives.push_back({rank + 1, row(rows_ + 1)});
      sends.push_back({rank + 1, row(rows_)});
    }
    world_.exchange(std::move(sends), std::move(receives));
  }

  moonhalo::Communicator& world_;
  int64_t total_, columns_, begin_ = 0, rows_ = 0;
  std::vector<double> now_, next_;
};
