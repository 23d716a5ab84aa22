# SPDX-License-Identifier: Apache-2.0
"""Calls that are refused, for the scripts that ranks.py runs."""


def refused(expect, what, kind, text, call):
    """Whether `call` raises `kind`, with `text` in its message. A list of texts: all of them."""
    try:
        call()
        expect(False, f"{what}: no error")
    except kind as error:
        texts = [text] if isinstance(text, str) else text
        expect(all(one in str(error) for one in texts), f"{what}: {error}")
