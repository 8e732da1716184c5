import csv
import json

import pyarrow
import pyarrow.parquet
import pytest

from datamodules.sources.tables import SentenceTable, read_rows

TEXTS = [f"it 's \"one {i} of many , not all" for i in range(40)]  # a single quote mark, as in GLUE's files
LABELS = ["good" if i % 3 else "bad" for i in range(40)]
ROWS = [{"id": i, "text": text, "label": label} for i, (text, label) in enumerate(zip(TEXTS, LABELS, strict=True))]


def write(path, rows, line_end="\n", bom=b""):
    """A table in the format of its suffix, as pandas, GLUE, `jq -c` and pyarrow write it."""
    path.parent.mkdir(exist_ok=True)
    names = list(rows[0])
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return str(path)
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            table = csv.DictWriter(file, names, lineterminator=line_end)
            table.writeheader()
            table.writerows(rows)
        elif path.suffix == ".tsv":
            lines = [names, *([str(row[name]) for name in names] for row in rows)]
            file.write("".join("\t".join(line) + line_end for line in lines))
        else:
            file.write("".join(json.dumps(row, ensure_ascii=False) + line_end for row in rows))
    path.write_bytes(bom + path.read_bytes())
    return str(path)


def raw(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def two(*labels, column="label"):
    """Rows with texts of their own and these labels."""
    return [{"text": f"a text {i}", column: label} for i, label in enumerate(labels)]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".CSV"])
@pytest.mark.parametrize(("line_end", "bom"), [("\n", b""), ("\r\n", b"\xef\xbb\xbf")])
def test_every_format_gives_the_same_rows(tmp_path, suffix, line_end, bom):
    path = tmp_path / "reviews"
    write(path.with_suffix(suffix.lower()), ROWS, line_end, bom)
    path.with_suffix(suffix.lower()).rename(path.with_suffix(suffix))
    rows = SentenceTable(validation=str(path.with_suffix(suffix))).load()["validation"]
    assert rows["text"][:] == TEXTS and rows["label"][:] == LABELS
    unit = "line" if "j" in suffix else "row"
    assert rows["row"][16] == f"{path.with_suffix(suffix)}, {unit} 17"
    kinds = {name: feature.dtype for name, feature in rows.features.items()}
    assert kinds == {"text": "large_string", "label": "string", "row": "string"}


def test_pairs(tmp_path):
    rows = [{"a": t, "b": t[::-1], "judgment": label} for t, label in zip(TEXTS, LABELS, strict=True)]
    loaded = SentenceTable(write(tmp_path / "p.tsv", rows), text="a", text_pair="b", label="judgment").load()["train"]
    assert loaded.column_names == ["text", "text_pair", "label", "row"]
    assert loaded["text_pair"][:] == [t[::-1] for t in loaded["text"]]
    assert loaded.features["text_pair"].dtype == "large_string"


def test_quotes_of_a_csv_are_its_own_and_those_of_a_tsv_are_text(tmp_path):
    cells = 'one, "two"\nthree'
    name = write(tmp_path / "q.csv", [{"text": cells, "label": "x"}], "\r\n")
    assert SentenceTable(test=name).load()["test"]["text"][:] == [cells]
    name = raw(tmp_path / "q.tsv", 'text\tlabel\n"quoted"\tx\n"open\tx\nclosed"\tx\n')
    assert SentenceTable(test=name).load()["test"]["text"][:] == ['"quoted"', '"open', 'closed"']


def test_line_separators_inside_a_text_part_no_rows(tmp_path):
    text = "one\u2028two\x85three\x0cfour"
    for suffix in (".csv", ".tsv", ".jsonl"):
        name = write(tmp_path / f"t{suffix}", [{"text": text, "label": "x"}])
        assert SentenceTable(test=name).load()["test"]["text"][:] == [text]


def test_a_long_document_in_a_csv(tmp_path):
    text = "word " * 100_000
    assert SentenceTable(test=write(tmp_path / "t.csv", [{"text": text, "label": "x"}])).load()["test"]["text"][:] == [text]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_blank_lines_at_the_end(tmp_path, suffix):
    path = tmp_path / f"t{suffix}"
    write(path, two("x", "y"))
    path.write_bytes(path.read_bytes() + b"\n  \r\n\n")
    assert SentenceTable(test=str(path)).load()["test"].num_rows == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "text,label\na,x\nb,y,z\n", r"t\.csv, row 2 has 3 cells, but the first line names 2: a cell that .* quoted"),
        ("t.csv", "text,label\na,x\n\nb,y\n", r"t\.csv, row 2 has 0 cells"),
        ("t.csv", 'text,label\na,x\n"b,y\nc,z\n', r"t\.csv, row 2: unexpected end of data \(a quote inside .* twice\)"),
        ("t.csv", 'text,label\na,x\n"b "c" d",y\n', r"t\.csv, row 2: .* expected after"),
        ("t.csv", '"text,label\na,x\n', r"t\.csv, first line: unexpected end of data"),
        ("t.csv", "text,label,text\na,x,b\n", r"t\.csv has two columns 'text'"),
        ("t.csv", "text,label\n", r"t\.csv has no rows"),
        ("t.csv", "", r"t\.csv is empty"),
        ("t.tsv", " \n\r\n", r"t\.tsv is empty"),
        (
            "t.tsv",
            "text\tlabel\na\tx\nb\n",
            r"t\.tsv, row 2 has 1 cells, but the first line names 2: a cell of a \.tsv .* no tab",
        ),
        ("t.tsv", "text\tlabel\na\tx\nb\ty\tz\n", r"t\.tsv, row 2 has 3 cells"),
        ("t.tsv", "1\tfirst text\n0\tsecond\n", r"t\.tsv has no column 'text': its columns are 1, first text"),
        ("t.jsonl", '{"text": "a", "label": 1}\n{"text": "b"', r"t\.jsonl, line 2 is not JSON: .*one object a line"),
        ("t.jsonl", '{"text": "a", "label": 1}\n\n{"text": "b"}', r"t\.jsonl, line 2 is not JSON"),
        ("t.json", '[{"text": "a", "label": 1}]', r"t\.json, line 1 holds list, where an object was expected, one a line"),
        ("t.jsonl", '{"text": "a \\ud83d", "label": 1}', r"t\.jsonl, line 1 holds half of a surrogate pair"),
        ("t.jsonl", '{"text": "a \\uDE00", "label": 1}', r"t\.jsonl, line 1 holds half of a surrogate pair"),
        ("t.jsonl", "[" * 100_000, r"t\.jsonl, line 1 is not JSON"),
        ("t.parquet", b"PAR1 no Parquet", r"t\.parquet is not readable as Parquet, from its start: "),
        ("t.parquet", b"", r"t\.parquet is not readable as Parquet, from its start: "),
        ("t.tsv", "text\tlabel\ncaf\u00e9\tx\n".encode("latin-1"), r"t\.tsv is not UTF-8 at byte 14 \(0xe9\)"),
        ("t.jsonl", "text".encode("utf-16"), r"t\.jsonl is not UTF-8 at byte 0 \(0xff\)"),
        (
            "t.xlsx",
            "text",
            r"t\.xlsx has the suffix '\.xlsx': a table ends in \.csv, \.tsv, \.jsonl, \.ndjson, \.json, \.parquet",
        ),
        ("t", "text", r"t has the suffix ''"),
        ("t.csv", "text,label\n \t,x\n", r"t\.csv, row 1: column 'text' is empty: text was expected"),
        ("t.jsonl", '{"text": "a", "label": 1}\n{"label": 1}', r"t\.jsonl, line 2: column 'text' is missing: text was"),
        ("t.jsonl", '{"text": 5, "label": 1}', r"t\.jsonl, line 1: column 'text' holds 5 \(int\), where text was expected"),
        ("t.jsonl", '{"text": "a", "label": [1]}', r"t\.jsonl, line 1 has the label \[1\]: a name or a whole number"),
        ("t.jsonl", '{"text": "a", "label": 0.5}', r"t\.jsonl, line 1 has the label 0\.5: a name or a whole number"),
    ],
)
def test_a_broken_file_is_named_with_its_row(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message) as error:
        SentenceTable(test=raw(tmp_path / name, content)).load()
    assert str(error.value).startswith(str(tmp_path / name)) and "\n" not in str(error.value)


def test_a_torn_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    write(path, [{"text": "x" * 1000 + str(i), "label": "x"} for i in range(1000)])
    content = bytearray(path.read_bytes())
    content[200:400] = bytes(200)
    with pytest.raises(ValueError, match=r"t\.parquet is not readable as Parquet"):
        SentenceTable(test=raw(path, bytes(content))).load()


def test_an_escaped_pair_of_surrogates_is_one_character(tmp_path):
    name = raw(tmp_path / "t.jsonl", '{"text": "\\uD83D\\uDE00", "label": 1}')
    assert SentenceTable(test=name).load()["test"]["text"][:] == ["\U0001f600"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "texts"}, r"no column 'texts': its columns are text, label; did you mean 'text'\?"),
        ({"text_pair": "other"}, r"no column 'other': its columns are text, label$"),
        ({"label": "labels"}, r"no column 'labels': its columns are text, label; did you mean 'label'\?"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_a_missing_column_lists_the_columns(tmp_path, options, message, suffix):
    with pytest.raises(ValueError, match=rf"t\{suffix} has {message}"):
        SentenceTable(write(tmp_path / f"t{suffix}", two("x", "y")), **options).load()


def test_a_long_header_is_listed_in_part(tmp_path):
    with pytest.raises(ValueError, match=r"its columns are x{40}, 0, 1") as error:
        SentenceTable(raw(tmp_path / "t.csv", ",".join(["x" * 500, *map(str, range(100))]) + "\n" + "," * 100)).load()
    assert len(str(error.value)) < 400 and str(error.value).endswith(", ...")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_a_missing_label_in_every_format(tmp_path, suffix):
    rows = two("x", "" if suffix != ".parquet" else None, "y")
    with pytest.raises(ValueError, match=rf"t\{suffix}, row 2 has no label"):
        SentenceTable(write(tmp_path / f"t{suffix}", rows)).load()


def test_read_rows_keeps_all_columns_and_types(tmp_path):
    rows = list(read_rows(tmp_path / write(tmp_path / "t.jsonl", ROWS)))
    assert rows == [(f"{tmp_path / 't.jsonl'}, line {i}", row) for i, row in enumerate(ROWS, 1)]
    with pytest.raises(FileNotFoundError, match=r"none\.parquet does not exist"):
        list(read_rows(tmp_path / "none.parquet"))
