"""stowage fit --model-from script.py:make_step --device 24GiB: stowage.will_it_fit from the command line.

Exit codes as of all verbs: 0 it fits (plainly, with a plan, or with a budget), 2 usage, 3 the script is not usable, 4 it
does not fit (proven), 5 unknown: no plan was found, and no proof."""

from __future__ import annotations

import argparse
import logging

from stowage.errors import Error
from stowage.verbs.script import USAGE, Parser, fail, size, told

DONE, BAD_INPUT, INFEASIBLE, STOPPED = 0, 3, 4, 5


def run(arguments: list[str]) -> int:
    options = _options(arguments)
    try:
        from stowage.sizes import parse_bytes

        parse_bytes(options.device)
    except (Error, ValueError) as error:
        return fail(USAGE, f"--device: {error}")
    try:
        from stowage.step.fit.made_step import load
        from stowage.step.fit.prediction import DOES_NOT, will_it_fit
    except (ImportError, Error) as error:
        return fail(BAD_INPUT, f"fit --model-from needs PyTorch: {error}")
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # the error says it in one line
    try:
        prediction = will_it_fit(
            load(options.model_from), options.device, batch_size=options.batch_size, length=options.length,
            largest=not options.no_largest, link_gbps=options.link_gbps, time_limit=options.time_limit,
        )  # fmt: skip
    except Error as error:
        return fail(BAD_INPUT, str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # of the script's own: told with its line
        return fail(BAD_INPUT, told(error))
    print(prediction.to_json() if options.json else str(prediction), end="\n" if options.json else "")
    if prediction.fits:
        return DONE
    return INFEASIBLE if prediction.outcome == DOES_NOT else STOPPED


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        "fit",
        "Will a training step fit, and how? Runs on tensors without memory.",
    )
    parser.add_argument("--device", required=True, metavar="BYTES", help="what the device has, such as 24GiB")
    parser.add_argument("--batch-size", type=size, metavar="N", help="default: make_step's own, else 1")
    parser.add_argument("--length", type=size, metavar="N", help="default: make_step's own, else 1")
    parser.add_argument("--no-largest", action="store_true", help="do not search the largest batch size and length")
    parser.add_argument("--link-gbps", type=float, help="speed of each swap lane, in 10^9 bytes a second")
    parser.add_argument("--time-limit", type=float, default=0.0, help="of each plan, in seconds; 0: never")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)
