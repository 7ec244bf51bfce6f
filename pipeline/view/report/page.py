"""The page: sections in their order, style and script in it, and nothing that it would ask the network for."""

import base64
import hashlib
import logging
from pathlib import Path

from neatpack.format.manifest import Manifest
from neatpack.storage.files import remove_parts, write_whole
from neatpack.storage.location import Location

from ...runtime.faults import sentence
from ...safe import harmless_html as escape
from ...shard.composition import read_composition
from . import sections
from .figures import figures_of
from .gallery import some_documents

FILE = "report.html"

logger = logging.getLogger(__name__)


def write_report(
    out: Location, manifest: Manifest, file_name: Location | None = None, *, follow: bool = False
) -> Location:
    """Write OUT/report.html, or another file, whole or not at all. The same output gives the same bytes.

    `follow`: open the data files that the output names, for what rows say.

    Raises OutputError where a table of the output cannot be read.
    """
    content = page(out, manifest, follow=follow).encode("utf-8", "replace")  # rows may hold half a surrogate pair
    target = file_name or out / FILE
    if file_name is None:
        remove_parts(out, FILE.replace(".", r"\."))
    with write_whole(target) as file:
        file.write(content)
    return target


def add_report(out: Location, manifest: Manifest, follow: bool = True) -> None:
    """Write the report of an output that a run has finished, unless it is there.

    `follow`: this run has written what the output names, so that its data files may be opened.

    An output is complete without it. So nothing that goes wrong here, be it the disk or a mistake of ours, makes a run
    fail that has packed: it is a warning, which says how to try again; -v adds the traceback.
    """
    if (out / FILE).is_file():
        return
    try:
        write_report(out, manifest, follow=follow)
    except Exception as error:
        why = sentence(error) or f"{type(error).__name__}: {error}"
        logger.warning("%s: not written: %s. The output is complete; `neatpack report` writes it", out / FILE, why)
        logger.info("the report failed", exc_info=True)


def page(out: Location, manifest: Manifest, *, follow: bool = False) -> str:
    figures = figures_of(out, manifest)
    script, style = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    body = "\n".join(
        part
        for part in (
            sections.head(figures),
            sections.mixture(figures),
            sections.lengths(figures),
            sections.packs(figures),
            sections.balance(figures),
            sections.sharing(read_composition(out, manifest)),
            sections.skips(figures),
            sections.warnings(figures),
            sections.media(figures),
            sections.gallery(some_documents(out, manifest, follow=follow)),
            sections.times(figures),
            sections.made_from(figures),
        )
        if part
    )
    # Texts of rows are in the page: whatever they say, nothing runs but this script, and nothing is fetched.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:"
    title = ", ".join(manifest.identity.inputs) or "no data sets"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>neatpack: {escape(title[:80])}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
{body}
</main>
<script>{script}</script>
</body>
</html>
"""
