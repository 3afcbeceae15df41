"""Others on the same run folder: another user, another pid namespace, a clock that is ahead, no hard links."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dualscope.core.errors import InputError
from dualscope.core.folder import Folder, Owner
from dualscope.studies.run_folder.claims import Claims
from dualscope.studies.run_folder.storage import RunFolder

NOBODY = 65534
HOLD = """
import sys
from dualscope.core.folder import Folder
from dualscope.studies.run_folder.claims import Claims
with Claims(Folder(sys.argv[1]), heartbeat=0.1) as claims:
    print(claims.take("a"), flush=True)
    sys.stdin.read()
"""


def test_another_pid_namespace(tmp_path: Path) -> None:
    """Its process 1 is not ours: it is neither declared dead while it lives, nor waited for once it is gone."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", HOLD, str(tmp_path)]
    try:
        holder = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    assert holder.stdout is not None
    assert holder.stderr is not None
    if holder.stdout.readline().strip() != "True":
        pytest.skip(f"no pid namespaces here: {holder.stderr.read()}")
    try:
        folder = Folder(tmp_path)
        owner = Owner.decode(folder.read("claims/a").decode().partition("\n")[0])
        assert owner is not None
        assert owner.boot == Owner.me().boot
        assert owner.namespace != Owner.me().namespace
        assert not owner.is_dead()
        patient = Claims(folder, stale=1.0)
        for _ in range(4):
            assert not patient.take("a")
            assert "process 1 on" in str(patient.holder("a"))
            time.sleep(0.5)
    finally:
        for child in _children(holder.pid):
            os.kill(child, 9)
        holder.kill()
        holder.wait()
    time.sleep(1.2)
    assert patient.take("a")
    patient.release("a")


def _children(pid: int) -> list[int]:
    import psutil

    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


def _as_nobody(act: Callable[[], int]) -> int:
    """What a process of another user returns; it has our modules, whose files it could not read."""
    Owner.me()  # imports what it needs while it can
    child = os.fork()
    if not child:
        code = 99
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            code = act()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_two_users(tmp_path: Path) -> None:
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == 0 and parent != Path("/") and "pytest" in str(parent):
            parent.chmod(0o755)
    shared, mine = tmp_path / "shared", tmp_path / "mine"
    for place, mode in ((shared, 0o777), (mine, 0o755)):
        place.mkdir()
        place.chmod(mode)

    def refused() -> int:
        try:
            RunFolder.create(mine / "run")
        except InputError as error:
            return 0 if "not yours to write to" in str(error) else 1
        return 2

    def meets_mine() -> int:
        claims = Claims(Folder(shared))
        living = not claims.take("held by root")
        return 0 if living and claims.holder("held by root") and claims.take("held by nobody") else 1

    assert _as_nobody(refused) == 0
    for part in ("claims", "aside"):
        (shared / part).mkdir()
        (shared / part).chmod(0o777)
    with Claims(Folder(shared)) as root:
        assert root.take("held by root")
        assert _as_nobody(meets_mine) == 0
        assert root.take("held by nobody")  # that process is gone, whoever it was of
    assert Folder(shared).names("claims") == []


def test_a_clock_that_is_ahead(tmp_path: Path) -> None:
    """A claim from the future goes stale by our own clock, unless somebody goes on touching it."""
    folder = Folder(tmp_path)
    elsewhere = replace(Owner.me(), boot="another machine")
    folder.write("claims/a", f"{elsewhere.encode()}\nx\n2001-01-01\n".encode())
    future = time.time() + 7200
    os.utime(tmp_path / "claims/a", (future, future))
    claims = Claims(folder, stale=0.6)
    assert not claims.take("a")
    for step in range(5):  # it lives, an hour or two ahead of us
        time.sleep(0.3)
        os.utime(tmp_path / "claims/a", (future + step + 1, future + step + 1))
        assert not claims.take("a")
    time.sleep(0.7)
    assert claims.take("a")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def link(*names: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    folder = Folder(tmp_path)
    with Claims(folder) as mine, Claims(folder) as other:
        assert mine.take("a")
        assert not other.take("a")
        assert str(os.getpid()) in str(other.holder("a"))
        mine.release("a")
        assert other.take("a")
    assert folder.names("claims") == folder.names("aside") == []
