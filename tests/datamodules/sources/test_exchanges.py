"""Tables and hub sets of prompts with responses and of preferences: what is read, what is refused by name."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from datamodules.sources.exchange_hub import HubPreferences, HubResponses
from datamodules.sources.exchange_tables import PreferenceTable, ResponseTable
from datamodules.sources.exchanges import preference_in, response_in

PLAIN = {"prompt": "prompt", "response": "response", "context": "context"}
PAIR = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}


def messages(*contents: str) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in zip(("user", "assistant") * 3, contents, strict=False)]


def test_a_response_with_and_without_context() -> None:
    row = {"prompt": "Add", "response": "3", "context": " 1 and 2 "}
    assert response_in("w", row, PLAIN) == {"prompt": "Add\n\n1 and 2", "response": "3", "row": "w"}
    for context in ("", None):
        assert response_in("w", {**row, "context": context}, PLAIN)["prompt"] == "Add"


def test_messages_are_a_prompt_and_the_last_answer() -> None:
    found = response_in("w", {"m": messages("Hello", "Hi.", "Who?", " Me. ")}, {"messages": "m"})
    assert found == {"prompt": "user: Hello\nassistant: Hi.\nuser: Who?\nassistant:", "response": " Me.", "row": "w"}


@pytest.mark.parametrize(
    "row,columns,message",
    [
        ({"prompt": "a", "response": " "}, PLAIN, "w: column 'response' is empty"),
        ({"prompt": None, "response": "a"}, PLAIN, "w: column 'prompt' is empty"),
        ({"prompt": 3, "response": "a"}, PLAIN, "w: column 'prompt' holds 3 .int., where text"),
        ({"m": "hello"}, {"messages": "m"}, "column 'm' holds str, where a list of messages"),
        ({"m": messages("Hello")}, {"messages": "m"}, "the last message of column 'm' is of user"),
        ({"m": []}, {"messages": "m"}, "is of nobody"),
        ({"m": messages("Hello", " ")}, {"messages": "m"}, "the last message of column 'm' is empty"),
        ({"m": [{"role": "user"}]}, {"messages": "m"}, "message 1 of column 'm' has no role and content"),
    ],
)
def test_what_a_response_is_refused_for(row: dict[str, Any], columns: dict[str, str | None], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        response_in("w", row, columns)


def test_preferences_of_three_shapes() -> None:
    row = {"prompt": "p", "chosen": "a", "rejected": "b"}
    assert preference_in("w", row, PAIR) == {**row, "row": "w"}
    both = {"chosen": messages("Hello", "Good."), "rejected": messages("Hello", "Bad.")}
    listed = {"prompt": "user: Hello\nassistant:", "chosen": " Good.", "rejected": " Bad.", "row": "w"}
    assert preference_in("w", both, {**PAIR, "prompt": None}) == listed
    start = "\n\nHuman: Hi\n\nAssistant:"
    dialogue = {"chosen": f"{start} Hello there.", "rejected": f"{start} Hell no."}
    found = preference_in("w", dialogue, {**PAIR, "prompt": None})
    assert (found["prompt"], found["chosen"], found["rejected"]) == (start, " Hello there.", " Hell no.")


@pytest.mark.parametrize(
    "row,message",
    [
        ({"chosen": "x a", "rejected": "x b"}, "no common prompt that ends in"),
        ({"chosen": "\n\nAssistant: a", "rejected": "\n\nAssistant: "}, "the rejected response is empty"),
        ({"chosen": messages("Hello", "a"), "rejected": messages("Bye", "b")}, "answer different prompts"),
        ({"chosen": "", "rejected": "b"}, "column 'chosen' is empty"),
    ],
)
def test_what_a_preference_is_refused_for(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preference_in("w", row, {**PAIR, "prompt": None})


def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"p{i % 5}", "chosen": f"a{i}", "rejected": f"b{i}" if i else "a0"} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, rows)))
    splits = PreferenceTable(str(path), val_fraction=0.2).load()
    assert "train: 1 pairs of equal responses are left out" in capsys.readouterr().out
    prompts = {split: set(table["prompt"]) for split, table in splits.items()}
    assert len(prompts["validation"]) == 1 and not prompts["train"] & prompts["validation"]
    assert sum(map(len, splits.values())) == 19 and splits["train"][0]["row"].startswith(f"{path}, line ")
    table = tmp_path / "sft.csv"
    table.write_text("instruction,input,output\nAdd,1 and 2,3\nSay hello,,Hello\n")
    options = {"prompt": "instruction", "context": "input", "response": "output"}
    made = ResponseTable(str(table), validation=str(path.with_name("v.csv")), **options).paths
    assert set(made) == {"train", "validation"}
    found = ResponseTable(str(table), val_fraction=0.5, **options).load()
    answers = {row["prompt"]: row["response"] for split in found.values() for row in split}
    assert answers == {"Add\n\n1 and 2": "3", "Say hello": "Hello"}
    before = ResponseTable(str(table), **options).fingerprint()
    table.write_text("instruction,input,output\nAdd,1 and 2,4\n")
    assert ResponseTable(str(table), **options).fingerprint() != before
    with pytest.raises(ValueError, match="train has one prompt"):
        ResponseTable(str(table), **options).load()
    with pytest.raises(ValueError, match="has no column 'prompt': its columns are instruction, input, output"):
        ResponseTable(str(table)).load()


def test_hub_sets(tmp_path: Path) -> None:
    def save(name: str, split: str, rows: list[dict[str, Any]]) -> None:
        path = tmp_path / name / "data" / f"{split}-00000-of-00001.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_list(rows).to_parquet(path)

    save("alpaca", "train", [{"instruction": f"i{i}", "input": "", "output": f"o{i}", "text": "x"} for i in range(8)])
    source = HubResponses(str(tmp_path / "alpaca"), prompt="instruction", context="input", response="output", val_fraction=0.25)
    splits = source.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 6, "validation": 2}
    assert splits["train"][0]["response"] == splits["train"][0]["prompt"].replace("i", "o")
    pairs = [{"prompt": f"p{i}", "chosen": messages(f"p{i}", "yes"), "rejected": messages(f"p{i}", "no")} for i in range(4)]
    save("ultra", "train_prefs", pairs)
    save("ultra", "test_prefs", pairs[:2])
    source = HubPreferences(str(tmp_path / "ultra"), train="train_prefs", validation="test_prefs")
    splits = source.load()
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 4, "validation": 2}
    assert splits["train"][1]["chosen"] == " yes" and splits["train"][1]["row"] == "train, row 2"
    with pytest.raises(ValueError, match="has no split 'train' for train: its splits are"):
        HubPreferences(str(tmp_path / "ultra")).load()
