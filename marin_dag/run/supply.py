"""Supply: what steps ask for, held against what machines have, before the first of them begins.

Sums over all machines alone are compared: what they have may still be spread so that no step fits, and Ray waits then.
"""

from collections.abc import Mapping

from marin_dag.errors import UserError, listed
from marin_dag.graph.resources import Cpu, Gpu, Resources, Tpu, is_gang

MAX_NAMES = 3
SHOWN = ("CPU", "GPU", "TPU")


def needs_of(resources: Resources) -> dict[str, float]:
    """What a step asks for on all its machines together, by Ray's names."""
    match resources:
        case Cpu(num_cpus, num_hosts):
            return {"CPU": num_cpus * num_hosts}
        case Gpu(kind, count, num_hosts):
            return {"CPU": num_hosts, "GPU": count * num_hosts, f"accelerator_type:{kind}": 0.001}
        case Tpu():
            return {f"TPU-{resources.slice}-head": resources.num_slices}


def refuse_what_never_fits(wanted: Mapping[str, Resources], has: Mapping[str, float]) -> None:
    """Refuses steps that a machine alone, which no other will join, can never run.

    Args:
        wanted: what each step asks for, by its name.
        has: what the machine has, by Ray's names.
    """
    lacking = {name: asked for name, asked in wanted.items() if is_gang(asked) or _lacks(asked, has)}
    if lacking:
        raise UserError(
            f"{_listed(lacking)}. This machine has {_shown(has)}, and no other will join it. Nothing was started. Set "
            "RAY_ADDRESS to a cluster that has them, give the steps other resources, or select steps that ask for less "
            "with --until or --only."
        )


def what_is_not_there_yet(wanted: Mapping[str, Resources], has: Mapping[str, float]) -> str:
    """What to tell of steps that wait until more machines join a cluster; "" if it has what all ask for."""
    lacking = {name: asked for name, asked in wanted.items() if _lacks(asked, has)}
    if not lacking:
        return ""
    return f"{_listed(lacking)}. The cluster has {_shown(has)} now; these steps wait for more to join it."


def refuse_gangs(wanted: Mapping[str, Resources]) -> None:
    """Refuses steps that one process cannot run."""
    gangs = {name: asked for name, asked in wanted.items() if is_gang(asked)}
    if gangs:
        raise UserError(
            f"{_listed(gangs)}, and --backend local is this process alone. Nothing was started. Run them on Ray, give "
            "them the resources of one machine, or select other steps with --until or --only."
        )


def _lacks(resources: Resources, has: Mapping[str, float]) -> bool:
    return any(amount > has.get(name, 0) for name, amount in needs_of(resources).items())


def _listed(lacking: Mapping[str, Resources]) -> str:
    """ "kestrel: asks for 2 x v5litepod-256; ocelot, jellyfish, phoenix and 2 more: ask for v4-2048"."""
    by_resources: dict[Resources, list[str]] = {}
    for name, resources in lacking.items():
        by_resources.setdefault(resources, []).append(name)
    said = []
    for resources, names in by_resources.items():
        said.append(f"{listed(names, MAX_NAMES)}: {'asks' if len(names) == 1 else 'ask'} for {resources}")
    return "; ".join(said)


def _shown(has: Mapping[str, float]) -> str:
    kinds = [name.partition(":")[2] for name in sorted(has) if name.startswith("accelerator_type:")]
    heads = [name for name in sorted(has) if name.startswith("TPU-") and name.endswith("-head")]
    slices = [f"{has[name]:g} x {name.removeprefix('TPU-').removesuffix('-head')}" for name in heads]
    counted = [f"{has[name]:g} {name}" for name in SHOWN if has.get(name)]
    return ", ".join([*counted, *slices, *kinds]) or "nothing"
