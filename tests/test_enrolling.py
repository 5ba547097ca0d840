"""Enrolling and revoking under what ends, fills or crowds them: every entry keeps its document, and nothing is lost."""

import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway import enrolling
from gateway.compile import encode
from gateway.configuration import Base, enrollments, load_base, load_configuration
from gateway.enrollments import entries, rows
from gateway.environment import data_folder
from gateway.errors import ConfigError
from gateway.subscriptions import event_type_for, load_subscription, seal

LINEAR = data_folder("subscriptions") / "examples" / "linear-issue-created.json"
DOCUMENT = json.loads(LINEAR.read_bytes())
OLD, STEM = LINEAR.read_bytes(), LINEAR.stem
OTHER = "sha256:" + "a" * 64


def changed(**members: Any) -> bytes:
    content = {name: value for name, value in (DOCUMENT | members).items() if name != "digest"}
    return encode(seal(content))


NEW = changed(grants=DOCUMENT["grants"] | {"teams": ["another"]})


LARGE = changed(grants=DOCUMENT["grants"] | {"teams": [f"team-{n}" for n in range(1000)]})


def digest(data: bytes) -> str:
    return load_subscription(data, "x").digest


@pytest.fixture
def base(tmp_path: Path) -> Base:
    (tmp_path / "enrolled").mkdir()
    (tmp_path / "key").write_text("planted-secret-value")
    path = tmp_path / "gateway.toml"
    identity = 'identity = { organization = ["11111111-1111-4111-8111-111111111111"] }'
    path.write_text(
        f'[store]\nembedded = "store"\n[github]\napp_id = 1\nprivate_key = "file:{tmp_path}/key"\n'
        '[subscriptions]\npath = "enrolled"\n'
        f'[sources.one]\nprofile = "linear"\nsecrets = ["file:{tmp_path}/key"]\n{identity}\n'
        f'[sources.two]\nprofile = "linear"\nsecrets = ["file:{tmp_path}/key"]\n{identity}\n'
    )
    return load_base(path)


def enroll(base: Base, data: bytes = OLD, source: str = "one", stem: str = STEM, **given: Any) -> enrolling.Done:
    return enrolling.write(base, data, stem, load_subscription(data, "x"), source, 5001, given)


def enrolls(base: Base, *arguments: Any, **given: Any) -> Callable[[], None]:
    return lambda: void(enroll(base, *arguments, **given))


def revokes(base: Base, data: bytes = OLD) -> Callable[[], None]:
    return lambda: void(enrolling.revoke(base, digest(data)))


def void(_: object) -> None:
    pass


def active(base: Base) -> set[str]:
    """What a process that starts now runs on; ConfigError where it would refuse to start."""
    return {one.subscription.digest for one in load_configuration(base.file).enrolled}


def entry(data: bytes, **members: Any) -> str:
    lines = {"subscription": digest(data), "source": "one", "installation": 5001} | members
    return "[[enrollments]]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items())


def apart(work: Callable[[], None]) -> int:
    """Run in a process of its own; return its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            work()
            code = 0
        except enrolling.Refused:
            code = 1
        except OSError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(monkeypatch: pytest.MonkeyPatch, step: int, work: Callable[[], None]) -> int:
    """Run apart, and kill -9 before the `step`-th time that a file is put in place or removed."""
    steps = iter(range(1, 1000))

    def before(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **more: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **more)

        return counted

    def run() -> None:
        monkeypatch.setattr(Path, "replace", before(Path.replace))
        monkeypatch.setattr(Path, "unlink", before(Path.unlink))
        work()

    return apart(run)


# ---- kill -9 ----------------------------------------------------------------------------------------------------------


def test_enroll_killed_at_any_step_leaves_one_that_works_and_can_be_done_again(
    base: Base, monkeypatch: pytest.MonkeyPatch
) -> None:
    enroll(base)
    kept = base.folder.parent / "kept"
    shutil.copytree(base.folder, kept)
    for step in range(1, 20):
        shutil.rmtree(base.folder)
        shutil.copytree(kept, base.folder)
        code = killed_at(monkeypatch, step, enrolls(base, NEW, mode="ask"))
        assert active(base) in ({digest(OLD)}, {digest(NEW)})
        if step % 2:  # going on, or going back
            enroll(base, NEW, mode="ask")
            assert active(base) == {digest(NEW)}
        else:
            enroll(base, OLD)
            assert digest(OLD) in active(base)
            enroll(base, NEW)
            assert active(base) == {digest(NEW)}
        assert sorted(one.name for one in base.folder.iterdir() if one.suffix != ".new") == [
            f"{STEM}.json",
            f"{STEM}.toml",
        ]
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert step > 6


def test_revoke_killed_at_any_step_leaves_all_or_none(base: Base, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in range(1, 10):
        enroll(base)
        code = killed_at(monkeypatch, step, revokes(base))
        assert active(base) in ({digest(OLD)}, set())
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert step > 2


# ---- two at once ------------------------------------------------------------------------------------------------------


def at_once(work: list[Callable[[], None]]) -> list[int]:
    """Start all of them at the same moment, each in a process of its own; return their exit codes."""
    start = time.monotonic() + 0.2
    children = []
    for one in work:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                time.sleep(max(0.0, start - time.monotonic()))
                one()
                code = 0
            except enrolling.Refused:
                code = 1
            finally:
                os._exit(code)
        children.append(child)
    return sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)


def test_of_two_sources_that_enroll_one_digest_at_once_one_is_refused(base: Base) -> None:
    for _ in range(10):
        codes = at_once([enrolls(base, source="one"), enrolls(base, source="two")])
        assert codes == [0, 1]
        [found] = entries(base)
        assert active(base) == {digest(OLD)}
        enrolling.revoke(base, found.enrollment.subscription)


def test_documents_of_one_name_that_are_enrolled_at_once_do_not_overwrite_each_other(base: Base) -> None:
    names = [f"acme/app{n}" for n in range(4)]
    made = [changed(repository=name, event_type=event_type_for(name, DOCUMENT["workflow"])) for name in names]
    assert at_once([enrolls(base, data) for data in made]) == [0] * 4
    assert active(base) == set(map(digest, made))
    assert at_once([enrolls(base, data) for data in made]) == [0] * 4
    assert active(base) == set(map(digest, made))


def test_a_document_of_another_repository_that_was_changed_by_hand_keeps_its_name_and_entry(base: Base) -> None:
    enroll(base)
    broken = (base.folder / f"{STEM}.json").read_bytes().replace(b"issue-created", b"issue-closed")
    (base.folder / f"{STEM}.json").write_bytes(broken)
    other = changed(repository="acme/other", event_type=event_type_for("acme/other", DOCUMENT["workflow"]))
    enroll(base, other)
    assert (base.folder / f"{STEM}.json").read_bytes() == broken
    assert {one.enrollment.subscription for one in entries(base)} == {digest(OLD), digest(other)}


def test_entries_that_share_a_file_are_all_kept(base: Base) -> None:
    made = [changed(grants=DOCUMENT["grants"] | {"teams": [f"team-{n}"]}) for n in range(6)]
    (base.folder / "all.toml").write_text("".join(map(entry, made)))
    for n, data in enumerate(made):
        (base.folder / f"{n}.json").write_bytes(data)
    assert at_once([enrolls(base, data, mode="ask") for data in made]) == [0] * 6
    assert {one.enrollment.mode for one in entries(base)} == {"ask"}
    assert active(base) == set(map(digest, made))
    assert at_once([revokes(base, data) for data in made]) == [0] * 6
    assert list(base.folder.iterdir()) == []


# ---- a full disk ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", [0, 100, 4096])
def test_a_full_disk_changes_nothing(base: Base, room: int) -> None:
    """RLIMIT_FSIZE stands for the full disk: a write beyond it fails, as it would there, after a part of it."""
    enroll(base)
    before = {one.name: one.read_bytes() for one in base.folder.iterdir()}

    def work() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        enroll(base, LARGE)

    assert apart(work) == 3
    assert {one.name: one.read_bytes() for one in base.folder.iterdir()} == before
    assert active(base) == {digest(OLD)}


def test_a_failed_write_says_which_file_and_that_nothing_changed(base: Base) -> None:
    with pytest.raises(OSError, match="nothing was changed") as caught:
        enrolling.replace_file(base.folder / "none" / "x.json", b"x")
    assert caught.value.filename == str(base.folder / "none" / "x.json")


# ---- files that operators write themselves ----------------------------------------------------------------------------


def test_an_inline_list_keeps_its_other_entries(base: Base) -> None:
    listed = ", ".join(
        f'{{subscription = "{one}", source = "one", installation = 5001}}' for one in (OTHER, digest(OLD))
    )
    file = base.folder / f"{STEM}.toml"
    file.write_text(f"# ours\nenrollments = [{listed}]\n")
    assert enroll(base, mode="ask").known
    found = [(one.enrollment.subscription, one.enrollment.mode) for one in entries(base)]
    assert found == [(OTHER, "auto"), (digest(OLD), "ask")]
    assert file.read_text().startswith("# ours\n")
    enroll(base, NEW, stem="new")
    enrolling.revoke(base, digest(OLD))
    assert {one.enrollment.subscription for one in entries(base)} == {digest(NEW), OTHER}
    file.write_text("enrollments = []\n")
    enroll(base)
    assert active(base) == {digest(OLD), digest(NEW)}


def test_an_entry_in_a_file_of_another_name_follows_its_document(base: Base) -> None:
    enroll(base)
    (base.folder / f"{STEM}.toml").rename(base.folder / "all.toml")
    assert enroll(base, NEW).replaced == digest(OLD)
    assert active(base) == {digest(NEW)}


def test_an_entry_in_the_configuration_is_not_left_without_its_document(base: Base) -> None:
    (base.folder / LINEAR.name).write_bytes(OLD)
    base.file.write_text(base.file.read_text() + entry(OLD))
    again = load_base(base.file)
    with pytest.raises(enrolling.Refused, match="remove it there, or give this document another file name"):
        enroll(again, NEW)
    assert active(again) == {digest(OLD)}
    assert enroll(again, NEW, stem="another").replaced is None
    assert active(again) == {digest(OLD), digest(NEW)}


@pytest.mark.parametrize("members", [{"installation": 7}, {"mode": "deny"}, {"url_template": "https://x.example/{a}"}])
def test_two_entries_of_one_digest_that_differ_are_neither_taken_for_right(base: Base, members: dict[str, Any]) -> None:
    enroll(base)
    (base.folder / "z.toml").write_text(entry(OLD) + entry(OLD, **members))
    with pytest.raises(ConfigError, match="enrolled twice with different values"):
        load_configuration(base.file)
    [good, bad] = rows(base, {})
    assert (good.state, bad.state) == ("active", "mismatched")
    assert bad.reason is not None
    assert "z.toml" in bad.reason
    enroll(base)  # says anew which one is meant
    assert active(base) == {digest(OLD)}
    assert len(entries(base)) == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a = " + b"[" * 5000 + b"]" * 5000, "not readable TOML"),
        (b"\xff", "no UTF-8"),
        (b'[[enrollments]]\nsubscription = "planted-value"\nsource = "one"\ninstallation = 1\n', "enrollments.0"),
        (b'secret = "planted-value"\n', "no key that is known"),
    ],
)
def test_a_broken_file_of_entries_is_told_without_its_values(base: Base, content: bytes, words: str) -> None:
    (base.folder / "x.toml").write_bytes(content)
    for look in (lambda: entries(base), lambda: load_configuration(base.file), lambda: enroll(base)):
        with pytest.raises(ConfigError, match=words) as caught:
            look()
        assert "planted-value" not in str(caught.value)


# ---- the folder -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "loop"])
def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(base: Base, kind: str) -> None:
    base.folder.rmdir()
    if kind == "file":
        base.folder.write_text("")
    else:
        base.folder.symlink_to(base.folder.name)
    for look in (lambda: load_configuration(base.file), lambda: rows(base, {}), lambda: enrollments(base)):
        with pytest.raises(ConfigError, match="cannot be listed"):
            look()


def test_a_folder_that_is_gone_ends_nothing_that_runs(base: Base) -> None:
    enroll(base)
    running = load_configuration(base.file)
    base.folder.rename(base.folder.with_name("elsewhere"))
    with pytest.raises(ConfigError, match="revokes nothing"):
        load_configuration(base.file, running)
    base.folder.mkdir()
    assert load_configuration(base.file, running).enrolled == ()


@pytest.mark.parametrize("suffix", [".json", ".toml"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop", "dangling"])
def test_what_is_no_plain_file_is_told_and_not_waited_for(base: Base, kind: str, suffix: str) -> None:
    enroll(base)
    file = base.folder / f"x{suffix}"
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to({"device": "/dev/zero", "loop": file.name, "dangling": "nothing"}[kind])
    with pytest.raises(ConfigError, match="cannot be read"):
        load_configuration(base.file)


def test_a_revocation_that_another_one_overtook_is_refused_and_not_written_down(base: Base) -> None:
    """Both commands found it enrolled; the second gets the folder when it is gone."""
    enroll(base)
    noted: list[str] = []
    assert enrolling.revoke(base, digest(OLD), first=lambda: noted.append("first"))
    with pytest.raises(enrolling.Refused, match="is not enrolled"):
        enrolling.revoke(base, digest(OLD), first=lambda: noted.append("second"))
    assert noted == ["first"]
