"""Which parameters an optimizer treats alike: matrices, embeddings, vectors."""

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd


def param_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Trainable parameters of `module`, each once, in up to three groups that any torch optimizer takes.

    - `{"kind": "matrix"}`: two axes or more (linear weights, convolution kernels).
    - `{"kind": "embedding"}`: weights of `nn.Embedding` and `nn.EmbeddingBag`, hence an output head tied to one, and
      parameters of three axes or more whose first has size 1 (class tokens, position tables: broadcast over the
      batch), convolution kernels excepted.
    - `{"kind": "vector", "weight_decay": 0.0}`: fewer than two axes (biases, norms, scalars such as a logit scale).

    So weight decay follows the number of axes: vectors have none, matrices and embeddings the optimizer's own.
    `params` are plain tensors in the order of `named_parameters`, `param_names` their names (torch's own key); a tied
    weight stands under its first name. Frozen parameters and empty groups are left out.

    Source: GPT-2 as in nanoGPT, `configure_optimizers` (decay where dim >= 2); the split of embeddings from matrices
    is that of Muon, https://github.com/KellerJordan/Muon.
    """
    embeddings = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    kernels = {id(m.weight) for m in module.modules() if isinstance(m, _ConvNd)}

    def kind(param: Tensor) -> str:
        if param.dim() < 2:
            return "vector"
        broadcast = param.dim() > 2 and param.shape[0] == 1 and id(param) not in kernels
        return "embedding" if id(param) in embeddings or broadcast else "matrix"

    groups: dict[str, dict[str, Any]] = {
        "matrix": {"kind": "matrix"},
        "embedding": {"kind": "embedding"},
        "vector": {"kind": "vector", "weight_decay": 0.0},
    }
    for name, param in module.named_parameters():  # a tied weight is named once
        if param.requires_grad:
            group = groups[kind(param)]
            group.setdefault("params", []).append(param)
            group.setdefault("param_names", []).append(name)
    return [group for group in groups.values() if "params" in group]
