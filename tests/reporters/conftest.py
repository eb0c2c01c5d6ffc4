from __future__ import annotations

import pytest

from tracelens.analysis.page import Page

from . import page_lake


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page of a small lake, with a claim."""
    return page_lake.make(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="session")
def written(shown: Page) -> str:
    """The same page as HTML."""
    from tracelens.reporters.html.page import html

    return html(shown)
