"""Scripts that die of memory: is the cause that comes first the right one, and does the change that comes first help?

    ./dev bench doctor                          all of tests/run/scripts/dies.py
    ./dev bench doctor --only logits -o -       one of them

Each case is run by `stowage run --watch` in memory that is too small for it; what the doctor says is compared with what
the case was written to show (tests/run/deaths.py). Then the case makes the change that was advised first, in the same
memory, without stowage around it: it lives, or not."""

from __future__ import annotations

import sys

from bench import common

sys.path.insert(0, str(common.ROOT / "tests" / "run"))


def look(name: str) -> dict:
    from deaths import ask, lives

    verdict = ask(name)
    return {
        "case": name,
        "cause": verdict.cause,
        "right_cause": verdict.right_cause and verdict.right_line,
        "change": verdict.change,
        "right_change": verdict.right_change,
        "said_to_fit": verdict.fits,
        "lives": verdict.right_change and lives(name),
    }


def table(results: dict) -> str:
    rows = results["cases"]
    yes = {True: "yes", False: "no"}
    header = ["case", "right cause first", "the change that comes first", "said to fit", "lives with it"]
    told = [
        [r["case"].replace("_", " "), yes[r["right_cause"]], r["change"].split(": frees")[0], yes[r["said_to_fit"]], yes[r["lives"]]]
        for r in rows
    ]  # fmt: skip
    causes, lives = (sum(r[key] for r in rows) for key in ("right_cause", "lives"))
    return (
        f"The right cause came first in {causes} of {len(rows)}; the change that came first was enough in {lives}.\n\n"
        + common.markdown(header, told)
    )


def main() -> None:
    from deaths import CASES

    parser = common.parser(__doc__, "doctor")
    parser.add_argument("--only", choices=list(CASES), help="this case alone")
    options = parser.parse_args()
    cases = []
    for name in [options.only] if options.only else CASES:
        cases.append(look(name))
        common.say(str(cases[-1]))
    results = {"cases": cases}
    common.publish("doctor", {"results": results}, table(results), options.output)


if __name__ == "__main__":
    main()
