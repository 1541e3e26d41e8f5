#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""coterie.parallelize: outputs and gradients of the whole model, whatever the ranks hold."""
import copy
import sys
import tempfile

from parallel_cases import (
    check_close, coterie, dist, run_ranks, run_tests, scattered_placement, tiny_model, tokens,
    torch, transformers,
)

FAMILIES = ("olmoe", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3")


def loss_of(model, ids):
    return model(input_ids=ids, labels=ids, use_cache=False).loss


def reference_gradients(model, batches):
    """Gradients of the mean of the batches' losses."""
    whole = copy.deepcopy(model)
    losses = [loss_of(whole, ids) for ids in batches]
    (sum(losses) / len(losses)).backward()
    return ({n: torch.zeros_like(p) if p.grad is None else p.grad
             for n, p in whole.named_parameters()}, [x.detach() for x in losses])


def compare(model, expected, losses, own_loss):
    rank = dist.get_rank() if dist.is_initialized() else 0
    check_close(own_loss.detach(), losses[rank], "loss")
    layers = {name: layer for layer in coterie.parallel_experts(model)
              for name, _ in layer.parameters()}
    for name, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        wanted = expected[name]
        if name in layers:
            wanted = wanted[layers[name].expert_ids]
        check_close(grad, wanted, name, 2e-5)


def one_family(family, backend, copies=False, chunks=1, recompute=False):
    model = tiny_model(family)
    size = dist.get_world_size()
    batches = [tokens(2 + r, seed=r) for r in range(size)]
    expected, losses = reference_gradients(model, batches)
    placement = scattered_placement(model, size, copies)
    coterie.parallelize(model, placement=placement, backend=backend, chunks=chunks,
                        recompute=recompute)
    loss = loss_of(model, batches[dist.get_rank()])
    loss.backward()
    coterie.reduce_gradients(model)
    compare(model, expected, losses, loss)
    figures = coterie.statistics(model)[coterie.parallel_experts(model)[0].layer]
    assert 1.0 <= figures["replicas"] <= 2.0 and figures["bytes_dispatch"] > 0, figures


def all_families(backend):
    for family in FAMILIES:
        one_family(family, backend)


def test_every_family_on_two_ranks():
    run_ranks(2, all_families, "core")


def test_the_torch_backend_on_two_ranks():
    run_ranks(2, one_family, "olmoe", "torch")
    run_ranks(2, one_family, "deepseek_v3", "torch")


def test_four_ranks_copies_chunks_recompute():
    run_ranks(4, one_family, "qwen3_moe", "core", False, 3, True)
    run_ranks(2, one_family, "olmoe", "core", True, 2)


def test_one_process_without_group():
    model = tiny_model()
    ids = tokens(3)
    expected, losses = reference_gradients(model, [ids])
    coterie.parallelize(model)
    loss = loss_of(model, ids)
    loss.backward()
    coterie.reduce_gradients(model)
    compare(model, expected, losses, loss)


def idle_rank():
    model = tiny_model()
    batches = [tokens(3, seed=5), tokens(3, seed=5)[:, :0]]
    expected, _ = reference_gradients(model, batches[:1])
    coterie.parallelize(model, gradients="sum")
    layer = coterie.parallel_experts(model)[0]
    rank = dist.get_rank()
    rows = torch.randn(5, 32, generator=torch.Generator().manual_seed(1)) * (1 - rank)
    rows = rows[:5 * (1 - rank)].requires_grad_()
    ids = torch.tensor([[0, 7], [1, 2], [7, 3], [4, 0], [7, 6]])[:len(rows)]
    weights = torch.full(ids.shape, 0.5)
    y = layer.core(rows, ids, weights, layer.module.gate_up_proj, layer.module.down_proj)
    assert y.shape == (len(rows), 32)
    y.sum().backward()
    grads = layer.module.down_proj.grad
    assert (grads.flatten(1).abs().sum(1) > 0).tolist() == [
        e in ids_used for e in layer.expert_ids for ids_used in [{0, 1, 2, 3, 4, 6, 7}]]
    del expected


def test_a_rank_without_tokens():
    run_ranks(2, idle_rank)


def steps(kind):
    """Losses of three steps of plain PyTorch, whole model against parallel ones."""
    whole = tiny_model("olmoe", router_aux_loss_coef=0.01, output_router_logits=True)
    model = copy.deepcopy(whole)
    rank, size = dist.get_rank(), dist.get_world_size()
    coterie.parallelize(model, placement=scattered_placement(model, size))
    run = model
    if kind == "ddp":
        run = torch.nn.parallel.DistributedDataParallel(model)
    if kind == "checkpoint":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    if kind == "fsdp2":
        shard_dense(model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-2) for m in (whole, model)]
    for step in range(3):
        batches = [tokens(2, seed=10 * step + r) for r in range(size)]
        expected = [loss_of(whole, ids) for ids in batches]
        (sum(expected) / size).backward()
        wanted_norm = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        loss = loss_of(run, batches[rank])
        loss.backward()
        if kind in ("plain", "checkpoint"):
            coterie.reduce_gradients(model)
        if kind != "fsdp2":
            norm = coterie.clip_grad_norm_(model, 0.5)
            check_close(norm.float(), wanted_norm, f"norm of step {step}")
        else:
            clip_by(model, 0.5 / (wanted_norm + 1e-6))
        check_close(loss.detach(), expected[rank].detach(), f"{kind}: loss of step {step}")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def shard_dense(model):
    from torch.distributed.fsdp import fully_shard

    experts = coterie.local_experts(model)
    for layer in model.model.layers:
        fully_shard(layer, ignored_params=experts)
    fully_shard(model, ignored_params=experts)


@torch.no_grad()
def clip_by(model, factor):
    for parameter in model.parameters():
        if parameter.grad is not None and factor < 1:
            grad = parameter.grad
            (grad.to_local() if hasattr(grad, "to_local") else grad).mul_(factor)


def test_training_keeps_its_losses():
    for kind in ("plain", "ddp", "checkpoint", "fsdp2"):
        run_ranks(2, steps, kind)


def compiled():
    model = tiny_model()
    ids = tokens(2, seed=dist.get_rank())
    expected, losses = reference_gradients(model, [tokens(2, seed=r) for r in range(2)])
    coterie.parallelize(model, placement=scattered_placement(model, 2))
    layer = model.model.layers[0]
    layer.mlp = torch.compile(layer.mlp, fullgraph=True, backend="aot_eager")
    loss = loss_of(model, ids)
    loss.backward()
    coterie.reduce_gradients(model)
    for name in list(expected):
        if name.startswith("model.layers.0.mlp."):
            expected[name.replace(".mlp.", ".mlp._orig_mod.")] = expected[name]
    for each in coterie.parallel_experts(model):
        if each.layer == 0:
            each.name = each.name.replace(".mlp.", ".mlp._orig_mod.")
    compare(model, expected, losses, loss)


def test_a_compiled_block_in_one_graph():
    run_ranks(2, compiled)


def saved(folder):
    model = tiny_model("olmoe")
    whole = copy.deepcopy(model)
    coterie.parallelize(model, placement=scattered_placement(model, 2))
    state = coterie.full_state_dict(model, rank=None)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(state[name], tensor), name
    coterie.save_pretrained(model, folder)
    again = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    with torch.no_grad():
        check_close(again(tokens(1)).logits, whole(tokens(1)).logits, "logits after saving")


def test_saving_gives_the_whole_model():
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(2, saved, folder + "/model")


def refused():
    model = tiny_model(seed=dist.get_rank())
    error_of(lambda: coterie.parallelize(model), "differs between this rank", "bad_input")
    model = tiny_model()
    placement = coterie.contiguous_placement([0, 1], 8, 4)
    error_of(lambda: coterie.parallelize(model, placement=placement), "for 4 devices", "bad_input")
    placement = coterie.contiguous_placement([0], 8, 2)
    error_of(lambda: coterie.parallelize(model, placement=placement), "lacks layer 1", "bad_input")
    error_of(lambda: coterie.parallelize(model, placement="no/such/file.json"), "no/such/file",
             "io")
    error_of(lambda: coterie.parallelize(model, placement="coactivation"), "stats", "bad_input")


def error_of(call, text, code):
    try:
        call()
    except coterie.Error as error:
        assert text in str(error) and error.code == code, (error.code, str(error))
        return
    raise AssertionError(f"nothing was refused: {text}")


def test_wrong_input_is_refused():
    run_ranks(2, refused)
    gelu = tiny_model(hidden_act="gelu")
    error_of(lambda: coterie.parallelize(gelu), "activation", "unsupported")
    error_of(lambda: coterie.parallelize(torch.nn.Linear(2, 2)), "no experts", "unsupported")
    model = coterie.parallelize(tiny_model())
    error_of(lambda: coterie.parallelize(model), "already", "bad_input")


if __name__ == "__main__":
    sys.exit(run_tests(sys.modules[__name__]))
