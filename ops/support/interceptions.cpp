// SPDX-License-Identifier: Apache-2.0
#include "moonhalo/ops/support/interceptions.h"

namespace moonhalo {
namespace {

constexpr const char* kAboveAutograd = "AutogradCPU AutogradCUDA AutogradPrivateUse1 AutogradOther";
constexpr const char* kOneCheck = "every call; with plain tensors alone one check, then LibTorch's own kernel";

std::vector<Interception> interceptions_above_autograd() {
  return {
      {"linear matmul matmul.out kron.out linalg_matrix_power.out matrix_power.out einsum tensordot max_pool1d",
       kAboveAutograd, kOneCheck, "made of operators that merge or pad cut dims, or read memory"},
      {"scaled_dot_product_attention", kAboveAutograd, kOneCheck,
       "keys of a cut sequence go round instead of being gathered"},
      {"quantile quantile.scalar quantile.out quantile.scalar_out nanquantile nanquantile.scalar nanquantile.out "
       "nanquantile.scalar_out",
       kAboveAutograd, kOneCheck, "reads ranks from memory"},
      {"stft stft.center _pad_circular fill_diagonal_", kAboveAutograd, kOneCheck,
       "made of reads and writes of memory by strides"},
      {"cudnn_is_acceptable", kAboveAutograd, kOneCheck, "cuDNN's kernels of recurrent layers know nothing of blocks"},
      {"conv_tbc_backward", kAboveAutograd, kOneCheck, "its kernel reads the memory of whole tensors"},
      {"tensor_split.tensor_indices_or_sections _pad_packed_sequence lstm.data gru.data rnn_tanh.data rnn_relu.data "
       "ctc_loss.Tensor",
       kAboveAutograd, kOneCheck, "a tensor of a few numbers (positions, lengths) is read on the host"},
      {"value_selecting_reduction_backward", "AutogradCPU AutogradCUDA AutogradPrivateUse1", kOneCheck,
       "its formula makes plain zeros of the global shape"},
  };
}

std::vector<Interception> interceptions_in_modes() {
  return {
      {"uniform_ normal_ log_normal_ exponential_ cauchy_ geometric_ random_ random_.from random_.to bernoulli_.float "
       "bernoulli_.Tensor bernoulli bernoulli.p native_dropout rrelu_with_noise rrelu_with_noise_ normal.Tensor_float "
       "normal.float_Tensor normal.Tensor_Tensor poisson _standard_gamma binomial _sample_dirichlet multinomial "
       "randperm.generator_out",
       "TESTING_ONLY_GenericMode", "plain tensors on the CPU in rank threads, and where ElementwiseRandom lives",
       "numbers are a function of seed, call and element, so they do not depend on the ranks"},
      {"*", "Fake", "calls that make or get tensors without memory (engine/forecast)",
       "results have shapes, and nothing is computed"},
      {"*", "DeferredInit", "while a deferred initialisation is recorded",
       "calls go on a tape instead of making tensors"},
  };
}

std::vector<Interception> interceptions_in_generic_wrapper() {
  return {
      {"_sparse_log_softmax_backward_data _sparse_mask_projection _sparse_mm_reduce_impl "
       "_sparse_mm_reduce_impl_backward _sparse_softmax_backward_data _sparse_sparse_matmul "
       "_sparse_sum_backward "
       "add.Tensor add.out add_.Tensor addmm addmm.out addmm_ addmv.out bmm bmm.out copy_ "
       "copy_sparse_to_sparse_ "
       "div.Tensor div.Tensor_mode div.out div.out_mode div_.Tensor div_.Tensor_mode floor_divide "
       "floor_divide.out "
       "floor_divide_.Tensor hspmm hspmm.out mm mm.out mul.Tensor mul.out mul_.Tensor "
       "mv resize_as_sparse_ "
       "sparse_mask sparse_sampled_addmm sparse_sampled_addmm.out sspaddmm.out sub.Tensor sub.out "
       "sub_.Tensor "
       "threshold_backward threshold_backward.grad_input triangular_solve.X",
       "TESTING_ONLY_GenericWrapper", "calls with a ShardTensor",
       "their kernels for sparse tensors come before ours, so a sparse tensor beside a ShardTensor "
       "is refused here"},
      {"embedding gather index.Tensor index_select select.int", "TESTING_ONLY_GenericWrapper",
       "calls with a ShardTensor",
       "the gradient of a cut table is made in the table's own cut; a sparse tensor is refused"},
      {"_sparse_bsc_tensor_unsafe _sparse_bsr_tensor_unsafe _sparse_compressed_tensor_unsafe "
       "_sparse_compressed_tensor_with_dims _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims "
       "_sparse_coo_tensor_with_dims.out _sparse_coo_tensor_with_dims_and_tensors "
       "_sparse_coo_tensor_with_dims_and_tensors.out _sparse_csc_tensor_unsafe "
       "_sparse_csr_tensor_unsafe "
       "sparse_bsc_tensor.ccol_row_value sparse_bsc_tensor.ccol_row_value_size "
       "sparse_bsr_tensor.crow_col_value "
       "sparse_bsr_tensor.crow_col_value_size sparse_compressed_tensor.comp_plain_value "
       "sparse_compressed_tensor.comp_plain_value_size sparse_coo_tensor.indices "
       "sparse_coo_tensor.indices_size "
       "sparse_coo_tensor.size sparse_coo_tensor.size_out sparse_csc_tensor.ccol_row_value "
       "sparse_csc_tensor.ccol_row_value_size sparse_csr_tensor.crow_col_value "
       "sparse_csr_tensor.crow_col_value_size",
       "TESTING_ONLY_GenericWrapper", "calls with a ShardTensor", "a sparse tensor has no blocks: refused"},
      {"as_strided as_strided_copy as_strided_", "TESTING_ONLY_GenericWrapper", "calls with a ShardTensor",
       "strides are those of other views, or refused; derivatives read memory"},
      {"arange arange.start arange.start_step eye eye.m full linspace ones rand randint randint.low randn zeros",
       "TESTING_ONLY_GenericWrapper", "in the forward of a module whose plan places factories",
       "what they make is placed as planned"},
  };
}

}  // namespace

const std::vector<Interception>& interceptions() {
  static const std::vector<Interception> list = [] {
    std::vector<Interception> all = {{"*", "CustomRNGKeyId", "calls with a ShardTensor",
                                      "a ShardTensor is one tensor, whose operators are carried out on blocks"}};
    for (const auto& part :
         {interceptions_above_autograd(), interceptions_in_modes(), interceptions_in_generic_wrapper()})
      all.insert(all.end(), part.begin(), part.end());
    return all;
  }();
  return list;
}

}  // namespace moonhalo
