-- SPDX-License-Identifier: Apache-2.0
-- Names of PyTorch that are not here, with the reason: {kind = {name = reason}}. Each reason begins with "no".

local kGroups = {
  nn = {
    {"no: sizes are given, or made by a first call of the script; parameters must exist before plans place them",
      "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyConv1d LazyConv2d LazyConv3d LazyConvTranspose1d "
      .. "LazyConvTranspose2d LazyConvTranspose3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d LazyLinear "
      .. "UninitializedParameter"},
    {"no: a base class; nn.Module:extend, or a function, takes its place", "RNNBase RNNCellBase"},
    {"no: PyTorch itself advises against it", "Container NLLLoss2d"},
    {"no: mh.replicate and mh.fully_shard divide batches", "DataParallel"},
  },
  optim = {{"no: a base class", "Optimizer"}, {"no: gradients are dense", "SparseAdam"}},
  lr_scheduler = {{"no: a base class; LambdaLR takes a function", "LRScheduler"}},
  functional = {
    {"no: a tool of PyTorch's Python code", "assert_int_or_pair boolean_dispatch handle_torch_function "
      .. "has_torch_function has_torch_function_unary has_torch_function_variadic"},
    {"no: nn.MultiheadAttention, or mh.scaled_dot_product_attention", "multi_head_attention_forward"},
    {"no: products of 8-bit numbers and groups of matrices have no kernel for CPUs",
      "grouped_mm scaled_grouped_mm scaled_mm"},
  },
  init = {},
  ["nn.utils"] = {
    {"no: x:to{memory_format = \"channels_last\"}",
      "convert_conv2d_weight_memory_format convert_conv3d_weight_memory_format"},
    {"no: mh.deferred_init makes modules without initial values", "skip_init"},
  },
  func = {
    {"no: batch dims are what the engine cuts; functions take batches", "vmap stack_module_state"},
    {"no: a tool of PyTorch's compiler", "functionalize debug_unwrap"},
    {"no: mh.func.jvp at each point", "linearize"},
    {"no: BatchNorm{track_running_stats = false}", "replace_all_batch_norm_modules_"},
  },
  autograd = {
    {"no: tensors are what it was", "Variable variable"},
    {"no: mh.Function takes lists of tensors", "NestedIOFunction"},
    {"no: x:backward(gradient), for each", "backward"},
    {"no: mh.gradcheck(fn, inputs, {second = true})", "gradgradcheck"},
    {"no: mh.detect_nan, moonhalo run --detect-nan", "detect_anomaly set_detect_anomaly"},
    {"no: backward of a rank runs on the rank's thread", "set_multithreading_enabled"},
  },
  torch = {
    {"no: mh.autocast(dtype, fn) sets it for a call", "autocast_decrement_nesting autocast_increment_nesting "
      .. "clear_autocast_cache get_autocast_cpu_dtype get_autocast_dtype get_autocast_gpu_dtype "
      .. "get_autocast_ipu_dtype get_autocast_xla_dtype is_autocast_cache_enabled is_autocast_cpu_enabled "
      .. "is_autocast_enabled is_autocast_ipu_enabled is_autocast_xla_enabled "
      .. "set_autocast_cache_enabled set_autocast_cpu_dtype set_autocast_cpu_enabled set_autocast_dtype "
      .. "set_autocast_enabled set_autocast_gpu_dtype set_autocast_ipu_dtype set_autocast_ipu_enabled "
      .. "set_autocast_xla_dtype set_autocast_xla_enabled"},
    {"no: Python's compiler and its symbolic numbers", "compile cond while_loop sym_float sym_fresh_size sym_int "
      .. "sym_ite sym_max sym_min sym_not sym_sqrt sym_sum vmap profiler_allow_cudagraph_cupti_lazy_reinit_cuda12"},
    {"no: TorchScript's parts; mh.jit.load loads it", "fork import_ir_module import_ir_module_from_buffer wait "
      .. "merge_type_from_type_comment parse_ir parse_schema parse_type_comment unify_type_list"},
    {"no: tools of PyTorch's Python code", "classproperty compiled_with_cxx11_abi get_file_path "
      .. "prepare_multiprocessing_environment read_vitals set_vital vitals_enabled typename"},
    {"no: memory of other libraries is copied: mh.tensor(list), mh.h5, mh.files.read_npy",
      "from_dlpack from_numpy frombuffer to_dlpack is_storage"},
    {"no: mh.detect_nan", "is_anomaly_check_nan_enabled is_anomaly_enabled set_anomaly_enabled"},
    {"no: PyTorch has removed it, or advises against it: mh.linalg_* and mh.sparse_*", "eig lstsq lu matrix_rank solve "
      .. "symeig dsmm hsmm saddmm spmm set_default_tensor_type"},
    {"no: mh.linalg_svd, mh.linalg_eigh; a cut matrix is gathered there", "lobpcg pca_lowrank svd_lowrank"},
    {"no: --device of moonhalo run, and the option device", "set_default_device get_device_module"},
    {"no: x.device", "get_device"},
    {"no: mh.checkpoint.save; mh.save_pt for torch.load", "save"},
    {"no: draws follow from mh.manual_seed", "seed"},
    {"no: mh.use_deterministic", "get_deterministic_debug_mode set_deterministic_debug_mode"},
    {"no: mh.allow_tf32", "get_float32_matmul_precision set_float32_matmul_precision"},
    {"no: threads of an operator alone: mh.set_num_threads", "get_num_interop_threads set_num_interop_threads "
      .. "init_num_threads"},
    {"no: a call of mh.inference_mode(fn) is one", "is_inference_mode_enabled"},
    {"no: numbers keep their small values", "set_flush_denormal"},
    {"no: every warning is shown once", "is_warn_always_enabled set_warn_always"},
  },
  Tensor = {
    {"no: operators on whole tensors take its place", "apply_ map_ map2_"},
    {"no: Python's subclasses, and other libraries' memory", "as_subclass numpy data_ptr module_load"},
    {"no: the storage of a tensor is its own; x:clone(), mh.memory()", "is_shared share_memory_ storage storage_type "
      .. "untyped_storage"},
    {"no: devices other than CPUs and CUDA", "ipu is_ipu is_maia is_mkldnn is_mps is_mtia is_vulkan is_xla is_xpu mtia "
      .. "xpu"},
    {"no: dims have no names, and tensors are not nested or quantized", "has_names is_nested is_quantized name names"},
    {"no: x.device", "get_device"},
    {"no: x.layout", "is_sparse_csr"},
    {"no: x:to_sparse()", "to_sparse_coo"},
    {"no: x:stride()", "dim_order"},
    {"no: x:new_tensor, x:new_zeros", "new"},
    {"no: x.grad.dtype", "grad_dtype"},
    {"no: PyTorch has removed it, or advises against it", "eig lstsq lu solve symeig reinforce volatile"},
  },
  distributions = {
    {"no: its formulas are a few lines of operators; ask for it", "Beta Binomial Cauchy Chi2 ContinuousBernoulli "
      .. "Dirichlet Exponential FisherSnedecor Gamma GeneralizedPareto Geometric Gumbel HalfCauchy HalfNormal "
      .. "Independent InverseGamma Kumaraswamy LKJCholesky Laplace LogNormal LogisticNormal LowRankMultivariateNormal "
      .. "MixtureSameFamily Multinomial NegativeBinomial OneHotCategorical OneHotCategoricalStraightThrough Pareto "
      .. "RelaxedBernoulli RelaxedOneHotCategorical StudentT Poisson VonMises Weibull Wishart"},
    {"no: a base class", "Distribution ExponentialFamily"},
    {"no: densities of transformed variables are the script's own", "TransformedDistribution biject_to transform_to "
      .. "AbsTransform AffineTransform CatTransform ComposeTransform CorrCholeskyTransform "
      .. "CumulativeDistributionTransform ExpTransform IndependentTransform LowerCholeskyTransform "
      .. "PositiveDefiniteTransform PowerTransform ReshapeTransform SigmoidTransform SoftplusTransform TanhTransform "
      .. "SoftmaxTransform StackTransform StickBreakingTransform Transform identity_transform"},
    {"no: mh.distributions.kl_divergence has the pairs that are here", "register_kl"},
  },
}

local missing = {}
for kind, groups in pairs(kGroups) do
  missing[kind] = {}
  for _, group in ipairs(groups) do
    for name in group[2]:gmatch "%S+" do
      assert(missing[kind][name] == nil, kind .. " has " .. name .. " twice")
      missing[kind][name] = group[1]
    end
  end
end
return missing
