// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

/// Runs device code of CUDA on one CPU thread, for tests: the threads of a block are fibers that run until they
/// reach a barrier. Stands in for <cuda_runtime.h> and <mma.h> as far as the kernels of ops/ use them: include it
/// before their headers.
///
/// Stricter than a GPU where that finds mistakes: a fiber runs alone from barrier to barrier, so what the others would
/// not have written yet is not there; shared memory begins as NaN and its end is guarded; a thread that leaves while
/// others wait at a barrier is an error; matrix functions do not wait, and every lane stores its own share. Both
/// orders of fibers can be tried.
/// Not for sanitizers, to which a change of stacks is a mistake. Not shown: speed, bank conflicts, registers, and what
/// a real compiler does.
#define __device__

namespace moonhalo::testing::simt {

struct Index {
  unsigned x = 0;
};

constexpr int kLanes = 32;
constexpr size_t kStackBytes = size_t{1} << 18;

/// One block of threads. Single use.
class Block {
 public:
  Block(int threads, bool backwards, std::function<void()> body)
      : fibers_(threads), backwards_(backwards), body_(std::move(body)) {}

  /// Until all threads are done. Throws what a thread threw, or that they wait for each other.
  void run(unsigned block_index);

  void sync_block() { wait(State::kBlock, 0, static_cast<int>(fibers_.size()), block_arrived_); }
  void sync_warp() {
    const int warp = current_ / kLanes;
    wait(State::kWarp, warp * kLanes, kLanes, warp_arrived_[warp]);
  }
  /// The value of `lane` of this warp, whose every lane gives one. Two buffers in turn, so that one barrier is enough.
  uint64_t exchange(uint64_t value, int lane) {
    give(value);
    return given(lane);
  }
  void give(uint64_t value) {
    Fiber& fiber = fibers_[current_];
    fiber.given[fiber.turn ^= 1] = value;
    sync_warp();
  }
  uint64_t given(int lane) const { return fibers_[current_ / kLanes * kLanes + lane].given[fibers_[current_].turn]; }
  int lane() const { return current_ % kLanes; }

  static Block*& active() {
    static thread_local Block* block = nullptr;
    return block;
  }

 private:
  enum class State { kReady, kBlock, kWarp, kDone };
  struct Fiber {
    jmp_buf place;
    ucontext_t start;
    bool started = false;
    State state = State::kReady;
    uint64_t given[2] = {0, 0};
    int turn = 0;
  };

  void wait(State at, int first, int count, int& arrived) {
    fibers_[current_].state = at;
    if (++arrived == count) {
      arrived = 0;
      for (int i = first; i < first + count; ++i) fibers_[i].state = State::kReady;
    }
    if (_setjmp(fibers_[current_].place) == 0) _longjmp(scheduler_, 1);
  }
  // Jumps save no signal mask, for which ucontext makes a system call: it only begins a fiber.
  void resume(Fiber& fiber) {
    if (_setjmp(scheduler_) != 0) return;
    if (fiber.started) _longjmp(fiber.place, 1);
    fiber.started = true;
    setcontext(&fiber.start);
  }
  static void enter() {
    Block& block = *active();
    try {
      block.body_();
    } catch (...) {
      block.error_ = std::current_exception();
    }
    block.fibers_[block.current_].state = State::kDone;
    _longjmp(block.scheduler_, 1);
  }

  std::vector<Fiber> fibers_;
  std::vector<int> warp_arrived_ = std::vector<int>(fibers_.size() / kLanes);
  int block_arrived_ = 0;
  jmp_buf scheduler_;
  bool backwards_;
  std::function<void()> body_;
  int current_ = 0;
  std::exception_ptr error_;
};

}  // namespace moonhalo::testing::simt

inline thread_local moonhalo::testing::simt::Index threadIdx, blockIdx;

inline void moonhalo::testing::simt::Block::run(unsigned block_index) {
  static thread_local std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() < fibers_.size()) stacks.push_back(std::make_unique<char[]>(kStackBytes));
  const int count = static_cast<int>(fibers_.size());
  active() = this;
  blockIdx.x = block_index;
  for (int i = 0; i < count; ++i) {
    ucontext_t& context = fibers_[i].start;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks[i].get();
    context.uc_stack.ss_size = kStackBytes;
    context.uc_link = nullptr;
    makecontext(&context, &Block::enter, 0);
  }
  int done = 0;
  while (done < count && !error_) {
    int moved = 0;
    for (int k = 0; k < count && !error_; ++k) {
      const int i = backwards_ ? count - 1 - k : k;
      if (fibers_[i].state != State::kReady) continue;
      ++moved;
      current_ = i;
      threadIdx.x = static_cast<unsigned>(i);
      resume(fibers_[i]);
      done += fibers_[i].state == State::kDone;
    }
    if (moved == 0) {
      error_ = std::make_exception_ptr(
          std::runtime_error("simt: threads wait at a barrier that others never reach; done are " +
                             std::to_string(done) + " of " + std::to_string(count)));
    }
  }
  active() = nullptr;
  if (error_) std::rethrow_exception(error_);
}

namespace moonhalo::testing::simt {

/// Runs body(shared memory) as `blocks` blocks of `threads`, one after the other.
inline void launch(int64_t blocks, int threads, size_t shared_bytes, bool backwards,
                   const std::function<void(unsigned char*)>& body) {
  constexpr size_t kAlign = 128, kGuard = 128;
  std::vector<unsigned char> memory(shared_bytes + kAlign + kGuard);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  unsigned char* const shared = memory.data() + (kAlign - address % kAlign) % kAlign;
  for (int64_t block = 0; block < blocks; ++block) {
    std::memset(shared, 0xff, shared_bytes + kGuard);
    Block(threads, backwards, [&] { body(shared); }).run(static_cast<unsigned>(block));
    for (size_t i = 0; i < kGuard; ++i) {
      if (shared[shared_bytes + i] != 0xff)
        throw std::runtime_error("simt: a block wrote behind its " + std::to_string(shared_bytes) +
                                 " bytes of shared memory");
    }
  }
}

inline void all_lanes(unsigned mask) {
  if (mask != 0xffffffffu) throw std::runtime_error("simt: only whole warps are emulated");
}

}  // namespace moonhalo::testing::simt

inline void __syncthreads() { moonhalo::testing::simt::Block::active()->sync_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffu) {
  moonhalo::testing::simt::all_lanes(mask);
  moonhalo::testing::simt::Block::active()->sync_warp();
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  moonhalo::testing::simt::all_lanes(mask);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = moonhalo::testing::simt::Block::active()->exchange(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, moonhalo::testing::simt::Block::active()->lane() ^ lanes);
}
inline unsigned __ballot_sync(unsigned mask, bool vote) {
  namespace simt = moonhalo::testing::simt;
  simt::all_lanes(mask);
  simt::Block& block = *simt::Block::active();
  block.give(vote);
  unsigned result = 0;
  for (int i = 0; i < simt::kLanes; ++i) result |= static_cast<unsigned>(block.given(i)) << i;
  return result;
}
inline int __ffs(int bits) { return __builtin_ffs(bits); }

/// Every lane's fragment is the whole matrix, row by row.
namespace nvcuda::wmma {

struct matrix_a {};
struct matrix_b {};
struct accumulator {};
struct row_major {};
struct col_major {};
enum layout_t { mem_row_major, mem_col_major };

template <typename Use, int kM, int kN, int kK, typename T, typename Layout = void>
struct fragment {
  static constexpr int kRows = std::is_same_v<Use, matrix_b> ? kK : kM,
                       kColumns = std::is_same_v<Use, matrix_a> ? kK : kN;
  std::array<T, size_t{kRows} * kColumns> all;
};

/// Checks what the processor demands of a matrix in memory: 32 bytes of alignment, rows (or columns) in multiples of 16
/// bytes.
inline void check_place(const void* memory, size_t pitch_bytes) {
  if (reinterpret_cast<uintptr_t>(memory) % 32 != 0 || pitch_bytes % 16 != 0)
    throw std::runtime_error("simt: a matrix is not aligned, or its pitch of " + std::to_string(pitch_bytes) +
                             " bytes is none");
}

template <typename Fragment>
void fill_fragment(Fragment& to, float value) {
  to.all.fill(value);
}

template <typename Use, int kM, int kN, int kK, typename T, typename Layout>
void load_matrix_sync(fragment<Use, kM, kN, kK, T, Layout>& to, const T* from, unsigned pitch) {
  using Fragment = fragment<Use, kM, kN, kK, T, Layout>;
  check_place(from, pitch * sizeof(T));
  constexpr bool kByColumn = std::is_same_v<Layout, col_major>;
  for (int r = 0; r < Fragment::kRows; ++r) {
    for (int c = 0; c < Fragment::kColumns; ++c)
      to.all[r * Fragment::kColumns + c] = from[kByColumn ? c * pitch + r : r * pitch + c];
  }
}
template <int kM, int kN, int kK>
void load_matrix_sync(fragment<accumulator, kM, kN, kK, float>& to, const float* from, unsigned pitch,
                      layout_t layout) {
  check_place(from, pitch * sizeof(float));
  for (int r = 0; r < kM; ++r) {
    for (int c = 0; c < kN; ++c) to.all[r * kN + c] = from[layout == mem_col_major ? c * pitch + r : r * pitch + c];
  }
}

template <int kM, int kN, int kK>
void store_matrix_sync(float* to, const fragment<accumulator, kM, kN, kK, float>& from, unsigned pitch,
                       layout_t layout) {
  namespace simt = moonhalo::testing::simt;
  check_place(to, pitch * sizeof(float));
  for (int i = simt::Block::active()->lane(); i < kM * kN; i += simt::kLanes) {
    const int r = i / kN, c = i % kN;
    to[layout == mem_col_major ? c * pitch + r : r * pitch + c] = from.all[i];
  }
}

template <int kM, int kN, int kK, typename T, typename LayoutA, typename LayoutB>
void mma_sync(fragment<accumulator, kM, kN, kK, float>& to, const fragment<matrix_a, kM, kN, kK, T, LayoutA>& a,
              const fragment<matrix_b, kM, kN, kK, T, LayoutB>& b,
              const fragment<accumulator, kM, kN, kK, float>& add) {
  std::array<float, size_t{kM}* kN> sums = add.all;
  for (int r = 0; r < kM; ++r) {
    for (int k = 0; k < kK; ++k) {
      const float left = static_cast<float>(a.all[r * kK + k]);
      for (int c = 0; c < kN; ++c) sums[r * kN + c] += left * static_cast<float>(b.all[k * kN + c]);
    }
  }
  to.all = sums;
}

}  // namespace nvcuda::wmma
