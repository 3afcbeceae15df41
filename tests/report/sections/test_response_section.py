"""Where there is no answer, the page names the command that would give one."""

from pathlib import Path

from dualscope.report.charts.chart import Note
from dualscope.report.report_data import Data
from dualscope.report.sections import response_section


def test_the_next_command_stands_beside_no_answer(response_run: Path) -> None:
    data = Data([response_run])
    (verdict,) = data.sources[0].response_verdicts
    assert "--learner gd-tuned" not in "".join(_notes(data))
    for answer in verdict["answers"]:
        if answer["learner"] == "gd":
            answer |= {"answer": "cannot tell", "seeds_needed": None}
    (said,) = _notes(data)
    assert "`--learner gd --learner probe --learner gd-tuned`" in said


def _notes(data: Data) -> list[str]:
    section = response_section.section(data)
    assert section is not None
    return [item.text for item in section.items if isinstance(item, Note)]
