// SPDX-License-Identifier: Apache-2.0
// C, for GCC alone: the threads have to be those of LibTorch, which are GCC's, and Clang makes code for another OpenMP.
#include <omp.h>

void moonhalo_openmp_region(int most, void (*work)(void* context, int thread, int threads), void* context) {
#pragma omp parallel num_threads(most)
  work(context, omp_get_thread_num(), omp_get_num_threads());
}
