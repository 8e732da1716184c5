"""How a policy's tokens are drawn: numbers that hold wherever its log-probabilities are taken."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """
    Args:
        max_new_tokens: of a response, its end token included.
        temperature: divides the logits.
        top_k: keep the k likeliest tokens.
        top_p: keep the fewest likeliest tokens that reach this probability together.
    """

    max_new_tokens: int = 32
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def check(self) -> None:  # not at construction: the parser of configs would bury the message
        """Raises ValueError where a number is out of its range."""
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens {self.max_new_tokens} is below 1")
        if self.temperature <= 0:
            raise ValueError(f"temperature {self.temperature} is not above 0: a policy that is trained draws its tokens")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k {self.top_k} is below 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p} is not in (0, 1]")
