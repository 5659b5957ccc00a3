from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

import pytest

from spatialgears.errors import InputError
from spatialgears.report import write_page
from spatialgears.report.encode import as_script, payload


@pytest.fixture(scope="module")
def text(make_content, hostile, tmp_path_factory):
    path = write_page(tmp_path_factory.mktemp("report") / "new" / "report.html", make_content(word=hostile))
    return path.read_text(encoding="utf-8")


def test_page_holds_three_script_elements_whatever_the_words(text):
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, flags=re.DOTALL)
    kinds = [' type="application/json" id="gears-data"', ' type="text/plain" id="plotly"', ""]
    assert [attributes for attributes, _ in scripts] == kinds
    assert "window.hacked" not in scripts[1][1] + scripts[2][1]


def test_policy_names_exactly_the_scripts_that_may_run(text):
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text).group(1)
    runnable = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    for script in runnable:
        assert f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" in policy
    assert policy.count("sha256-") == len(runnable) == 1
    assert (
        policy.startswith("default-src 'none'")
        and "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]
    )


def test_page_points_nowhere_else(text):
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"""<[^>]*(?:src|href)\s*=\s*["']?(?:https?:)?//""", own)
    assert "@import" not in own and "url(" not in own


def test_same_content_gives_the_same_file(content, tmp_path):
    one, two = (write_page(tmp_path / name, content).read_bytes() for name in ("a.html", "b.html"))
    assert one == two


def test_hundred_thousand_cells_stay_small(make_content):
    content = make_content(100_000)
    assert len(as_script(payload(content, max_cells=200_000))) < 5_000_000


def test_missing_plotly_says_how_to_get_it(content, tmp_path, monkeypatch):
    monkeypatch.setattr("spatialgears.report.write.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"spatialgears\[report\]"):
        write_page(tmp_path / "r.html", content)
