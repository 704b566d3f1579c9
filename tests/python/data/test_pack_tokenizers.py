"""aegis.data.pack with the tokenizers of other projects."""

import base64

import pytest
from aegis.data.pack import pack
from aegis.data.text_tokenizers import TokenizerFile
from packed import contents, write_lines


def hugging_face(path):
    tokenizers = pytest.importorskip("tokenizers", exc_type=ImportError, reason="tokenizers cannot be imported")
    words = {"a": 0, "b": 1, "[UNK]": 2, "</s>": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)  # what a file may bring along from training
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(path))
    return TokenizerFile(str(path))


@pytest.mark.parametrize("kind", ["text", "jsonl"])
def test_tokenizer_of_hugging_face(tmp_path, kind):
    tokenizer = hugging_face(tmp_path / "tokenizer.json")
    texts = ["a b a b", "", "b c"]
    if kind == "text":
        paths = [tmp_path / f"{number}.txt" for number in range(3)]
        for path, text in zip(paths, texts, strict=True):
            path.write_text(text)
    else:
        paths = write_lines(tmp_path / "a.jsonl", texts)
    packed = pack(paths, tmp_path / "out.aegis", kind=kind, tokenizer=tokenizer, bos=1, eos="</s>")
    assert contents(tmp_path / "out.aegis") == [[1, 0, 1, 0, 1, 7], [1, 7], [1, 1, 2, 7]]
    assert (packed.file.vocab_size, packed.file.dtype) == (8, "uint8")
    assert packed.file.tokenizer == tokenizer.sha256().hex()
    with pytest.raises(ValueError, match=r"eos: the tokenizer has no token 'x'"):
        pack(paths, tmp_path / "x.aegis", kind=kind, tokenizer=tokenizer, eos="x")


def test_tokenizer_of_tiktoken(tmp_path):
    pytest.importorskip("tiktoken", exc_type=ImportError, reason="tiktoken cannot be imported")
    ranks = [bytes([byte]) for byte in range(256)] + [b"ab"]
    lines = [base64.b64encode(token).decode() + f" {rank}" for rank, token in enumerate(ranks)]
    (tmp_path / "a.tiktoken").write_text("\n".join(lines))
    (tmp_path / "a.txt").write_text("abc <|endoftext|>")
    tokenizer = TokenizerFile(str(tmp_path / "a.tiktoken"), r"\w+|\W+")
    packed = pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=tokenizer, eos="ab")
    assert contents(tmp_path / "out.aegis") == [[256, *b"c <|endoftext|>", 256]]
    assert packed.file.vocab_size == 257
    with pytest.raises(ValueError, match="needs the pattern"):
        pack(tmp_path / "a.txt", tmp_path / "x.aegis", tokenizer=TokenizerFile(tokenizer.path))


def test_tokenizer_of_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip(
        "sentencepiece", exc_type=ImportError, reason="sentencepiece cannot be imported"
    )
    (tmp_path / "a.txt").write_text("one two three two one\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "a.txt"), model_prefix=str(tmp_path / "m"), vocab_size=12, minloglevel=2
    )
    tokenizer = TokenizerFile(str(tmp_path / "m.model"))
    pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=tokenizer, eos="</s>")
    expected = sentencepiece.SentencePieceProcessor(model_file=tokenizer.path).encode((tmp_path / "a.txt").read_text())
    assert contents(tmp_path / "out.aegis") == [[*expected, 2]]


@pytest.mark.parametrize("data", [b"{}", b"\x00\x01", b"", b"YQ== 0\nYQ== x"])
def test_file_that_is_no_tokenizer_is_refused(tmp_path, data):
    for package in ("tokenizers", "sentencepiece"):
        pytest.importorskip(package, exc_type=ImportError, reason=f"{package} cannot be imported")
    (tmp_path / "t").write_bytes(data)
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"/t: "):
        pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=TokenizerFile(str(tmp_path / "t")))


def test_text_that_is_not_utf8_is_named(tmp_path):
    tokenizer = hugging_face(tmp_path / "tokenizer.json")
    (tmp_path / "a.txt").write_bytes(b"a b\xff")
    with pytest.raises(ValueError, match=r"a\.txt: expected UTF-8, got 0xff at byte 3"):
        pack(tmp_path / "a.txt", tmp_path / "out.aegis", tokenizer=tokenizer)
    pack(tmp_path / "a.txt", tmp_path / "out.aegis")  # bytes are bytes
    assert contents(tmp_path / "out.aegis") == [list(b"a b\xff")]
