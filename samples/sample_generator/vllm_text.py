"""Fixed text of a vLLM 0.32 server log (GPU, V1): wording after the real log in `vllm-real/`, synthetic values."""

from __future__ import annotations

API, CORE, WORKER = "(APIServer pid=2107)", "(EngineCore pid=2390)", "(Worker_TP0 pid=2544)"

ENGINE_CONFIG = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='models/{model}', speculative_config={speculative}, "
    "tokenizer='models/{model}', skip_tokenizer_init=False, tokenizer_mode=auto, revision=None, "
    "tokenizer_revision=None, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=16384, download_dir=None, "
    "load_format=auto, tensor_parallel_size=4, pipeline_parallel_size=1, data_parallel_size=1, "
    "decode_context_parallel_size=1, dcp_comm_backend=ag_rs, disable_custom_all_reduce=False, quantization=fp8, "
    "quantization_config=None, enforce_eager=False, kv_cache_dtype=auto, device_config=cuda, "
    "observability_config=ObservabilityConfig(show_hidden_metrics_for_version=None, otlp_traces_endpoint=None, "
    "collect_detailed_traces=None, per_request_spec_decode_metrics='{per_request}', kv_cache_metrics=False, "
    "cudagraph_metrics=False, enable_layerwise_nvtx_tracing=False, enable_mfu_metrics=False, "
    "enable_mm_processor_stats=False, enable_logging_iteration_details=False), seed=0, "
    "served_model_name={model}, enable_prefix_caching=True, enable_chunked_prefill=True, pooler_config=None, "
    "compilation_config={{'mode': <CompilationMode.VLLM_COMPILE: 3>, 'debug_dump_path': None, 'cache_dir': '', "
    "'backend': 'inductor', 'cudagraph_mode': <CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>}}"
)

SAMPLING = (
    "SamplingParams(n=1, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0, "
    "temperature={temperature}, watermarking=None, top_p={top_p}, top_k={top_k}, min_p=0.0, seed=None, stop=[], "
    "stop_token_ids=[], bad_words=[], thinking_token_budget=None, include_stop_str_in_output=False, "
    "ignore_eos=False, max_tokens={max_tokens}, min_tokens=0, logprobs=None, prompt_logprobs=None, "
    "skip_special_tokens=True, spaces_between_special_tokens=True, structured_outputs=None, extra_args=None)"
)

LOGO = (
    "",
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0",
    "  █▄█▀ █     █     █     █  model   models/{model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
    "",
)

# (seconds after the process start, process, level, source, message)
START = (
    (1, API, "INFO", "model.py:733", "Resolved architecture: LlamaForCausalLM"),
    (1, API, "INFO", "model.py:2152", "Using max model len 16384"),
    (1, API, "INFO", "compilation.py:317", "Enabled custom fusions: norm_quant, act_quant"),
    (9, CORE, "INFO", "core.py:133", ENGINE_CONFIG),
    (12, WORKER, "WARNING", "custom_all_reduce.py:154",
     "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. To silence this "
     "warning, specify disable_custom_all_reduce=True explicitly."),
    (13, WORKER, "INFO", "parallel_state.py:2350",
     "rank 0 in world size 4 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0, ETP rank 0, EP rank N/A, "
     "EPLB rank N/A"),
    (31, WORKER, "INFO", "default_loader.py:501", "Loading weights took 17.42 seconds"),
    (40, CORE, "INFO", "kv_cache_utils.py:2327",
     "GPU KV cache size: 412,640 tokens, Maximum concurrency for 16,384 tokens per request: 25.19x"),
    (52, CORE, "INFO", "core.py:402", "init engine (profile, create kv cache, warmup model) took 11.87 s"),
    (54, API, "INFO", "entry.py:136", "Supported tasks: ['generate']"),
    (54, API, "INFO", "launcher.py:186", "Available routes are:"),
    (54, API, "INFO", "launcher.py:195", "Route: /health, Methods: GET"),
    (54, API, "INFO", "launcher.py:195", "Route: /metrics, Methods: GET"),
    (54, API, "INFO", "launcher.py:195", "Route: /v1/chat/completions, Methods: POST"),
)  # fmt: skip

SPECULATIVE_WARNINGS = (
    (1, API, "WARNING", "vllm.py:2276",
     "max_num_scheduled_tokens is set to 8192 based on the speculative decoding settings. This may lead to suboptimal "
     "performance. Consider increasing max_num_batched_tokens to accommodate the additional draft token slots, or "
     "decrease num_speculative_tokens."),
    (13, WORKER, "WARNING", "__init__.py:211",
     "min_p and logit_bias parameters won't work with speculative decoding."),
    (33, WORKER, "INFO", "gpu_model_runner.py:4402", "Loading drafter model..."),
)  # fmt: skip

#: What else stands in such logs; interval in seconds after traffic began.
NOISE = (
    (17, "WARNING", "protocol.py:117", "The following fields were present in the request but ignored: {'user_tier'}"),
    (48, "WARNING", "jit_monitor.py:88", "A Triton kernel was compiled while serving; this step was slow."),
    (83, "INFO", "launcher.py:231", "Reloading TLS certificates is disabled."),
)

BARE = (
    "INFO:     Started server process [2107]",
    "INFO:     Waiting for application startup.",
    "INFO:     Application startup complete.",
)
