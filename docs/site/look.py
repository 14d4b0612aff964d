"""Looks at every page of a built site in Chromium, on a phone and on a wide screen, in light and in dark.

    python docs/site/look.py build/site [--pictures FOLDER]

A page may not be wider than the screen, no picture may be missing, and text must have the contrast of WCAG's level AA.
Prints what is not so, and ends with 1. --pictures also keeps what it saw."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WIDTHS = (400, 1400)
SCHEMES = {"light": "default", "dark": "slate"}

# Texts whose colour is too near to that of what lies below them: [ratio, text, class]. A ■ is a colour of a legend.
FAINT = """(() => {
  const rgba = text => { const n = (text.match(/[\\d.]+/g) || []).map(Number); return [n[0], n[1], n[2], n.length > 3 ? n[3] : 1]; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const below = e => {
    const layers = [];
    for (; e; e = e.parentElement) {
      const c = rgba(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) layers.push(c);
      if (c[3] === 1) break;
    }
    return layers.reverse().reduce((b, a) => over(a, b), [255, 255, 255, 1]);
  };
  const found = [], seen = {}, walker = document.createTreeWalker(document.querySelector('main') || document.body, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const e = node.parentElement, text = node.textContent.trim();
    if (!text || text === '■' || e.closest('title,style,script,.headerlink,[hidden],.md-nav,.md-clipboard,.md-top') || !e.getClientRects().length) continue;
    const kind = [e, e.parentElement, e.parentElement.parentElement].map(p => p && p.tagName + p.getAttribute('class')).join();
    if ((seen[kind] = (seen[kind] || 0) + 1) > 8) continue;  // the like of it has been looked at
    const style = getComputedStyle(e);
    if (style.visibility === 'hidden') continue;
    const back = below(e), ink = rgba(e.closest('svg') ? style.fill : style.color);
    const [a, b] = [light(over(ink, back)), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05), size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && parseInt(style.fontWeight) >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push([Math.round(ratio * 100) / 100, text.slice(0, 40), e.className && String(e.className.baseVal ?? e.className)]);
  }
  return found;
})()"""
# What sticks out, where the page is too wide.
WIDE = """[...document.querySelectorAll('main *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 &&
  !e.closest('pre,.md-typeset__scrollwrap,.highlight,.pictures,.shown')).slice(0, 3).map(e => e.tagName + '.' + e.className)"""
# A report draws itself; a page of the site may not be looked at before its fonts and sizes are settled.
READY = (
    "document.readyState === 'complete' && (!document.title.startsWith('Stowage report') || !!globalThis.stowageReport)"
)


def complaints(site: Path, pictures: Path | None = None) -> Iterator[str]:
    sys.path.append(str(ROOT / "tests" / "report"))
    from browser import Browser

    with Browser() as browser:
        for path in sorted(site.rglob("*.html")):
            name = str(path.relative_to(site))
            page = browser.open(path.resolve().as_uri())
            page.wait(READY)
            page.evaluate(
                "document.head.insertAdjacentHTML('beforeend', '<style>*{transition:none!important}</style>')"
            )
            for width in WIDTHS:
                page.resize(width, 900)
                if (wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                    yield f"{name}: {wide} wide on a screen of {width}: {page.evaluate(WIDE)}"
                for scheme, called in SCHEMES.items():
                    page.prefer(scheme)
                    page.evaluate(f"document.body.setAttribute('data-md-color-scheme', '{called}')")
                    if width == WIDTHS[0]:
                        for ratio, text, kind in page.evaluate(FAINT):
                            yield f"{name}, {scheme}: contrast {ratio} of '{text}' ({kind})"
                    if pictures:
                        pictures.mkdir(parents=True, exist_ok=True)
                        page.screenshot(pictures / f"{name.replace('/', '-')}-{width}-{scheme}.png", whole=True)
            missing = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
            yield from (f"{name}: no picture {src}" for src in page.evaluate(missing))
            page.call("Page.close")


def main(arguments: list[str]) -> int:
    pictures = Path(arguments[2]) if arguments[1:2] == ["--pictures"] else None
    found = list(complaints(Path(arguments[0]), pictures))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
