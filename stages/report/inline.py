"""What a page that loads nothing carries in itself: pictures, and statements that were written in Markdown."""

import base64
import io

from markdown_it import MarkdownIt
from PIL import Image

# What stage reports write and nothing else: no HTML, no links, no pictures. All other text is escaped.
_MARKDOWN = MarkdownIt("zero", {"html": False}).enable(["heading", "table", "emphasis", "backticks"])


def html(markdown: str, headings: int = 4) -> str:
    """Under headings of the page, those of the text are of a lower level.

    >>> html("# A title\\n\\n**<b>bold</b>** of `a < b` [x](y)")
    '<h4>A title</h4>\\n<p><strong>&lt;b&gt;bold&lt;/b&gt;</strong> of <code>a &lt; b</code> [x](y)</p>\\n'
    """
    tokens = _MARKDOWN.parse(markdown)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{headings}"
    return str(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))


def data_uri(image: Image.Image, side: int, quality: int = 90) -> str:
    """Written anew, so that nothing but the picture is in it: photos may say where they were taken."""
    shown, buffer = image.copy(), io.BytesIO()
    shown.thumbnail((side, side))
    shown.save(buffer, format="WEBP", quality=quality)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
