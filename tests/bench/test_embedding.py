from __future__ import annotations

import pytest

from spatialgears.bench import embedding, protocols
from spatialgears.bench.figures import before_after
from spatialgears.bench.presets import configured
from spatialgears.bench.request import Request
from spatialgears.config import Config
from spatialgears.datasets import simulate_tissue
from spatialgears.errors import InputError


def test_one_row_per_set_and_variant_with_means_over_seeds(monkeypatch, tmp_path):
    tissue = simulate_tissue(n_cells=150, n_genes=60, spots=80, seed=0)
    task = protocols.of_tissue("embedding", "small", tissue)
    variants = {
        name: Config().with_values([f"expression.max_steps={steps}"]) for name, steps in (("a", 5), ("b", 1))
    }
    options = {"seeds": 2, "folder": tmp_path, "pictures": {}}
    found = list(embedding.rows(lambda seed: [task], variants, **options))
    assert [(row["set"], row["variant"]) for row in found] == [("small", "a"), ("small", "b")]
    assert all(0.2 < row["spearman"] <= 1 and 0.2 < row["reference"] <= 1 for row in found)
    assert found[0]["entropy"] > found[0]["entropy_before"]
    monkeypatch.setattr(embedding, "measure", lambda *_, **__: pytest.fail("measured again"))
    assert list(embedding.rows(lambda seed: [task], variants, **options)) == found
    assert [ax.get_title() for ax in before_after(options["pictures"]).axes] == ["small, a", "small, b"]


def asked(monkeypatch, *methods: str, values: tuple[str, ...] = ()) -> dict[str, Config]:
    """The variants that the experiment would measure."""
    seen = {}
    keys = ("spearman", "reference", "entropy", "entropy_before", "ilisi", "ilisi_before")

    def rows(tasks, variants, **_):
        seen.update(variants)
        return [{"set": "s", "variant": name, **dict.fromkeys(keys, 0.5)} for name in variants]

    monkeypatch.setattr(embedding, "rows", rows)
    embedding.run(Request(simulated=True, method=list(methods), values=list(values)), print)
    return seen


def test_what_was_asked_for_is_measured(monkeypatch):
    assert asked(monkeypatch) == {"default": Config.preset("default")}
    assert asked(monkeypatch, "paper") == {"paper": Config.preset("paper")}
    changed = asked(monkeypatch, "quick", values=("expression.mmd=3",))
    assert changed == {"quick": configured("quick", ["expression.mmd=3"])}
    terms = asked(monkeypatch, "ablations", values=("expression.mmd=3",))
    assert list(terms) == list(embedding.ABLATIONS)
    assert terms["with CORAL"].expression.coral == 1 and terms["with CORAL"].expression.mmd == 3
    with pytest.raises(InputError, match="cannot run stem"):
        asked(monkeypatch, "stem")
