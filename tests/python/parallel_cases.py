# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: tiny models, and ranks of Gloo on this machine."""
import os
import socket
import sys
import traceback

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    import transformers
    import coterie
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)


def tiny_config(family="olmoe", **changes):
    """A config of 2 MoE layers, hidden 32, 8 experts of width 24, 2 a token."""
    common = dict(vocab_size=96, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                  num_key_value_heads=4, max_position_embeddings=64, num_experts_per_tok=2,
                  pad_token_id=0, eos_token_id=1, bos_token_id=1, tie_word_embeddings=False)
    if family == "olmoe":
        made = transformers.OlmoeConfig(intermediate_size=24, num_experts=8, **common, **changes)
    elif family == "mixtral":
        made = transformers.MixtralConfig(intermediate_size=24, num_local_experts=8, **common,
                                          **changes)
    elif family == "qwen2_moe":
        made = transformers.Qwen2MoeConfig(
            intermediate_size=40, moe_intermediate_size=24, shared_expert_intermediate_size=40,
            num_experts=8, decoder_sparse_step=1, **common, **changes)
    elif family == "qwen3_moe":
        made = transformers.Qwen3MoeConfig(intermediate_size=40, moe_intermediate_size=24,
                                           num_experts=8, head_dim=8, norm_topk_prob=True,
                                           decoder_sparse_step=1, **common, **changes)
    else:
        made = transformers.DeepseekV3Config(
            intermediate_size=40, moe_intermediate_size=24, n_routed_experts=8, n_shared_experts=1,
            n_group=2, topk_group=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16,
            qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
            **{**common, "num_hidden_layers": 3}, **changes)
    made._attn_implementation = "eager"
    return made


def tiny_model(family="olmoe", seed=0, **changes):
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(tiny_config(family, **changes))
    with torch.no_grad():  # wide enough that routing and results differ from token to token
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.15)
    return model


def tokens(count, length=12, seed=0):
    """[count, length] token ids."""
    return torch.randint(2, 96, (count, length), generator=torch.Generator().manual_seed(seed))


def scattered_placement(model, size, copies=False):
    """Experts dealt out so that none is where the contiguous placement has it."""
    devices = {}
    for name, module in coterie.parallel.find_experts(model):
        number = coterie.parallel.layer_number(name)
        held = [[e for e in range(module.num_experts) if (e + number) % size == d]
                for d in range(size)]
        if copies:
            for d in range(size):
                held[d].append(held[(d + 1) % size][0])
        devices[number] = held
    return coterie.placement_from(devices, module.num_experts)


def _rank(rank, size, port, function, arguments, queue):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                      WORLD_SIZE=str(size), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo")
        function(*arguments)
        dist.barrier()
        dist.destroy_process_group()
        queue.put((rank, None))
    except BaseException:
        queue.put((rank, traceback.format_exc()))
        queue.close()
        queue.join_thread()  # the report leaves before the process does
        os._exit(1)


def run_ranks(size, function, *arguments):
    """Runs function(*arguments) on `size` ranks, forked; raises the first failure."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("fork")
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(r, size, port, function, arguments, queue))
             for r in range(size)]
    for rank in ranks:
        rank.start()
    for _ in ranks:
        rank, problem = queue.get(timeout=120)
        if problem is not None:
            for other in ranks:
                other.kill()
            raise AssertionError(f"rank {rank} of {size}:\n{problem}")
    for rank in ranks:
        rank.join()


def check_close(found, expected, what, limit=1e-5):
    scale = expected.abs().max().item() or 1.0
    worst = (found - expected).abs().max().item() if expected.numel() else 0.0
    assert worst <= limit * max(scale, 1e-3), f"{what}: off by {worst:.3e} of {scale:.3e}"


def run_tests(module):
    """Runs every function named test_* of a module; the exit code for main."""
    names = sys.argv[1:] or [n for n in vars(module) if n.startswith("test_")]
    failed = 0
    for name in names:
        try:
            getattr(module, name)()
            print(f"ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0
