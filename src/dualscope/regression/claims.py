"""What the papers claim, what we check, and what was found: a table of the shipped results."""

import json

from dualscope.regression.folder import PROVENANCE
from dualscope.regression.shipped import shipped_runs

PAPERS = {
    "garg": "Garg et al. 2022: transformers learn linear, sparse linear, tree and two-layer-network functions in "
    "context, as well as or better than the best learners known for them, and linear ones also under shifts of "
    "the inputs",
    "akyurek": "Akyürek et al. 2023: trained in-context learners are least squares without noise and Bayes' ridge with "
    "it; moments and weights can be read off their layers",
    "newton": "Fu et al. 2024: layers advance like Newton's iterations and not like gradient descent's, also on "
    "ill-conditioned inputs",
    "mesa": "von Oswald et al. 2023b: transformers trained to continue sequences precondition in early layers and then "
    "descend",
    "vonoswald": "von Oswald et al. 2023: one trained linear layer is a step of GD; deeper ones are GD++",
    "ahn": "Ahn et al. 2023: a trained linear layer is a step of GD with the best preconditioner",
    "cheng": "Cheng et al. 2024: attention whose kernel is that of the data computes functional GD and approaches "
    "Bayes' answer",
    "variants": "Ren & Liu: regularized, augmented and negative attention change how fast and how well a transformer "
    "learns in context",
    "momentum": "Dai et al. 2023: momentum attention improves language models and their in-context learning",
}


def claims_table() -> str:
    """Markdown: a row a check, under the claim of its paper."""
    lines = ["| paper's claim | our check | found (mean over seeds [95 % interval]) | |", "|---|---|---|---|"]
    for name, place in sorted(shipped_runs().items(), key=lambda item: list(PAPERS).index(item[0])):
        claim = f"**{name}**: {PAPERS[name]}"
        for check in json.loads((place / PROVENANCE).read_text())["checks"]:
            holds = "holds" if check["holds"] else "**no**"
            lines.append(f"| {claim} | {_plain(check['claim'])} | {_plain(check['found'])} | {holds} |")
            claim = ""
    return "\n".join(lines)


def _plain(text: str) -> str:
    return text.replace("|", "\\|")
