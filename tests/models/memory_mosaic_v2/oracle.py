"""Memory Mosaics v2 from section 4 of the equations, one step and one pair at a time, in float64. Nothing is shared.

`read(model, ids, ...)` takes the parameters of a model by name and computes its logits with Python loops.
"""

import torch


def read(parameters, config, ids, delay, documents=None, kernel=None, long_term=True):
    """Logits (T, vocabulary) of one sequence `ids` (T,); `documents` (T,), `kernel(scores) -> weights`."""
    kernel = kernel or (lambda scores: torch.exp(scores) / torch.exp(scores).sum())
    documents = [0] * len(ids) if documents is None else [int(d) for d in documents]
    stream = [parameters["model.embed_tokens.weight"][token] for token in ids]
    for layer in range(config.num_layers):
        names = f"model.layers.{layer}."
        own = {name.removeprefix(names): p for name, p in parameters.items() if name.startswith(names)}
        normed = [rms_norm(x, own["memory_norm.weight"], config.rms_norm_eps) for x in stream]
        short = memory(own, "short_term.", config, normed, documents, kernel, 1, config.short_term_span)
        added = short
        if long_term:
            long = memory(own, "long_term.", config, normed, documents, kernel, delay, None)
            added = [a + b for a, b in zip(short, long)]
        stream = [x + a for x, a in zip(stream, added)]
        normed = [rms_norm(x, own["persistent_norm.weight"], config.rms_norm_eps) for x in stream]
        stream = [x + swiglu(own, n) for x, n in zip(stream, normed)]
    final = [rms_norm(x, parameters["model.norm.weight"], config.rms_norm_eps) for x in stream]
    return torch.stack([parameters["lm_head.weight"] @ x for x in final])


def rms_norm(x, weight, eps):
    return weight * x / torch.sqrt((x * x).mean() + eps)


def swiglu(own, x):
    gate = own["persistent.gate.weight"] @ x
    return own["persistent.down.weight"] @ (gate / (1 + torch.exp(-gate)) * (own["persistent.up.weight"] @ x))


def memory(own, prefix, config, xs, documents, kernel, delay, span):
    """What one memory adds to each step."""
    p = {name.removeprefix(prefix): value for name, value in own.items() if name.startswith(prefix)}
    answers = [[] for _ in xs]
    for head in range(config.num_heads):
        rows = slice(head * config.head_dim, (head + 1) * config.head_dim)
        keys = head_keys(p, head, rows, xs, documents)
        values = head_values(p, head, rows, xs, documents)
        for t in range(len(xs)):
            seen = [i for i in range(len(xs)) if i <= t - delay and (span is None or i > t - span)]
            seen = [i for i in seen if documents[i] == documents[t] >= 0 and values[i] is not None]
            if not seen:
                answers[t].append(torch.zeros(config.head_dim, dtype=torch.float64))
                continue
            exponent = torch.exp(-torch.abs(p["bandwidth.exponent_rate"][head]))
            beta = torch.exp(p["bandwidth.log_slope"][head]) * len(seen) ** exponent
            beta = beta + torch.exp(p["bandwidth.log_offset"][head])
            weights = kernel(torch.stack([beta * (keys[t] @ keys[i]) for i in seen]))
            answers[t].append(sum(w * values[i] for w, i in zip(weights, seen)))
    return [p["output.weight"] @ torch.cat(answer) for answer in answers]


def head_keys(p, head, rows, xs, documents):
    keys, kbar = [], None
    for t, x in enumerate(xs):
        if t == 0 or documents[t] != documents[t - 1]:
            kbar = torch.zeros(rows.stop - rows.start, dtype=torch.float64)
        gate = torch.exp(p["key_extractor.gate.weight"][head] @ x)
        decay = torch.exp(-torch.abs(p["key_extractor.decay.weight"][head] @ x))
        kbar = gate * (p["key_extractor.projection.weight"][rows] @ x) + decay * kbar
        keys.append(kbar / kbar.norm())
    return keys


def head_values(p, head, rows, xs, documents):
    """v_T for T < len(xs); None where x_{T+1} does not exist or belongs to another document."""
    mix = p["value_extractor.mix"][head]
    raw = [p["value_extractor.projection.weight"][rows] @ x for x in xs]
    values = []
    for t in range(len(xs)):
        if t + 1 == len(xs) or documents[t + 1] != documents[t]:
            values.append(None)
            continue
        mixed = mix * raw[t] + (1 - mix) * raw[t + 1]
        values.append(mixed / mixed.norm())
    return values
