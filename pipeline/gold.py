"""A gold score that nothing is trained on: the VADER lexicon's."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _analyzer() -> Any:
    try:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer
    except ImportError:
        raise ImportError('VADER is in the package vaderSentiment, which is missing: pip install -e ".[samples]"') from None
    return SentimentIntensityAnalyzer()


def vader(texts: Sequence[str]) -> list[float]:
    """How positive each text is, from -1 to 1.

    Source: Hutto and Gilbert 2014, the compound score of vaderSentiment 3.3.2.
    """
    return [_analyzer().polarity_scores(text)["compound"] for text in texts]
