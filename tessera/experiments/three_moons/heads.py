"""What each seed's heads answer for, and the numbers behind it."""

from tessera.experiments.experiment import Record
from tessera.experiments.three_moons.disentangling import DEDICATED, dedication, gains
from tessera.experiments.three_moons.published import FIGURE_10
from tessera.experiments.three_moons.records import ROUNDS, is_disentangled, number, outcome_of


def heads_of(records: dict[int, Record], words: str) -> str:
    """One row for each seed after each round of training."""
    rounds = {training: [outcome_of(record, path) for record in records.values()] for training, path in ROUNDS.items()}
    rates = " and ".join(
        f"in {sum(map(is_disentangled, outcomes))} of {len(outcomes)} seeds ({training})"
        for training, outcomes in rounds.items()
    )
    lines = [
        f"**{words}: disentangled {rates}.** A head is dedicated to a moon that has at least {DEDICATED:.0%} of the "
        "head's squared moduli in W_phi, in W_psi and in W_z; a network is disentangled if its heads are dedicated to "
        f"three different moons. The paper (figure 10), in short: {FIGURE_10['words']}.",
        "",
        "| seed | training | loss | head 1 | head 2 | head 3 | disentangled |",
        "|---|---|---|---|---|---|---|",
    ]
    for training, outcomes in rounds.items():
        for seed, outcome in zip(records, outcomes, strict=True):
            moons = ["none" if moon is None else f"moon {moon + 1}" for moon in dedication(outcome["weights"])]
            answer = "yes" if is_disentangled(outcome) else "no"
            lines.append(f"| {seed} | {training} | {outcome['loss']:.6f} | {' | '.join(moons)} | {answer} |")
    return "\n".join([*lines, "", _stuck(rounds["as published"])])


def _stuck(outcomes: list[dict]) -> str:
    """Whether the seeds that do not disentangle are worse at what they were trained on, or as good without it."""
    losses = {answer: [one["loss"] for one in outcomes if is_disentangled(one) == answer] for answer in (True, False)}
    if not all(losses.values()):
        return ""
    worst, best = max(losses[True]), min(losses[False])
    spread = f"{best:.5f} to {max(losses[False]):.5f}"
    if worst < best:
        return (
            f"Every seed that disentangles ends at a training loss of at most {worst:.5f}, the others at {spread}: "
            "training them got stuck, and of several seeds the one with the least training loss is disentangled."
        )
    return f"Seeds that disentangle end at a training loss of up to {worst:.5f}, the others at {spread}."


def why(records: dict[int, Record]) -> str:
    """The numbers behind the difference of the two trainings; runs that did not disentangle have no such heads."""
    lines = [
        "Why the error after max(p) is larger as published: the loss counts nearly empty memories, for which repeating "
        "the last observation a little turned ahead is best, and wide kernels. *Turn*: the mean angle by which "
        "W_z W_psi turns a moon ahead at every prediction (0 would be right; 25 predictions add it up). *Leak*: the "
        "largest modulus off its diagonal. *Width*: `1 / (sqrt(50) |w|)`, with w the head's entry of W_phi, averaged "
        "over heads; the slowest moon moves 0.047 per observation.",
        "",
        "| training | seeds | turn | leak | width of the kernels (radians) |",
        "|---|---|---|---|---|",
    ]
    for training, path in ROUNDS.items():
        outcomes = [outcome_of(record, path) for record in records.values()]
        found = [gains(one["weights"]) for one in outcomes if is_disentangled(one)]
        if found:
            cells = [number([one[name] for one in found], "{:.4f}") for name in ("turn", "leak", "width")]
            lines.append(f"| {training} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines) if len(lines) > 4 else ""
