"""BERT equals transformers' BERT in all three shapes, does not see padding, and counts what was published."""

from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining, BertForSequenceClassification, BertForTokenClassification

from lit_models.losses.language import token_cross_entropy
from lit_models.nn.bert import BERT, BERTClassifier, BERTEncoder, BERTTagger
from tests.reading import ROOT

SIZES = {"vocab_size": 23, "max_seq_len": 16, "num_layers": 2, "num_heads": 2, "embed_dim": 16}
IGNORE = -100


def theirs_by_ours(net: BERTEncoder) -> dict[str, list[str]]:
    """Our parameters' names, and the one or three of theirs that are the same numbers."""
    embeddings = {"token_embedding": "word", "segment_embedding": "token_type", "position_embedding": "position"}
    names = {f"{o}.weight": [f"bert.embeddings.{t}_embeddings.weight"] for o, t in embeddings.items()}
    for kind in ("weight", "bias"):
        names[f"norm.{kind}"] = [f"bert.embeddings.LayerNorm.{kind}"]
        for i in range(len(net.blocks)):
            theirs = f"bert.encoder.layer.{i}"
            parts = {"attention.out": "attention.output.dense", "norm1": "attention.output.LayerNorm"}
            parts |= {"mlp.fc_in": "intermediate.dense", "mlp.fc_out": "output.dense", "norm2": "output.LayerNorm"}
            names |= {f"blocks.{i}.{o}.{kind}": [f"{theirs}.{t}.{kind}"] for o, t in parts.items()}
            qkv = [f"{theirs}.attention.self.{part}.{kind}" for part in ("query", "key", "value")]
            names[f"blocks.{i}.attention.qkv.{kind}"] = qkv
        names[f"pooler.dense.{kind}"] = [f"bert.pooler.dense.{kind}"]
        names[f"classifier.{kind}"] = [f"classifier.{kind}"]
        names[f"mlm_head.dense.{kind}"] = [f"cls.predictions.transform.dense.{kind}"]
        names[f"mlm_head.norm.{kind}"] = [f"cls.predictions.transform.LayerNorm.{kind}"]
        names[f"nsp_head.{kind}"] = [f"cls.seq_relationship.{kind}"]
    names["mlm_head.bias"] = ["cls.predictions.bias"]
    return {ours: names[ours] for ours, _ in net.named_parameters()}


def loss_of(net: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Our logits where their labels count, and the loss."""
    inputs = batch["input_ids"], batch["segment_ids"], batch["attention_mask"]
    if isinstance(net, BERT):
        predicted = (batch["labels"].flatten() != IGNORE).nonzero().squeeze(1)
        out = net(*inputs, predicted)
        total, count = token_cross_entropy(out.mlm, batch["labels"].flatten()[predicted])
        return torch.cat([out.mlm.flatten(), out.nsp.flatten()]), total / count + F.cross_entropy(out.nsp, batch["nsp"])
    labels = batch["class"] if isinstance(net, BERTClassifier) else batch["labels"] % 3
    labels = labels if isinstance(net, BERTClassifier) else labels.where(batch["labels"] != IGNORE, IGNORE)
    logits = net(*inputs)
    total, count = token_cross_entropy(logits, labels)
    return logits[labels != IGNORE].flatten(), total / count


def loss_of_theirs(net: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    inputs = dict(zip(("input_ids", "token_type_ids", "attention_mask"), list(batch.values())[:3], strict=True))
    inputs["attention_mask"] = inputs["attention_mask"].long()
    counts = batch["labels"] != IGNORE
    if isinstance(net, BertForPreTraining):
        out = net(**inputs, labels=batch["labels"], next_sentence_label=batch["nsp"])
        return torch.cat([out.prediction_logits[counts].flatten(), out.seq_relationship_logits.flatten()]), out.loss
    if isinstance(net, BertForSequenceClassification):
        out = net(**inputs, labels=batch["class"])
        return out.logits.flatten(), out.loss
    out = net(**inputs, labels=(batch["labels"] % 3).where(counts, IGNORE))
    return out.logits[counts].flatten(), out.loss


def batch() -> dict[str, Tensor]:
    """Two sentences a row, rows of 12, 9 and 5 tokens."""
    length = torch.tensor([12, 9, 5])
    mask = torch.arange(12) < length[:, None]
    ids = torch.randint(1, 23, (3, 12)).where(mask, 0)
    segments = ((torch.arange(12) >= length[:, None] // 2) & mask).long()
    labels = torch.randint(23, (3, 12)).where(mask & (torch.rand(3, 12) < 0.4), IGNORE)
    labels[0, 3] = 5
    return {
        "input_ids": ids, "segment_ids": segments, "attention_mask": mask, "labels": labels,
        "nsp": torch.tensor([0, 1, 1]), "class": torch.tensor([2, 0, 1]),
    }  # fmt: skip


PAIRS = {
    "pre-training": (BERT, {}, BertForPreTraining),
    "sequences": (BERTClassifier, {"num_classes": 3}, BertForSequenceClassification),
    "tokens": (BERTTagger, {"num_classes": 3}, BertForTokenClassification),
}


@pytest.fixture(params=PAIRS)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Ours and theirs, with weights large enough for a fault to show."""
    kind, arguments, reference = PAIRS[request.param]
    config = BertConfig(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3,
        num_labels=3, problem_type="single_label_classification",
    )  # fmt: skip
    theirs = reference(config)
    net = kind(**SIZES, **arguments)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn_like(p))
        named = dict(theirs.named_parameters())
        for ours, names in theirs_by_ours(net).items():
            net.get_parameter(ours).copy_(torch.cat([named[name] for name in names]))
    return net, theirs


def largest_difference(net: Any, theirs: Any) -> float:
    """Over logits, loss and every parameter's gradient."""
    inputs = batch()
    logits, loss = loss_of(net, inputs)
    expected, their_loss = loss_of_theirs(theirs, inputs)
    loss.backward()
    their_loss.backward()
    named = dict(theirs.named_parameters())
    differences = [logits - expected, loss - their_loss]
    for ours, names in theirs_by_ours(net).items():
        differences.append(net.get_parameter(ours).grad - torch.cat([named[name].grad for name in names]))
    return max(float(d.abs().max().detach()) for d in differences)


@pytest.mark.parametrize("dtype,tolerance", [(torch.float64, 1e-9), (torch.float32, 1e-5)])
def test_equals_transformers_bert(pair: tuple[Any, Any], dtype: torch.dtype, tolerance: float) -> None:
    net, theirs = pair
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in theirs.parameters())
    assert largest_difference(net.to(dtype), theirs.to(dtype)) <= tolerance


@pytest.mark.parametrize("name", ["position_embedding.weight", "blocks.0.attention.qkv.bias", "blocks.1.norm2.weight"])
def test_equality_fails_when_one_weight_is_changed(pair: tuple[Any, Any], name: str) -> None:
    net, theirs = pair
    with torch.no_grad():
        net.get_parameter(name).view(-1)[0] += 1e-3
    assert largest_difference(net.double(), theirs.double()) > 1e-6


@pytest.mark.parametrize("name,size", [("bert_base", 110_106_428), ("bert_large", 336_226_108)])
def test_published_sizes(name: str, size: int) -> None:
    arguments = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())["model"]["init_args"]["net"]
    with torch.device("meta"):
        assert sum(p.numel() for p in BERT(vocab_size=30_522, **arguments).parameters()) == size


@pytest.mark.parametrize("training", [True, False])
def test_o09_padding_has_no_effect(training: bool) -> None:
    """Neither its ids nor its number: real positions, loss and gradients are those of the row alone; an empty row is no NaN."""
    net = BERT(**SIZES).double().train(training)
    row = torch.randint(23, (1, 7))
    alone = net.features(row, torch.zeros_like(row), torch.ones_like(row).bool())
    ids = torch.randint(23, (3, 12))
    ids[0, :7] = row[0]
    mask = torch.zeros(3, 12, dtype=torch.bool)
    mask[0, :7], mask[1] = True, True  # the third row is nothing but padding
    out = net.features(ids, torch.zeros_like(ids), mask)
    assert torch.allclose(out[0, :7], alone[0], atol=1e-12)
    other = net.features(ids.where(mask, (ids + 1) % 23), torch.zeros_like(ids), mask)
    assert torch.equal(out, other) and out.isfinite().all()
    out.sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_the_vocabulary_head_runs_on_the_predicted_places_only() -> None:
    net = BERT(**SIZES)
    inputs = list(batch().values())[:3]
    places = torch.tensor([3, 14, 15])
    whole = net(*inputs).mlm
    assert whole.shape == (3, 12, 23)
    assert torch.allclose(net(*inputs, places).mlm, whole.flatten(0, 1)[places], atol=1e-6)
    assert net(*inputs, places[:0]).mlm.shape == (0, 23)


def test_attention_maps_are_those_of_the_forward_pass() -> None:
    net = BERT(**SIZES)
    ids, segments, mask, *_ = batch().values()
    maps = net.attention_maps(ids, segments, mask)
    assert maps.shape == (2, 3, 2, 12, 12)
    assert torch.allclose(maps.sum(-1), torch.ones(2, 3, 2, 12), atol=1e-5)
    assert maps.movedim(1, 0)[~mask[:, None, None, None, :].expand(3, 2, 2, 12, 12)].abs().max() == 0


def test_without_nsp_there_is_neither_pooler_nor_head() -> None:
    net = BERT(**SIZES, nsp=False)
    assert not any(name.startswith(("pooler", "nsp")) for name, _ in net.named_parameters())
    assert net(*list(batch().values())[:3]).nsp is None


@pytest.mark.parametrize("arguments,said", [
    ({"num_layers": 0}, "num_layers 0 is not positive"), ({"dropout": 1.0}, "dropout 1.0 is not in"),
    ({"num_heads": 3}, "embed_dim 16 is not a multiple of num_heads 3"),
])  # fmt: skip
def test_bad_sizes_are_named(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        BERT(**{**SIZES, **arguments})


def test_a_sequence_that_is_too_long_is_refused() -> None:
    ids = torch.zeros(1, 17, dtype=torch.long)
    with pytest.raises(ValueError, match="17 tokens is longer than max_seq_len 16"):
        BERT(**SIZES)(ids, ids, ids == 0)


@pytest.mark.parametrize(("embed_dim", "num_heads"), [(128, 4), (192, 3), (768, 12)])
def test_the_first_heads_of_a_new_network_look_at_neighbours(embed_dim, num_heads):
    torch.manual_seed(0)
    net = BERT(1000, 64, num_layers=2, num_heads=num_heads, embed_dim=embed_dim)
    ids = torch.randint(5, 1000, (4, 64))
    maps = net.attention_maps(ids, torch.zeros_like(ids), torch.ones_like(ids, dtype=torch.bool))
    for head, offset in zip(range(num_heads), (-1, 1, -2, 2), strict=False):
        at = [float(maps[:, :, head].diagonal(o, dim1=-2, dim2=-1).mean()) for o in range(offset - 8, offset + 9)]
        assert at[8] > 0.25  # 1/64 by chance
        assert sum(at[7:10]) > 0.8  # with the places beside it, which the waves hardly tell apart
        assert sum(at[:7]) + sum(at[10:]) < 0.2
    if num_heads > 4:
        assert maps[:, :, 4:].max() < 0.1  # the others know nothing yet
