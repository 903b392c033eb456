"""The parser's eyes: a position in a text, what stands there, and errors with a caret."""

from __future__ import annotations

import re

from hcomp.errors import ParseError
from hcomp.ir.printer import PLAIN_NAME, PLAIN_WORD

_SPACE = re.compile(r"\s*")
_COMMENT = re.compile(r"//[^\n]*")
_NAME = re.compile(PLAIN_NAME)
_WORD = re.compile(PLAIN_WORD)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STRING = re.compile(r'"((?:[^"\\\n]|\\["\\]|\\u\{[0-9a-f]{1,6}\})*)"')
_ESCAPE = re.compile(r'\\(?:(["\\])|u\{([0-9a-f]+)\})')
_EXPRESSION = re.compile(r"[^(),\[\]{}\n]*")


class Scanner:
    """Reads `text` from the front; `position` is always where the next token starts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self._to_token()

    def at_end(self) -> bool:
        """Say whether nothing is left."""
        return self.position == len(self.text)

    def sees(self, text: str) -> bool:
        """Say whether `text` stands here."""
        return self.text.startswith(text, self.position)

    def skip(self, text: str) -> bool:
        """Pass over `text` if it stands here."""
        if not self.sees(text):
            return False
        self._move(self.position + len(text))
        return True

    def symbol(self, text: str) -> None:
        """Pass over `text`, which must stand here."""
        if not self.skip(text):
            raise self.error(f"`{text}`")

    def skip_word(self, word: str) -> bool:
        """Pass over `word` if it stands here as a whole word."""
        found = _WORD.match(self.text, self.position)
        return found is not None and found.group() == word and self.skip(word)

    def word(self, word: str) -> None:
        """Pass over `word`, which must stand here as a whole word."""
        if not self.skip_word(word):
            raise self.error(f"`{word}`")

    def plain_word(self, wanted: str) -> str:
        """Read an identifier of ASCII letters, digits and underscores."""
        return self._match(_WORD, wanted)

    def any_word(self, wanted: str) -> str:
        """Read a plain word or a quoted one."""
        return self.string() if self.sees('"') else self.plain_word(wanted)

    def name(self, sign: str) -> str:
        """Read `%name` or `@name`, quoted where it is not plain."""
        if not self.sees(sign):
            raise self.error(f"a name that starts with `{sign}`")
        self.position += len(sign)
        return self.string() if self.sees('"') else self._match(_NAME, "a name")

    def digest(self) -> str:
        """Read 64 hexadecimal digits."""
        return self._match(_DIGEST, "64 hexadecimal digits")

    def string(self) -> str:
        """Read a quoted string and return what it says."""
        found = _STRING.match(self.text, self.position)
        if found is None:
            raise self.error("a string in double quotes")
        try:
            text = _ESCAPE.sub(lambda m: m[1] or chr(int(m[2], 16)), found[1])
        except (ValueError, OverflowError):
            raise self.error("escapes that are characters") from None
        self._move(found.end())
        return text

    def expression(self) -> tuple[int, str]:
        """Read up to a comma or closing bracket outside parentheses; return start and text."""
        start = end = self.position
        depth = 0
        while True:
            end = _EXPRESSION.match(self.text, end).end()  # type: ignore[union-attr]
            char = self.text[end : end + 1]
            if char == "(":
                depth += 1
            elif char == ")" and depth:
                depth -= 1
            elif char != "," or not depth:
                break
            end += 1
        text = self.text[start:end].rstrip()
        self._move(end)
        return start, text

    def error(self, wanted: str) -> ParseError:
        """Return the error that something else was expected here."""
        rest = self.text[self.position : self.position + 20].split("\n")[0]
        found = repr(rest) if rest else "the end of the line"
        return self.error_at(self.position, f"expected {wanted}, found {found}")

    def error_at(self, position: int, message: str) -> ParseError:
        """Return an error about what stands at `position`, with its line and a caret."""
        line = self.text.count("\n", 0, position) + 1
        start = self.text.rfind("\n", 0, position) + 1
        column = position - start
        shown = self.text[start:].split("\n", 1)[0]
        # A long line is cut around the place, so that the caret stays visible.
        cut = max(0, column - 60)
        return ParseError(
            f"line {line}, column {column + 1}: {message}\n  {shown[cut : cut + 100]}\n  {' ' * (column - cut)}^"
        )

    def _match(self, pattern: re.Pattern[str], wanted: str) -> str:
        found = pattern.match(self.text, self.position)
        if found is None:
            raise self.error(wanted)
        self._move(found.end())
        return found.group()

    def _move(self, position: int) -> None:
        self.position = position
        self._to_token()

    def _to_token(self) -> None:
        """Pass over white space, and over comments that fill a line."""
        while True:
            before = self.position
            self.position = _SPACE.match(self.text, before).end()  # type: ignore[union-attr]
            line_start = self.text.rfind("\n", 0, self.position) + 1
            if self.sees("//") and not self.text[line_start : self.position].strip():
                self.position = _COMMENT.match(self.text, self.position).end()  # type: ignore[union-attr]
            else:
                return
