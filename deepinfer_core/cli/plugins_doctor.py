"""``deepinfer plugins doctor``: import every plugin in a child process and say what would go wrong."""

from __future__ import annotations

import argparse
import json

import attrs

from deepinfer_core.cli.parser import add_config_argument
from deepinfer_core.cli.plugins_list import forgiving_manager
from deepinfer_core.cli.tables import print_table
from deepinfer_core.errors import ConfigError
from deepinfer_core.plugins.diagnosis import diagnose, seam_findings, settings_problems
from deepinfer_core.plugins.probe import TIMEOUT_SECONDS
from deepinfer_core.plugins.selection import by_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``deepinfer plugins doctor``."""
    parser.add_argument(
        "plugins", metavar="NAME", nargs="*", help="only these plugins (default: all that are installed)"
    )
    parser.add_argument(
        "--timeout", type=float, default=TIMEOUT_SECONDS, metavar="SECONDS",
        help="give up on a plugin after this time (default: %(default)g)",
    )  # fmt: skip
    add_config_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")


def run(args: argparse.Namespace) -> int:
    """Print what was found. 0 when all is well, else 2."""
    if not args.timeout > 0:
        raise ConfigError(f"--timeout must be above 0 seconds, got {args.timeout:g}")
    settings = settings_problems(args.config)
    manager = forgiving_manager(args.config)
    names = set(args.plugins)
    for name in names:
        by_name(name, [attrs.evolve(record, state="available") for record in manager.records], "argument")
    records = [record for record in manager.records if not names or record.name in names]
    findings = diagnose(records, args.config, args.timeout, with_settings=not settings)
    seams = [] if names else seam_findings(manager, findings)
    if args.json:
        report = {
            "settings": settings,
            "plugins": [attrs.asdict(finding) for finding in findings],
            "seams": [attrs.asdict(finding) for finding in seams],
        }
        print(json.dumps(report, indent=2))
    else:
        for problem in settings:
            print(f"settings: {problem}\n")
        rows = [attrs.astuple(finding) for finding in findings]
        print_table(("plugin", "seam", "component", "result", "detail"), rows)
        if seams:
            print()
            print_table(("seam", "filled by", "problem"), [attrs.astuple(finding) for finding in seams])
    return 2 if settings or any(f.result == "problem" for f in findings) or any(f.problem for f in seams) else 0
