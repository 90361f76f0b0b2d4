"""The same two sentences as a small file of each kind that is no text."""

import zipfile
from pathlib import Path

SENTENCES = ("A king lived here.", "He had two sons.")


def write_documents(folder: Path) -> list[Path]:
    """An HTML, an EPUB, a docx and a PDF file."""
    body = "".join(f"<p>{sentence}</p>" for sentence in SENTENCES)
    page = f"<html xmlns='http://www.w3.org/1999/xhtml'><head><title>t</title></head><body>{body}</body></html>"
    (folder / "page.html").write_text(page)
    _epub(folder / "book.epub", page)
    _docx(folder / "letter.docx")
    _pdf(folder / "paper.pdf")
    return [folder / name for name in ("page.html", "book.epub", "letter.docx", "paper.pdf")]


def _epub(path: Path, page: str) -> None:
    rootfile = '<rootfile full-path="c.opf" media-type="application/oebps-package+xml"/>'
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("mimetype", "application/epub+zip")
        file.writestr(
            "META-INF/container.xml",
            '<?xml version="1.0"?><container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container">'
            f"<rootfiles>{rootfile}</rootfiles></container>",
        )
        file.writestr(
            "c.opf",
            '<?xml version="1.0"?><package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="i">'
            '<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:title>t</dc:title></metadata>'
            '<manifest><item id="a" href="a.xhtml" media-type="application/xhtml+xml"/></manifest>'
            '<spine><itemref idref="a"/></spine></package>',
        )
        file.writestr("a.xhtml", page)


def _docx(path: Path) -> None:
    office = "http://schemas.openxmlformats.org"
    kind = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
    paragraphs = "".join(f"<w:p><w:r><w:t>{sentence}</w:t></w:r></w:p>" for sentence in SENTENCES)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(
            "[Content_Types].xml",
            f'<Types xmlns="{office}/package/2006/content-types">'
            '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/word/document.xml" ContentType="{kind}"/></Types>',
        )
        file.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{office}/package/2006/relationships"><Relationship Id="r" '
            f'Type="{office}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/>'
            "</Relationships>",
        )
        file.writestr(
            "word/document.xml",
            f'<w:document xmlns:w="{office}/wordprocessingml/2006/main"><w:body>{paragraphs}</w:body></w:document>',
        )


def _pdf(path: Path) -> None:
    lines = "".join(f"({sentence}) Tj 0 -20 Td " for sentence in SENTENCES)
    content = f"BT /F 12 Tf 72 720 Td {lines}ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    written, places = "%PDF-1.4\n", []
    for number, described in enumerate(objects, 1):
        places.append(len(written))
        written += f"{number} 0 obj\n{described}\nendobj\n"
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n{len(written)}\n%%EOF\n"
    path.write_text(f"{written}xref\n0 6\n0000000000 65535 f \n{table}{end}")
