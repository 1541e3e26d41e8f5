# SPDX-License-Identifier: Apache-2.0
"""A training-speed OLMoE: parameter names and arithmetic of transformers' OlmoeForCausalLM.

Parameters are fp32, products run in bf16. Experts run as two grouped products over rows sorted
by expert. `save_pretrained` writes the checkpoint through transformers itself.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * y).to(x.dtype)


class Linear(nn.Linear):
    """No bias; fp32 weight, product in the input's type."""

    def __init__(self, num_in, num_out):
        super().__init__(num_in, num_out, bias=False)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


class Permute(torch.autograd.Function):
    """rows[order]; the gradient is a gather by the inverse, not a scatter."""

    @staticmethod
    def forward(ctx, rows, order, inverse):
        ctx.save_for_backward(inverse)
        return rows[order]

    @staticmethod
    def backward(ctx, gradient):
        (inverse,) = ctx.saved_tensors
        return gradient[inverse], None, None


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.num_heads = config.num_attention_heads
        self.q_proj, self.k_proj = Linear(size, size), Linear(size, size)
        self.v_proj, self.o_proj = Linear(size, size), Linear(size, size)
        self.q_norm, self.k_norm = RMSNorm(size, eps), RMSNorm(size, eps)

    def forward(self, x, cos, sin):
        batch, length, size = x.shape
        shape = (batch, length, self.num_heads, size // self.num_heads)
        q = self.q_norm(self.q_proj(x)).view(shape).transpose(1, 2)
        k = self.k_norm(self.k_proj(x)).view(shape).transpose(1, 2)
        v = self.v_proj(x).view(shape).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, size))


def grouped_product(rows, weight, ends):
    """rows [R, K] sorted by expert times weight [E, N, K]; expert e owns rows up to ends[e]."""
    weight = weight.to(rows.dtype).transpose(1, 2)
    if rows.is_cuda:
        return torch._grouped_mm(rows, weight, offs=ends)
    starts = [0] + ends.tolist()
    parts = [rows[a:b] @ weight[e] for e, (a, b) in enumerate(zip(starts, starts[1:]))]
    return torch.cat(parts)


class Experts(nn.Module):
    def __init__(self, config):
        super().__init__()
        num, inner, size = config.num_experts, config.intermediate_size, config.hidden_size
        self.gate_up_proj = nn.Parameter(torch.empty(num, 2 * inner, size))
        self.down_proj = nn.Parameter(torch.empty(num, size, inner))

    def forward(self, x, ids, weights):
        """x [T, H], ids and weights [T, k] -> [T, H]."""
        num_tokens, k = ids.shape
        sorted_ids, order = ids.flatten().sort(stable=True)
        inverse = order.argsort()
        experts = torch.arange(self.gate_up_proj.shape[0], device=x.device)
        ends = torch.searchsorted(sorted_ids, experts, right=True).to(torch.int32)
        rows = x[:, None, :].expand(num_tokens, k, x.shape[1]).reshape(num_tokens * k, -1)
        rows = Permute.apply(rows, order, inverse)
        gate, up = grouped_product(rows, self.gate_up_proj, ends).chunk(2, dim=-1)
        scale = Permute.apply(weights.flatten()[:, None], order, inverse)
        inner = (F.silu(gate.float()) * up.float() * scale).to(x.dtype)
        rows = Permute.apply(grouped_product(inner, self.down_proj, ends), inverse, order)
        return rows.view(num_tokens, k, -1).sum(1)


class SparseMlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.k, self.normalize = config.num_experts_per_tok, config.norm_topk_prob
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x, token_weights):
        """Returns the output, the balance loss (1 = balanced) and the expert ids [T, k]."""
        flat = x.flatten(0, 1)
        probabilities = self.gate(flat.float()).softmax(-1)
        weights, ids = probabilities.topk(self.k, dim=-1)
        if self.normalize:
            weights = weights / weights.sum(-1, keepdim=True)
        y = self.experts(flat, ids, weights)
        chosen = torch.zeros_like(probabilities).scatter(1, ids, 1.0 / self.k)
        share = token_weights / token_weights.sum()
        balance = probabilities.shape[1] * ((share @ chosen) * (share @ probabilities)).sum()
        return y.view_as(x), balance, ids


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(size, eps)
        self.mlp = SparseMlp(config)


class FastOlmoe(nn.Module):
    def __init__(self, config, dropout=0.0):
        super().__init__()
        self.config, self.dropout = config, dropout
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.model.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.model.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.compute_type = torch.bfloat16
        self.initialize()

    def initialize(self):
        depth = 1 / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                continue
            std = 0.7 / math.sqrt(parameter.shape[-1])
            if "o_proj" in name or "down_proj" in name:
                std *= depth
            if "embed" in name or "lm_head" in name or "mlp.gate.weight" in name:
                std = 0.02
            nn.init.normal_(parameter, std=std)

    def rope(self, length, device):
        size = self.config.hidden_size // self.config.num_attention_heads
        theta = self.config.rope_parameters["rope_theta"]
        steps = torch.arange(0, size, 2, device=device, dtype=torch.float32) / size
        angles = torch.outer(torch.arange(length, device=device).float(), theta**-steps)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(self.compute_type), angles.sin().to(self.compute_type)

    def drop(self, x):
        return F.dropout(x, self.dropout, self.training) if self.dropout else x

    def forward(self, tokens, sequence_weights):
        """tokens [B, S + 1] -> loss per token [B, S], mean balance loss, ids a layer [T, k]."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        weights = sequence_weights[:, None].expand(inputs.shape).flatten()
        cos, sin = self.rope(inputs.shape[1], tokens.device)
        x = self.drop(self.model.embed_tokens(inputs).to(self.compute_type))
        balances, routes = [], []
        for layer in self.model.layers:
            x = x + self.drop(layer.self_attn(layer.input_layernorm(x), cos, sin))
            y, balance, ids = layer.mlp(layer.post_attention_layernorm(x), weights)
            x = x + self.drop(y)
            balances.append(balance)
            routes.append(ids)
        logits = self.lm_head(self.model.norm(x)).float().flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="none")
        return loss.view(targets.shape), torch.stack(balances).mean(), routes

    def save_pretrained(self, folder):
        from transformers import OlmoeForCausalLM

        model = OlmoeForCausalLM(self.config)
        model.load_state_dict({k: v.detach().cpu() for k, v in self.state_dict().items()})
        model.to(torch.bfloat16).save_pretrained(folder)
