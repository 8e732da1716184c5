"""`search`: the images that are nearest to a text. Needs the checkpoint of a trained CLIP only."""

import sys
from pathlib import Path

import torch
from jsonargparse import auto_cli
from rich.console import Console
from rich.table import Table
from rich.text import Text

from datamodules.image_cache import fit
from datamodules.image_decoding import decode
from datamodules.image_text_pairs import Texts
from lit_models.nn.clip import CLIP
from pipeline import figures, image_figures
from pipeline.errors import BadInput
from pipeline.image_index import image_features
from pipeline.trained import load_trained
from pipeline.zero_shot import class_weights, num_cut

SHOWN = (128, 128)  # pixels of a picture on the contact sheet


def search(
    query: str, images: str, run_dir: str | None = None, top_k: int = 12, out: str | None = None, ckpt_path: str = "best",
    device: str = "auto", batch_size: int = 256,
) -> None:  # fmt: skip
    """Prints the images nearest to a text, with the cosines of their features, and draws them on a contact sheet.

    Features of images are kept, so that a second query is quick.

    Args:
        query: what to look for.
        images: a folder, a file or a glob.
        run_dir: run folder of the model.
        top_k: images to show.
        out: the contact sheet, a PNG. Default: figures/search.png in the run folder, or search.png.
        ckpt_path: best, last or a file; with a file run_dir is not needed.
        device: auto, cpu, cuda, ...
        batch_size: images computed at once.
    """
    if not query.strip():
        raise BadInput("the query is empty: say what to look for")
    if top_k < 1:
        raise BadInput(f"top_k is {top_k}; it must be at least 1")
    trained = load_trained(CLIP, "lit_models.clip.LitCLIP", run_dir, ckpt_path, device)
    templates = trained.assets["templates"]
    texts = Texts(trained.tokenizer, templates, trained.net.max_seq_len)
    prompts = [[template.replace("{}", query) for template in templates]]
    if num_cut(texts, prompts):
        print(f"the query is longer than the model's context of {texts.max_seq_len} tokens: it is cut off")
    wanted = class_weights(trained.net, texts, prompts)[0].float().cpu()
    files, features = image_features(trained, images, batch_size)
    best = (features @ wanted).topk(min(top_k, len(files)))
    ranked = [(files[i], score) for i, score in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    table = Table(title=Text(f"nearest to {query!r}"), title_justify="left")
    table.add_column("rank", justify="right")
    table.add_column("score", justify="right")
    table.add_column("image", overflow="fold")
    for rank, (file, score) in enumerate(ranked, 1):
        table.add_row(str(rank), f"{score:.4f}", Text(file))
    Console().print(table)
    pictures = [torch.from_numpy(fit(decode({"bytes": None, "path": file}, file), SHOWN)).movedim(-1, 0) for file, _ in ranked]
    titles = [f"{rank}. {score:.3f}\n{image_figures.short(Path(file).name)}" for rank, (file, score) in enumerate(ranked, 1)]
    sheet = Path(out or (Path(run_dir) / "figures" / "search.png" if run_dir else "search.png"))
    heading = image_figures.short(query, 60)
    figures.save(image_figures.picture_grid(torch.stack(pictures).float() / 255, titles, heading), sheet)
    print(f"contact sheet: {sheet}")


def main(argv: list[str]) -> int:
    sys.argv[0] = "python -m pipeline search"
    auto_cli(search, args=argv[1:], as_positional=False)
    return 0
