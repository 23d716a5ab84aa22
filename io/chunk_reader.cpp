// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/io/chunk_reader.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>

#include "moonhalo/engine/base/text.h"
#include "moonhalo/io/io_stats.h"

namespace moonhalo::io {
namespace {

/// The same elements in two layouts: strides are bytes.
struct StridedCopy {
  std::vector<int64_t> count, from_strides, to_strides;
  size_t run;  ///< bytes that lie together in both

  void drop_dense_dims() {
    while (!count.empty() && from_strides.back() == static_cast<int64_t>(run) &&
           to_strides.back() == from_strides.back()) {
      run *= static_cast<size_t>(count.back());
      count.pop_back();
      from_strides.pop_back();
      to_strides.pop_back();
    }
  }
  void copy(const char* from, char* to, size_t dim = 0) const {
    if (dim == count.size()) {
      std::memcpy(to, from, run);
      return;
    }
    for (int64_t i = 0; i < count[dim]; ++i, from += from_strides[dim], to += to_strides[dim]) copy(from, to, dim + 1);
  }
};

std::vector<int64_t> byte_strides(at::IntArrayRef shape, size_t element_size) {
  std::vector<int64_t> strides(shape.size());
  auto stride = static_cast<int64_t>(element_size);
  for (size_t dim = shape.size(); dim-- > 0; stride *= shape[dim]) strides[dim] = stride;
  return strides;
}

/// Runs work(i) for 0 <= i < count in LibTorch's threads, each with an object of its own. Of the items that fail, the
/// first one's exception is thrown.
template <typename Own, typename Work>
void in_threads(int64_t count, const Work& work) {
  std::atomic<int64_t> next{0}, failed{count};
  std::mutex mutex;
  std::exception_ptr failure;
  const int64_t threads = std::min<int64_t>(count, at::get_num_threads());
  at::parallel_for(0, threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t thread = begin; thread < end; ++thread) {
      Own own;
      // Items are begun in order: those before one that fails all come to their end.
      for (int64_t i = next++; i < failed; i = next++) {
        try {
          work(i, own);
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (i < failed) failure = std::current_exception();
          failed = std::min<int64_t>(failed, i);
        }
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

struct ChunkReader::Job {
  const ChunkGrid& grid;
  Box rows;  // of all cells
  std::vector<int64_t> out_strides, chunk_strides;
  uint64_t file_size;
  char* out;
};

void ChunkReader::read(const ChunkGrid& grid, const Box& cells, char* out) const {
  const int64_t count = cells.numel();
  if (count == 0) return;
  const auto cell_at = [&](int64_t i) {
    std::vector<int64_t> cell(grid.size());
    for (size_t dim = grid.size(); dim-- > 0;) {
      const Interval& range = cells[static_cast<int64_t>(dim)];
      cell[dim] = range.begin + i % range.size();
      i /= range.size();
    }
    return cell;
  };
  const auto chunk_of = [&](std::vector<int64_t> cell) {
    for (size_t dim = 0; dim < grid.size(); ++dim) cell[dim] = grid[dim].chunk(cell[dim]);
    return cell;
  };
  std::vector<StoredChunk> stored;
  IoStats& stats = io_stats();
  for (int64_t i = 0; i < count; ++i) {
    stored.push_back(find_chunk(dataset_, map_, chunk_of(cell_at(i)), where_));
    stats.stored += static_cast<int64_t>(stored.back().bytes);
    stats.chunks += stored.back().bytes > 0;
    if (stored.back().bytes > 0) stats.inflated += static_cast<int64_t>(map_.chunk_bytes());
  }
  struct stat file {};
  TORCH_CHECK(fstat(descriptor_, &file) == 0, where_.to_string(), ": cannot read it\n  have  ", std::strerror(errno),
              "\n  fix   check the disk, or copy the file again");
  Job job{
      grid, rows_of(grid, cells), {}, byte_strides(map_.chunk, map_.element_size), static_cast<uint64_t>(file.st_size),
      out};
  job.out_strides = byte_strides(job.rows.shape(), map_.element_size);
  in_threads<ChunkDecoder>(count, [&](int64_t i, ChunkDecoder& decoder) {
    read_cell(job, cell_at(i), stored[static_cast<size_t>(i)], decoder);
  });
}

void ChunkReader::read_cell(const Job& job, const std::vector<int64_t>& cell, const StoredChunk& stored,
                            ChunkDecoder& decoder) const {
  StridedCopy part{{}, job.chunk_strides, job.out_strides, map_.element_size};
  std::vector<int64_t> chunk;
  int64_t from = 0, to = 0;
  for (size_t dim = 0; dim < cell.size(); ++dim) {
    const ChunkCells& cells = job.grid[dim];
    const Interval rows = cells.rows(cell[dim]);
    chunk.push_back(cells.chunk(cell[dim]));
    const int64_t first = cells.slice().begin + rows.begin * cells.slice().step;
    from += (first - chunk[dim] * map_.chunk[dim]) * job.chunk_strides[dim];
    to += (rows.begin - job.rows[static_cast<int64_t>(dim)].begin) * job.out_strides[dim];
    part.count.push_back(rows.size());
    part.from_strides[dim] *= cells.slice().step;
  }
  if (stored.bytes == 0) {  // never written: one row for all
    const auto row = static_cast<size_t>(part.count.back());
    char* bytes = decoder.stored(row * map_.element_size);
    for (size_t i = 0; i < row; ++i) std::memcpy(bytes + i * map_.element_size, map_.fill.data(), map_.element_size);
    part.from_strides.assign(cell.size(), 0);
    part.from_strides.back() = static_cast<int64_t>(map_.element_size);
    part.drop_dense_dims();
    part.copy(bytes, job.out + to);
    return;
  }
  const char* bytes = load(chunk, stored, job.file_size, decoder);
  part.drop_dense_dims();
  part.copy(bytes + from, job.out + to);
}

const char* ChunkReader::load(const std::vector<int64_t>& chunk, const StoredChunk& stored, uint64_t file_size,
                              ChunkDecoder& decoder) const {
  const auto check = [&](const std::string& damage) {
    TORCH_CHECK_VALUE(damage.empty(), where_.to_string(), ": chunk ", shape_string(chunk),
                      " is damaged\n  have  ", damage, "\n  fix   take another copy of the file, or write it again");
  };
  const std::string place = "its " + std::to_string(stored.bytes) + " bytes at " + std::to_string(stored.offset);
  const bool inside = stored.offset <= file_size && stored.bytes <= file_size - stored.offset;
  check(inside ? "" : place + " reach beyond the end of the file at " + std::to_string(file_size));
  char* out = decoder.stored(stored.bytes);
  for (uint64_t done = 0; done < stored.bytes;) {
    const ssize_t got = pread(descriptor_, out + done, stored.bytes - done, static_cast<off_t>(stored.offset + done));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, where_.to_string(), ": cannot read chunk ", shape_string(chunk), "\n  have  ",
                std::strerror(errno), "\n  fix   check the disk, or copy the file again");
    check(got > 0 ? "" : place + " reach beyond the end of the file");
    done += static_cast<uint64_t>(got);
  }
  check(decoder.decode(map_.codecs, stored.skipped, map_.chunk_bytes()));
  if (map_.swapped) swap_bytes(decoder.data(), map_.element_size, map_.chunk_bytes() / map_.element_size);
  return decoder.data();
}

}  // namespace moonhalo::io
