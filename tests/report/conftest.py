"""Contents for reports, one of them hostile in every word."""

from __future__ import annotations

import zlib
from base64 import b64decode

import numpy as np
import pytest

from spatialgears.pipeline.pose import Pose
from spatialgears.report import ReportContent, ReportSlide, Section, SelfCheck

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>&amp;\"'"
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c02"
    "0000000b4944415478da6364f80f00010501012718e3660000000049454e44ae426082"
)


@pytest.fixture(scope="session")
def hostile() -> str:
    return HOSTILE


#: A quarter turn, mirrored, and a hundred units of the slide to one of the map.
POSE = Pose(np.array([[0.0, 100.0], [100.0, 0.0]]), np.array([500.0, 300.0]))


@pytest.fixture(scope="session")
def make_content():
    def make(n: int = 400, word: str = "plain") -> ReportContent:
        rng = np.random.default_rng(0)
        places = rng.normal(size=(n, 2))
        spots = rng.normal(size=(90, 2))
        types = np.array(["neuron", "glia", word], dtype=object)[np.arange(n) % 3]
        types[:4] = None
        return ReportContent(
            title=f"Title {word}",
            coords=places,
            names=[f"cell {i} {word}" for i in range(n)],
            verdict=f"Trust {word}.",
            level="good",
            numbers=[("Cells placed", f"{n}"), (f"Number of {word}", f"{word}")],
            warnings=[f"Beware of {word} {i}." for i in range(5)],
            inputs=[{"file": word, "cells": n, word: True}, {"file": "b.h5ad", "cells": 7, "depth": 2.5}],
            self_check=[
                SelfCheck(
                    f"Held out: {word}",
                    f"Words on {word}.",
                    model={"spearman": 0.9, "stress1": 0.3, "lrmse_10": 0.2, word: 1.0, "n": 50.0},
                    reference={"spearman": 0.8, "stress1": 0.2, "lrmse_10": 0.3, word: 2.0, "n": 50.0},
                )
            ],
            obs={"cell_type": types, word: rng.random(n), "flag": np.arange(n) % 2 == 0},
            genes={"Mbp": np.maximum(places[:, 0], 0), f"gene {word}": rng.random(n)},
            uncertainty=rng.random(n),
            domains=np.where(places[:, 0] > 0, "east", word),
            slides=[
                ReportSlide(
                    f"slide {word}",
                    POSE(spots),
                    {"Mbp": np.maximum(spots[:, 0], 0)},
                    {"cell_type": [word] * 90},
                    {"domain": [word] * 90},
                    POSE,
                ),
                ReportSlide("second", 3 * spots),
            ],
            history={f"stage {word}": {"step": [1, 2, 3], f"loss {word}": [3.0, 2.0, 1.0]}},
            sections=[
                Section(
                    f"Section {word}",
                    f"First {word}.\n\nSecond.",
                    PIXEL,
                    f"alt {word}",
                    [{"Type": f"{i} {word}", word: i} for i in range(n_rows)],
                )
                for n_rows in (2, 30)
            ],
            checks=[Section(f"Check {word}", f"Words of {word}.")],
            domains_note=f"Note on {word}.",
            command=f"gears run {word}",
            config=f'{{"seed": "{word}"}}',
            versions={"numpy": np.__version__, word: word},
            unit="RMS radius of the slide",
        )

    return make


@pytest.fixture(scope="session")
def content(make_content):
    return make_content()


@pytest.fixture(scope="session")
def unpacked():
    """What the page makes of a packed gene of n cells, (n,) uint8."""

    def unpack(text: str, n: int) -> np.ndarray:
        raw = np.frombuffer(zlib.decompress(b64decode(text[1:])), np.uint8)
        if text[0] == "d":
            return raw
        gaps = values = 0
        while gaps + values < len(raw):
            values += raw[gaps] < 255
            gaps += 1
        codes, at, after = np.zeros(n, np.uint8), -1, iter(raw[gaps:])
        for gap in raw[:gaps].tolist():
            at += gap
            if gap < 255:
                at += 1
                codes[at] = next(after)
        return codes

    return unpack
