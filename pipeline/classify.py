"""`classify`: images by the names of classes that nobody has trained on. Needs the checkpoint of a trained CLIP only."""

import csv
import io
import sys
from collections import Counter
from pathlib import Path

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table
from rich.text import Text

from datamodules.files import write_atomic
from datamodules.image_text_pairs import Texts
from lit_models.nn.clip import CLIP
from pipeline.image_index import image_features
from pipeline.trained import load_trained
from pipeline.zero_shot import class_weights, hardly_known, num_cut, read_classes, read_templates

SHOWN = 50  # rows of the table on the terminal
MOST = 20  # classes whose images are counted there


def classify(
    classes: str, images: str, run_dir: str | None = None, templates: str | None = None, out: str | None = None,
    ckpt_path: str = "best", device: str = "auto", batch_size: int = 256,
) -> None:  # fmt: skip
    """Prints and writes the likeliest of the given classes for each image, with its probability.

    Args:
        classes: names with commas between them; or a file: .txt with a name a line, .json with {name: description or list of
            descriptions}, which stand for themselves and go into no template.
        images: a folder, a file or a glob.
        run_dir: run folder of the model.
        templates: a file with a prompt a line, {} where the name goes. Default: those of training.
        out: the table, as CSV. Default: classification.csv in the run folder, or classification.csv.
        ckpt_path: best, last or a file; with a file run_dir is not needed.
        device: auto, cpu, cuda, ...
        batch_size: images computed at once.
    """
    own = read_templates(templates) if templates else None
    bare = read_classes(classes, ["{}"])  # before anything slow
    trained = load_trained(CLIP, "lit_models.clip.LitCLIP", run_dir, ckpt_path, device)
    prompts = read_classes(classes, own or trained.assets["templates"])
    names = list(prompts)
    texts = Texts(trained.tokenizer, own or trained.assets["templates"], trained.net.max_seq_len)
    if unknown := hardly_known(texts, bare):
        print(f"training hardly knew the words of {', '.join(unknown[:10])}: do not trust these classes")
    if count := num_cut(texts, list(prompts.values())):
        print(f"{count} prompts are longer than the model's context of {texts.max_seq_len} tokens: they are cut off")
    weights = class_weights(trained.net, texts, list(prompts.values()))
    files, features = image_features(trained, images, batch_size)
    with torch.inference_mode():
        best = trained.net.logits(features.to(weights), weights).softmax(-1).max(-1)
    rows = list(zip(files, (names[i] for i in best.indices.tolist()), best.values.tolist(), strict=True))
    table = Table()
    table.add_column("image", overflow="fold")
    table.add_column("class", overflow="fold")
    table.add_column("probability", justify="right")
    for file, name, probability in rows[:SHOWN]:
        table.add_row(Text(file), Text(name), f"{probability:.4f}")
    Console().print(table)
    if len(rows) > SHOWN:
        print(f"and {len(rows) - SHOWN} more")
    counts = Counter(dict.fromkeys(names, 0))
    counts.update(name for _, name, _ in rows)
    more = f" and {len(counts) - MOST} more classes" if len(counts) > MOST else ""
    print(", ".join(f"{name}: {count}" for name, count in counts.most_common(MOST)) + more)
    path = Path(out or (Path(run_dir) / "classification.csv" if run_dir else "classification.csv"))
    content = io.StringIO(newline="")
    csv.writer(content).writerows([("image", "class", "probability"), *rows])
    write_atomic(path, content.getvalue())
    print(f"written to {path}")


def main(argv: list[str]) -> int:
    sys.argv[0] = "python -m pipeline classify"
    auto_cli(classify, args=argv[1:], as_positional=False)
    return 0
