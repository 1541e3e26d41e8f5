# SPDX-License-Identifier: Apache-2.0
"""A quick, plain search for an expert placement: enough to see whether routing has structure.

C_T is the mean over tokens of the number of distinct devices that hold the token's experts.
"""

import numpy as np


def devices_per_token(ids, device_of):
    """ids [T, k], device_of [E] -> C_T."""
    held = np.sort(device_of[ids], axis=1)
    return 1.0 + (np.diff(held, axis=1) > 0).sum(1).mean()


def imbalance(ids, device_of, num_devices):
    load = np.bincount(device_of[ids].ravel(), minlength=num_devices)
    return load.max() / load.mean()


def contiguous(num_experts, num_devices):
    return np.arange(num_experts) * num_devices // num_experts


def swap_gains(member, device_of, num_devices):
    """member [T, E] of 0/1 -> drop in the sum over tokens of devices for each swap [E, E]."""
    home = np.eye(num_devices, dtype=np.float32)[device_of]
    count = member @ home
    alone = member * (count @ home.T == 1)  # [T, E]: the token's only expert on its device
    absent = (count == 0).astype(np.float32)
    leaves = alone.sum(0)  # e leaves its device
    joins = member.T @ absent  # [E, N]: e opens device d
    both = alone.T @ member  # [E, E]: e alone on its device, and f in the token
    to = joins[:, device_of]  # to[e, f]: e opens f's device
    gain = leaves[:, None] - to + leaves[None, :] - to.T - both - both.T
    gain[device_of[:, None] == device_of[None, :]] = -np.inf
    return gain


def descend(member, load, device_of, num_devices, load_cap):
    """Best swaps first; load [E] in the unit of member's rows; over the cap, load weighs more."""
    limit = load_cap * load.sum() / num_devices
    device_of = device_of.copy()
    while True:
        gain = swap_gains(member, device_of, num_devices)
        held = np.bincount(device_of, weights=load, minlength=num_devices)
        moved = load[None, :] - load[:, None]  # change of e's device when e and f swap
        here = held[device_of][:, None] + moved
        there = held[device_of][None, :] - moved
        over = np.maximum(held - limit, 0).sum()
        now = np.maximum(held[device_of] - limit, 0)
        change = np.maximum(here - limit, 0) + np.maximum(there - limit, 0)
        change -= now[:, None] + now[None, :]
        score = gain - 8.0 * change if over > 0 else np.where(change > 0, -np.inf, gain)
        e, f = np.unravel_index(np.argmax(score), score.shape)
        if score[e, f] <= 1e-3:
            return device_of
        device_of[e], device_of[f] = device_of[f], device_of[e]


def grow(member, num_devices, rng):
    """A start: devices filled one after another by the strongest co-activation."""
    pairs = member.T @ member
    np.fill_diagonal(pairs, 0)
    num_experts = len(pairs)
    device_of = np.full(num_experts, -1)
    for device in range(num_devices):
        free = np.flatnonzero(device_of < 0)
        chosen = [rng.choice(free)]
        while len(chosen) < num_experts // num_devices:
            rest = np.setdiff1d(free, chosen)
            chosen.append(rest[np.argmax(pairs[rest][:, chosen].sum(1))])
        device_of[chosen] = device
    return device_of


def search(ids, num_experts, num_devices, load_cap=1.10, num_starts=6, seed=0):
    """The best device_of [E] found within the load cap; None where none was found.

    Swaps are judged on at most 20,000 evenly spaced rows, loads on all.
    """
    rng = np.random.default_rng(seed)
    sample = ids[:: max(1, len(ids) // 20_000)]
    member = np.zeros((len(sample), num_experts), dtype=np.float32)
    member[np.arange(len(sample))[:, None], sample] = 1
    load = np.bincount(ids.ravel(), minlength=num_experts) * (len(sample) / len(ids))
    best, best_cost = None, np.inf
    for start in range(num_starts):
        device_of = contiguous(num_experts, num_devices)
        if start % 2:
            device_of = rng.permutation(device_of)
        elif start:
            device_of = grow(member, num_devices, rng)
        device_of = descend(member, load, device_of, num_devices, load_cap)
        cost = devices_per_token(ids, device_of)
        if imbalance(ids, device_of, num_devices) <= load_cap + 1e-9 and cost < best_cost:
            best, best_cost = device_of, cost
    return best
