"""Pre-training data from text files: what is refused, what is left out, the cache, and how much of a batch is padding."""

import itertools
import pickle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from datamodules.batch import IGNORE_INDEX
from datamodules.sentence_pairs import SentencePairDataModule
from datamodules.sources.files import TextFiles
from datamodules.sources.stdlib import StdlibDocs
from datamodules.text_split import split_sentences
from datamodules.tokenizers.bpe import BPETokenizer
from datamodules.tokenizers.bytes import ByteTokenizer
from datamodules.tokenizers.chars import CharTokenizer

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
TEXTS = [
    "One came. Two went away!\n\nThree \t stayed,   as it was.\n \n\n",  # blank lines, and white space within
    "All alone.",
    "\n\n\nFirst of many. Second of them. Third (and last).\n",
    "Zwölf Boxkämpfer. Ein Satz – noch einer. 東京。そして京都。",
]
SENTENCES = [[" " + " ".join(s.split()) for s in split_sentences(text)] for text in TEXTS]


@pytest.fixture
def make(tmp_path):
    """Makes a datamodule on texts, a file each; validation has the same in other files."""

    def make(texts=TEXTS, tokenizer=None, batch_size=2, val=TEXTS, **options):
        folders = {"train": texts, "val": val}
        for name, contents in folders.items():
            (tmp_path / name).mkdir(exist_ok=True)
            for old in (tmp_path / name).iterdir():
                old.unlink()
            for i, text in enumerate(contents):
                (tmp_path / name / f"{i:03}.txt").write_text(text)
        source = TextFiles(str(tmp_path / "train"), val_paths=str(tmp_path / "val"))
        options = {"max_seq_len": 64, "cache_dir": str(tmp_path / "cache"), **options}
        data = SentencePairDataModule(source, tokenizer or ByteTokenizer(SPECIAL), batch_size, **options)
        data.trainer = SimpleNamespace(max_steps=5, global_rank=0, world_size=1)
        return data

    return make


def everything(data, epoch=0, split="train"):
    indices = np.arange(len(data.dataset(split)))
    return data.dataset(split)[epoch, indices, indices]


def texts_of(data, batch):
    """[[text of A, text of B]], each as it was before tokens were hidden."""
    labels = batch["labels"]
    sep = data.tokenizer.sep_id
    rows = torch.where(labels == IGNORE_INDEX, batch["input_ids"], labels)[:, 1:].tolist()
    kept = [list(itertools.takewhile(lambda i: i != data.tokenizer.pad_id, row)) for row in rows]
    parts = [[list(part) for is_sep, part in itertools.groupby(row, lambda i: i == sep) if not is_sep] for row in kept]
    return [[data.tokenizer.decode(part) for part in row] for row in parts]


# ---- documents -------------------------------------------------------------------------------------------------------


def test_documents_are_files_and_blank_lines_are_nothing(make):
    data = make()
    assert SENTENCES[0] == [" One came.", " Two went away!", " Three stayed, as it was."] and SENTENCES[1] == [" All alone."]
    dataset = data.dataset("train")
    ids = dataset.file.ids.tolist()
    stored = [data.tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise(dataset.starts.tolist())]
    assert stored == [s for document in SENTENCES for s in document]
    assert dataset.documents.tolist() == np.cumsum([0, *map(len, SENTENCES)]).tolist()


def test_documents_without_a_sentence_are_left_out(make, monkeypatch):
    rows = [{"text": text} for text in ("", *TEXTS, " \n")]  # as a cut for validation may leave them
    monkeypatch.setattr(TextFiles, "load", lambda source: {"train": rows, "validation": rows})
    assert np.diff(make().dataset("train").documents).tolist() == list(map(len, SENTENCES))


def test_documents_of_one_sentence_give_no_pair_but_may_be_b(make):
    data = make()
    firsts, seconds = set(), set()
    for epoch in range(60):
        for a, b in texts_of(data, everything(data, epoch)):
            firsts.add(a)
            seconds.add(b)
    assert len(data.dataset("train")) >= 3
    assert " All alone." in seconds and not any("alone" in a for a in firsts)
    assert {" One came.", " One came. Two went away!", " First of many."} <= firsts


def test_without_nsp_documents_of_one_sentence_count(make):
    data = make(nsp=False)
    batch = everything(data)
    found = [text for row in texts_of(data, batch) for text in row]
    assert " All alone." in found and "next_sentence" not in batch
    assert {len(row) for row in texts_of(data, batch)} == {1}


def test_long_sentences_are_cut_and_counted(make, capsys):
    make([*TEXTS, "word " * 40 + "end. And more."]).prepare()
    lines = [line for line in capsys.readouterr().out.splitlines() if "cut into pieces" in line]
    assert lines == ["train: 1 sentences longer than half of max_seq_len 64 are cut into pieces"]


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "validation"])
def test_one_document_is_refused_for_next_sentences_alone(make, split):
    options = {"texts" if split == "train" else "val": [TEXTS[2]]}
    message = rf"text of .*val: the {split} split has 1 document\(s\), and next-sentence prediction needs sentences of other"
    with pytest.raises(ValueError, match=message + r" documents: give more, or set data\.init_args\.nsp to false$"):
        make(**options).prepare()
    data = make(**options, nsp=False)
    assert len(data.dataset(split)) == 1 and everything(data, split=split)["num_tokens"] > 10


def test_documents_of_one_sentence_only_are_refused(make):
    with pytest.raises(ValueError, match="the train split has no document of two sentences$"):
        make(["All alone.", "Me too."]).prepare()
    make(["All alone.", "Me too."], nsp=False).prepare()


@pytest.mark.parametrize("missing", ["[PAD]", "[CLS]", "[SEP]", "[MASK]"])
def test_a_tokenizer_without_a_special_token_is_refused(make, missing):
    names = [name for name in SPECIAL if name != missing]
    message = rf"lacks \[{missing[1:-1]}\]: give it the special_tokens \[\[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]\]$"
    for tokenizer in (ByteTokenizer(names), BPETokenizer(300, names), CharTokenizer(["[UNK]", *names])):
        with pytest.raises(ValueError, match=message):
            make(tokenizer=tokenizer).prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_fraction": 0.0}, r"mask_fraction is 0\.0; it must lie between 0 and 1"),
        ({"mask_fraction": 1.0}, r"mask_fraction is 1\.0; it must lie between 0 and 1"),
        ({"max_seq_len": 7}, "max_seq_len is 7; it must be at least 8"),
        ({"init_from": "none.ckpt"}, "init_from: none.ckpt is not a readable checkpoint"),
    ],
)
def test_a_wrong_option_is_refused(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options).prepare()


def test_a_missing_split_names_those_there_are(make):
    with pytest.raises(ValueError, match=r"has no test split; it has train, validation"):
        make().dataset("test")


# ---- tokenizer and cache ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_word", [False, True])
@pytest.mark.parametrize(
    "tokenizer", [ByteTokenizer(SPECIAL), CharTokenizer([*SPECIAL, "[UNK]"]), BPETokenizer(280, SPECIAL)], ids=lambda t: t.kind
)
def test_ids_are_in_the_vocabulary(make, tokenizer, whole_word):
    data = make(tokenizer=tokenizer, whole_word=whole_word)
    assert data.tokenizer.decode(data.dataset("train").file.ids) == "".join(sum(SENTENCES, []))
    special = {i for i, size in enumerate(data.tokenizer.token_bytes()) if not size}
    for split in ("train", "validation"):
        for epoch in range(20):
            batch = everything(data, epoch, split)
            labels = batch["labels"][batch["labels"] != IGNORE_INDEX]
            hidden = batch["input_ids"].flatten()[batch["predicted"]]
            assert special.intersection(hidden.tolist()) <= {data.tokenizer.mask_id}
            assert batch["input_ids"].min() >= 0 and batch["input_ids"].max() < data.vocab_size
            assert labels.min() >= len(SPECIAL) and labels.max() < data.vocab_size
            assert batch["input_ids"].shape[1] <= data.max_seq_len


def test_a_warm_cache_gives_the_same_ids(make, monkeypatch):
    first = make(tokenizer=BPETokenizer(300, SPECIAL))
    cold = everything(first)
    second = make(tokenizer=BPETokenizer(300, SPECIAL))
    monkeypatch.setattr(TextFiles, "load", None)  # a warm start reads no text
    warm = everything(second)
    assert all(torch.equal(torch.as_tensor(cold[name]), torch.as_tensor(warm[name])) for name in cold)
    assert first.assets() == second.assets() and first.tokenizer.is_trained


def test_another_text_is_another_cache(make):
    first = everything(make())
    second = everything(make([text.replace("e", "x") for text in TEXTS]))
    assert not torch.equal(first["input_ids"], second["input_ids"])


def test_init_from_takes_the_checkpoints_tokenizer(make, tmp_path):
    trained = BPETokenizer(300, SPECIAL)
    trained.train(["some other text, some other words"] * 3)
    torch.save({"assets": {"tokenizer": trained.to_json()}}, tmp_path / "a.ckpt")
    data = make(init_from=str(tmp_path / "a.ckpt"))
    assert data.assets() == {"tokenizer": trained.to_json()} and data.vocab_size == trained.vocab_size
    torch.save({"assets": {}}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match=r"init_from: .*b\.ckpt carries no tokenizer"):
        make(init_from=str(tmp_path / "b.ckpt")).prepare()


# ---- batches ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents():
    """200 documents of 2 to 40 sentences."""
    topics = StdlibDocs().load()["train"]["text"]
    sentences = itertools.cycle([s for text in topics for s in split_sentences(text)])
    sizes = np.random.default_rng(0).integers(2, 41, 200)
    return ["\n".join(itertools.islice(sentences, int(n))) for n in sizes]


@pytest.mark.parametrize("nsp", [True, False])
def test_padding_is_under_a_tenth_for_documents_of_uneven_length(make, documents, nsp):
    data = make(documents, BPETokenizer(1000, SPECIAL), 16, documents[:10], max_seq_len=512, nsp=nsp)
    data.trainer.max_steps = 2 * data.steps_per_epoch
    slots = tokens = 0
    seen = []
    for batch in data.train_dataloader():
        slots, tokens = slots + batch["input_ids"].numel(), tokens + batch["num_tokens"]
        assert len(batch["index"]) == 16 and batch["num_tokens"] == batch["attention_mask"].sum()
        seen += batch["index"].tolist()
    assert len(seen) == 2 * data.steps_per_epoch * 16 and len(set(seen)) > len(data.dataset("train")) - 16
    assert 1 - data.dataset("train").lengths(0).mean() / 512 > 0.15  # at full width
    assert 1 - tokens / slots < 0.1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_p03_loaders_give_the_same_with_workers_and_pickle_small(make, documents, num_workers):
    data = make(documents[:40], None, 8, documents[:10], micro_batch_size=4, num_workers=num_workers)
    batches = list(data.train_dataloader())
    expected = list(make(documents[:40], None, 8, documents[:10], micro_batch_size=4).train_dataloader())
    assert len(batches) == len(expected) == 10
    for one, other in zip(batches, expected, strict=True):
        assert all(torch.equal(torch.as_tensor(one[name]), torch.as_tensor(other[name])) for name in other)
    loader, size = data.val_dataloader(), len(pickle.dumps(data.dataset("validation").file))
    assert isinstance(loader, DataLoader) and len(pickle.dumps((loader.dataset, loader.sampler))) < 1 << 20
    assert sorted(i for batch in loader for i in batch["index"].tolist()) == list(range(len(loader.dataset)))
    assert everything(data, split="validation") and len(pickle.dumps(loader.dataset.file)) == size  # the file is open


@pytest.mark.parametrize("whole_word", [False, True])
def test_o03_an_unknown_character_is_never_to_be_predicted(make, whole_word):
    texts = ["abc abd. Abe bca. " * 4, "Bac cab. Dab bad. " * 4]
    unknown = ["abc xyz. Zyx yxz. " * 4, "Bac zzz. Yyy bad. " * 4]
    data = make(texts, CharTokenizer([*SPECIAL, "[UNK]"]), val=unknown, whole_word=whole_word, mask_fraction=0.5)
    for epoch in range(20):
        batch = everything(data, epoch, "validation")
        assert (batch["input_ids"] == data.tokenizer.unk_id).any()
        assert not (batch["labels"] == data.tokenizer.unk_id).any()
        assert batch["predicted_per_pair"] * len(batch["index"]) == pytest.approx(len(batch["predicted"]))


def test_text_without_a_space_has_one_in_the_vocabulary(make):
    data = make(["東京。京都。大阪。", "東京。大阪。京都。"], CharTokenizer(SPECIAL), val=["京都。大阪。", "大阪。東京。"])
    assert data.tokenizer.decode(data.tokenizer.encode(" 東京")) == " 東京"
