"""What is refused, in the library's own words."""

import pytest

from tessera.base.errors import TesseraError


def refused(message, call, /, *arguments, **keywords):
    """`call(*arguments, **keywords)` raises TesseraError with a text that matches `message`."""
    with pytest.raises(TesseraError, match=message):
        call(*arguments, **keywords)


def refused_in_a_line(text, call, /, *arguments, **keywords):
    """`call(*arguments, **keywords)` raises TesseraError, whose one line has `text` in it as it is."""
    with pytest.raises(TesseraError) as caught:
        call(*arguments, **keywords)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
