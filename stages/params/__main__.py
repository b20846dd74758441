"""Check params.yaml and print the cells of the sweep; or put a preset into it.

python -m stages.params                        all mistakes at once, or the cells
python -m stages.params --list                 the presets
python -m stages.params --use NAME             write a preset; shows own values that would be lost, and changes nothing
python -m stages.params --use NAME --keep      own values stay on top of the preset
python -m stages.params --use NAME --discard   own values go; a copy of the file stays
"""

from stages import commands, params
from stages.errors import UserError, run
from stages.params.presets import about, names
from stages.params.presets.using import shown, use


def main() -> None:
    parser = commands.parser("stages.params", __doc__)
    parser.add_argument("--list", action="store_true", help="the presets, with a line about each")
    parser.add_argument("--use", metavar="NAME", help="write this preset to params.yaml")
    own = parser.add_mutually_exclusive_group()
    own.add_argument("--keep", action="store_true", help="with --use: keep own values on top of the preset")
    own.add_argument("--discard", action="store_true", help="with --use: let own values go")
    args = parser.parse_args()
    if (args.keep or args.discard) and not args.use:
        parser.error("--keep and --discard belong to --use NAME")
    if args.list:
        for name in names():
            print(f"{name:<{max(map(len, names()))}}  {about(name)}")
    elif args.use:
        put(args.use, args.keep, args.discard)
    else:
        for cell in params.load(check_sources=True).cells():
            print(cell)


def put(name: str, keep: bool, discard: bool) -> None:
    used = use(name, keep=keep, discard=discard)
    for one in used.kept:
        print(f"kept: {one}: {shown(one.value)}")
    for one in used.dropped:
        print(f"not kept, as it has no place in this preset: {one}: {shown(one.value)}")
    print(f"params.yaml has the preset {name} now: {len(list(params.load().cells()))} cells")
    if used.before:
        print(f"as it was: {used.before}; back to it: mv {used.before} params.yaml")
    try:
        params.load(check_sources=True)
    except UserError as error:
        print(f"before it can run: {error}")


if __name__ == "__main__":
    run(main)
