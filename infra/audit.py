"""Known holes in the pinned packages, by pip-audit: python infra/audit.py

It asks a service on the internet. Where that cannot be reached it says `audit not run` and why, and never passes for
an audit that found nothing. uv runs it in an environment of its own: it wants a newer `packaging` than
tensorflow-privacy allows.
"""

import json
import subprocess
import sys

PIP_AUDIT = "pip-audit==2.10.1"
OPTIONS = ("--requirement=requirements.lock", "--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json")
PATIENCE = 180  # seconds


def main() -> int:
    command = ["uv", "tool", "run", "--quiet", PIP_AUDIT, *OPTIONS, "--timeout=10"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        packages = json.loads(done.stdout)["dependencies"]
        code, message = verdict(packages)
    except subprocess.TimeoutExpired:
        code, message = 0, f"audit not run: no answer within {PATIENCE} seconds"
    except OSError as error:
        code, message = 0, f"audit not run: {error}"
    except (ValueError, KeyError):
        code, message = 0, f"audit not run: {(done.stderr.strip().splitlines() or ['no answer'])[-1]}"
    print(message, file=sys.stderr)
    return code


def verdict(packages: list[dict]) -> tuple[int, str]:
    """What pip-audit's report means: a package it could not ask about has no list of holes, only a reason."""
    asked = [p for p in packages if "vulns" in p]
    if not asked:
        reason = packages[0]["skip_reason"] if packages else "it was given no package"
        return 0, f"audit not run: its service knew none of {len(packages)} packages ({reason})"
    holes = [
        f"  {p['name']} {p['version']}: {hole['id']}, fixed in: {', '.join(hole['fix_versions']) or 'nothing yet'}"
        for p in asked
        for hole in p["vulns"]
    ]
    found = "\n".join([f"{len(holes)} known hole(s):", *holes]) if holes else "no known hole"
    return (1 if holes else 0), f"audit of {len(asked)} of {len(packages)} packages: {found}"


if __name__ == "__main__":
    sys.exit(main())
