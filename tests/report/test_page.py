from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import numpy as np

from spatialgears.report import ReportContent, page
from spatialgears.report.encode import payload


class Reader(HTMLParser):
    """Tags and text of a piece of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def parts(content: ReportContent) -> str:
    simple = (page.verdict, page.numbers, page.warnings, page.inputs, page.self_checks, page.reproduce)
    fields = payload(content, max_cells=1000)["fields"]
    return (
        "".join(part(content) for part in simple)
        + page.domains(content, fields)
        + page.extras(content.checks, "check")
        + page.extras(content.sections)
    )


def test_words_from_data_never_become_elements(make_content, hostile):
    tame, wild = Reader(parts(make_content())), Reader(parts(make_content(word=hostile)))
    assert [tag for tag, _ in tame.tags] == [tag for tag, _ in wild.tags]
    assert not any(name.startswith("on") for _, attributes in wild.tags for name in attributes)
    assert wild.text.count(hostile) >= 10


def test_better_score_is_marked_in_the_metrics_own_direction(content):
    rows = page.self_checks(content).split("<tr>")
    spearman = next(row for row in rows if "Spearman" in row)
    stress = next(row for row in rows if "Stress-1" in row)
    assert spearman.index("<b>0.900</b>") < spearman.index("0.800") and "<b>0.800" not in spearman
    assert "<b>0.200</b>" in stress and "<b>0.300" not in stress
    assert "More metrics" in page.self_checks(content) and ">n<" not in page.self_checks(content)


def test_missing_reference_and_nan_are_dashes(content):
    check = replace(content.self_check[0], model={"spearman": float("nan"), "trust": 0.5}, reference={})
    html = page.self_checks(replace(content, self_check=[check]))
    assert html.count("–") == 3 and "<b>" not in html


def test_domains_are_counted(content):
    html = page.domains(content, payload(content, max_cells=1000)["fields"])
    share = np.mean(np.asarray(content.domains) == "east")
    assert f"{share:.1%}" in html and "Commonest cell_type" in html


def test_a_domain_shows_its_commonest_types():
    labels = np.array(["common"] * 80 + ["rare"] * 20, dtype=object)
    domains = np.where(np.arange(100) < 70, "a", "b")
    made = ReportContent("t", np.zeros((100, 2)), obs={"type": labels}, domains=domains)
    html = page.domains(made, payload(made, max_cells=100)["fields"])
    assert "<td>common 100%</td>" in html and "<td>rare 67%, common 33%</td>" in html


def test_uncertainty_may_be_unknown(content):
    unknown = replace(content, uncertainty=np.full(400, np.nan))
    assert "–" in page.domains(unknown, payload(unknown, max_cells=1000)["fields"])


def test_radii_have_a_unit(content):
    fields = payload(content, max_cells=1000)["fields"]
    assert "Median 90% radius, in units of the RMS radius of the slide" in page.domains(content, fields)
    assert "Median 90% radius, spot spacings" in page.domains(replace(content, spacing=0.05), fields)


def test_three_warnings_are_shown_and_the_others_folded(content):
    shown, folded = page.warnings(content).split("<details>")
    assert shown.count("<li>") == 3 and "5 warnings" in shown
    assert "2 more" in folded and folded.count("<li>") == 2
    assert "<details>" not in page.warnings(replace(content, warnings=["one"]))
    assert "5 warnings" in page.verdict(content) and "warning" not in page.verdict(
        replace(content, warnings=[])
    )


def test_the_verdict_is_one_word_and_one_sentence(content):
    for level, word in page.LEVELS.items():
        assert f'class="level {level}">{word}</b> Trust plain.' in page.verdict(replace(content, level=level))


def test_inputs_with_different_columns_share_a_table(content):
    reader = Reader(page.inputs(content))
    assert [tag for tag, _ in reader.tags].count("th") == 4
    assert "2.5" in reader.words and "400" in reader.words


def test_nothing_given_is_said():
    empty = Reader(parts(ReportContent("t", np.zeros((3, 2))))).text
    for words in ("it was not checked", "No warnings", "No self-check", "Neither command"):
        assert words in empty


def test_sections_show_their_tables_and_long_ones_wait_to_be_opened(content):
    short, long = page.extras(content.sections).split("</section>")[:2]
    assert short.count("<tr>") == 3 and "<details>" not in short
    assert long.count("<tr>") == 31 and "Table of 30 rows" in long
