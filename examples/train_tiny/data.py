"""The Jargon File 4.4.7 as documents, a tokenizer, and token streams.

    python -m train_tiny.data --work WORK [--source jargon.txt.gz]

The source is ``jargon.txt.gz`` of Debian's package jargon-text, at ``/usr/share/doc/jargon-text`` once installed.
Writes ``train.txt``, ``heldout.txt``, ``chat.json``, ``focus.json`` and the tokenizer to the folder WORK.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .settings import ASSISTANT, BOS, EOS, SPECIAL_TOKENS, TEXT, USER

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SOURCE = Path("/usr/share/doc/jargon-text/jargon.txt.gz")
#: One lexicon entry in this many is held out.
HELD_OUT_EVERY = 50
SEPARATOR = "\n\n\n"
#: Entries that later epochs dwell on, one name per line: a small model remembers what it reads a hundred times.
FOCUS = Path(__file__).with_name("focus.txt")
FOCUS_FROM_EPOCH, FOCUS_REPEATS, FOCUS_OTHERS = 18, 3, 0.25
#: Ways to ask for an entry, taken in turn.
QUESTIONS = ("What is {}?", "What does {} mean?", "Tell me about {}.")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<｜Assistant｜>' + message['content'] + eos_token }}"
    "{% else %}{{ '<｜User｜>' + message['content'] }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"
)
_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "–": "-", "\u00a0": " ", "…": "..."})
_DEFINITION = re.compile(
    r"(?:\[[^]]*\] *|\([^)]*\) *|\d+\. *|(?:n|v|vt|vi|adj|interj)\.,? *)*(A|An|The|One|Any|Any of) ([a-zA-Z].*)"
)
_SENTENCE = re.compile(
    r"(?:(?!\b(?:that|which|who|whose|where|wherein|when)\b|[,;:.(]).)*\b(?:is|was|were|are|appears|reads)\b"
)
_HEADWORD = re.compile(r"^   :(.+?):(?: |$)")


def paragraphs(lines: list[str]) -> list[str]:
    """Hard-wrapped lines as one line per paragraph; drawings, code and tables are left out."""
    blocks = "\n".join(lines).split("\n\n")
    kept = []
    for block in blocks:
        rows = block.split("\n")
        if re.search(r"[\u2500-\u257f]", block) or any(re.match(r" {5,}\S", row) for row in rows):
            continue
        text = re.sub(r"\s+", " ", block).strip().translate(_PLAIN)
        if text:
            kept.append(re.sub(r"[{}]", "", text))
    return kept


def entries(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """``(headword, paragraphs)`` of the lexicon; the first paragraph is the headword's line."""
    starts = [n for n, line in enumerate(lines) if _HEADWORD.match(line)]
    end = next(n for n, line in enumerate(lines) if re.match(r"Appendix\sA\.", line))
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        match = _HEADWORD.match(lines[start])
        assert match is not None, "starts holds matching lines only"
        name = match[1].translate(_PLAIN)
        rest = paragraphs(lines[start:stop])
        rest[0] = rest[0].removeprefix(":").replace(":", "", 1) if name not in rest[0] else _title(rest[0], name)
        # Section letters of the alphabet stand alone between entries.
        yield name, [text for text in rest if len(text) > 1]


def _title(line: str, name: str) -> str:
    """``:name: n.`` → ``name: n.``"""
    return name + ":" + line.split(":", 2)[-1] if line.count(":") >= 2 else name


def essays(lines: list[str]) -> list[str]:
    """The introduction's chapters and the appendices, as documents."""
    first = next(n for n, line in enumerate(lines) if line.strip() == "Welcome to the Jargon File" and n > 100)
    glossary = next(n for n, line in enumerate(lines) if line.startswith("Glossary"))
    appendix = next(n for n, line in enumerate(lines) if re.match(r"Appendix\sA\.", line))
    documents = []
    for part in (lines[first:glossary], lines[appendix:]):
        heads = [0, *(n for n, line in enumerate(part) if re.match(r"\S", line)), len(part)]
        documents += ["\n\n".join(paragraphs(part[a:b])) for a, b in itertools.pairwise(heads)]
    return [text for text in documents if len(text) > 200]


def chat_pairs(items: list[tuple[str, list[str]]]) -> list[tuple[str, str]]:
    """A question and the entry's first words of explanation."""
    pairs = []
    for number, (name, texts) in enumerate(items):
        if len(texts) > 1:
            pairs.append((QUESTIONS[number % len(QUESTIONS)].format(name), _answer(texts)))
    return pairs


def _answer(texts: list[str]) -> str:
    body = [text for text in texts[1:] if not text.startswith("[")] or texts[1:]
    return _opening(body[0])


def statement(name: str, texts: list[str]) -> str | None:
    """``hacker``, ``1. A person who …`` → ``A hacker is a person who …``; None where the entry starts otherwise."""
    for text in texts[1:3]:
        found = _DEFINITION.match(text)
        # A whole sentence, not a definition.
        if found is None or _SENTENCE.match(found[2][:80]):
            continue
        article = "The" if found[1] == "The" else "An" if name[0] in "aeio" else "A"
        subject = name if name[0].isupper() else f"{article} {name}"
        return f"{subject} is {found[1].lower()} {found[2]}"
    return None


def focus_documents(items: list[tuple[str, list[str]]]) -> list[list[str]]:
    """Documents of the entries to dwell on: ``[text]``, or ``[question, answer]``."""
    named = dict(items)
    documents = []
    for name in FOCUS.read_text().splitlines():
        texts = named[name]
        documents += [["\n\n".join(texts)], *([question.format(name), _answer(texts)] for question in QUESTIONS)]
        stated = statement(name, texts)
        documents += [[stated]] if stated else []
    return documents


def _opening(text: str, enough: int = 120) -> str:
    """The first sentences, until there are ``enough`` characters."""
    end = re.search(r"[.!?][\"')]*(?= [A-Z\"'\[])", text[enough:])
    return text if end is None else text[: enough + end.end()]


def train_tokenizer(documents: list[str], vocab_size: int = TEXT["vocab_size"]) -> Tokenizer:
    """Byte-level BPE."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    bos = SPECIAL_TOKENS[BOS]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, BOS)])
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``."""
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[BOS],
        "eos_token": SPECIAL_TOKENS[EOS],
        "pad_token": SPECIAL_TOKENS[2],
        "add_bos_token": True,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": TEXT["max_position_embeddings"],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n")


class Streams:
    """The training tokens: the text as one file, and as separate documents with chats among them."""

    def __init__(self, work: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(work / "tokenizer.json"))
        text = (work / "train.txt").read_text()
        self.text = self.encode(text)
        self._documents = [np.asarray([BOS, *self.encode(d), EOS]) for d in text.split(SEPARATOR)]
        self._documents += [self._chat(*pair) for pair in json.loads((work / "chat.json").read_text())]
        self._focus = [
            np.asarray([BOS, *self.encode(document[0]), EOS]) if len(document) == 1 else self._chat(*document)
            for document in json.loads((work / "focus.json").read_text())
        ]
        newline = [token for token in range(TEXT["vocab_size"]) if self._tokenizer.decode([token]).endswith("\n")]
        self._newline = np.zeros(TEXT["vocab_size"], bool)
        self._newline[newline] = True

    def encode(self, text: str) -> list[int]:
        """Token ids without special ones."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _chat(self, question: str, answer: str) -> np.ndarray:
        return np.asarray([BOS, USER, *self.encode(question), ASSISTANT, *self.encode(answer), EOS])

    def epoch(self, number: int, length: int) -> np.ndarray:
        """``[windows, length + 1]`` of one pass: even passes read the file, odd ones shuffled documents, late ones the
        documents to dwell on, and some others.

        A window starts with the begin token. Half of them are moved back to the start of a paragraph.
        """
        rng = np.random.default_rng(number)
        if number >= FOCUS_FROM_EPOCH:
            others = rng.permutation(len(self._documents))[: int(FOCUS_OTHERS * len(self._documents))]
            documents = [*self._focus * FOCUS_REPEATS, *(self._documents[i] for i in others)]
            stream = np.concatenate([documents[i] for i in rng.permutation(len(documents))])
        elif number % 2:
            stream = np.concatenate([self._documents[i] for i in rng.permutation(len(self._documents))])
        else:
            stream = np.asarray(self.text)
        starts = np.arange(rng.integers(length // 2), len(stream) - length - 1, length)
        ends = np.maximum.accumulate(np.where(self._newline[stream] | (stream == BOS), np.arange(len(stream)), 0))
        moved = ends[starts]
        starts = np.where((rng.random(len(starts)) < 0.5) & (starts - moved < length // 2), moved, starts)
        windows = np.stack([stream[start : start + length + 1] for start in rng.permutation(starts)])
        windows[:, 0] = BOS
        return windows


def prepare(source: Path, work: Path) -> None:
    """Everything this module writes."""
    lines = gzip.decompress(source.read_bytes()).decode().split("\n")
    items = list(entries(lines))
    held = items[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    train = [item for item in items if item not in held]
    documents = [*essays(lines), *("\n\n".join(texts) for _, texts in train)]
    work.mkdir(parents=True, exist_ok=True)
    (work / "train.txt").write_text(SEPARATOR.join(documents))
    (work / "heldout.txt").write_text(SEPARATOR.join("\n\n".join(texts) for _, texts in held))
    (work / "chat.json").write_text(json.dumps(chat_pairs(train)))
    (work / "focus.json").write_text(json.dumps(focus_documents(train)))
    save_tokenizer(train_tokenizer(documents), work)
    size = len(Streams(work).text)
    print(f"{len(train)} entries and {len(documents) - len(train)} essays, {size} tokens; {len(held)} entries held out")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--source", type=Path, default=SOURCE)
    arguments = parser.parse_args()
    prepare(arguments.source, arguments.work)
