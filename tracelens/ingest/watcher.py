"""A round of `watch`: logs that grow, are rotated, truncated, compressed, and the lake that keeps up with them.

Every round looks at the files and hands the changed ones to `ingest`, which knows content by its digest: a log that has
grown replaces its earlier version, one that was renamed or compressed is known already. Watch adds what needs memory or
patience: it opens no file whose size, mtime and inode are as they were, leaves alone what is only the beginning of
another file (a copy that is being made, a compressor at work), and looks after files that were rotated while they were
read. A log that was written anew in its place is judged by watch_rewrites.py.
"""

from __future__ import annotations

import dataclasses
import time
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path

from tracelens.errors import InputError, StoppedError
from tracelens.ingest.budget import Budget, Wait
from tracelens.ingest.options import IngestOptions, Summary
from tracelens.ingest.run import Progress, adoptable_runs, ingest, is_json_log
from tracelens.ingest.stop import Clock, Stop
from tracelens.ingest.watch_rewrites import Alike, Rewrites
from tracelens.ingest.watch_state import Changed, Held, Note, Round, State
from tracelens.ingest.watch_trouble import passes, place_of, trouble
from tracelens.lake import ledger
from tracelens.lake.bucket_errors import AwayError
from tracelens.lake.forget import forget
from tracelens.lake.store import Store
from tracelens.sources.discover import SourceFile
from tracelens.sources.follow import (
    Follower,
    begins_with,
    compressed,
    content_of,
    head_of,
    mark_of,
)

# A compressed file that is cut short and younger than this may still be written, seconds.
_YOUNG = 60.0
_NO_NEWS = ("already in the lake", "the beginning of", "empty")

Adopted = Mapping[str, Mapping[str, str]]


class _DroppedError(StoppedError):
    """A reading had not come to its commit when it was too late for it."""


class Watcher:
    """The files of a lake, round after round.

    Sources are read in this process: an interrupt from the keyboard would reach worker processes, too.

    Args:
        paths: files, folders, patterns.
        lake: folder of the lake; made when it does not exist.
        options: see `IngestOptions`; `jobs` and `replace` are not looked at.
        stop: asks for the end.
        clock: seconds that only go forward.

    Raises:
        InputError: standard input.
    """

    def __init__(
        self, paths: Sequence[str], lake: Path, options: IngestOptions, *, stop: Stop | None = None,
        clock: Clock = time.monotonic,
    ) -> None:  # fmt: skip
        self.lake = lake
        self.stop = stop or Stop()
        self.clock = clock
        self.budget = Budget()
        self._options = dataclasses.replace(options, jobs=1, replace=False)
        self._follower = Follower(paths)
        self._states: dict[tuple[int, int], State] = {}
        self._again: set[Path] = set()
        self._gone: set[str] = set()  # sources that are to be taken out of the lake
        self._rewrites = Rewrites()
        self._adopted: Adopted | None = None
        self._labels = mark_of(options.labels)
        self._begun: float | None = None  # when the last look began
        self._place: Hashable | None = None
        self._shown: ledger.Ledger | None = None  # the lake before looks that failed

    def round(self, progress: Progress | None = None, *, everything: bool = False) -> Round:
        """Look once, and read what has changed and is worth it (`everything`: whatever it costs).

        What passes (a full disk, a server of files that is away) is told after the first look, and the next one tries
        again.

        Raises:
            InputError: at the first round a path that is not there; a lake or option that can't be used; later, a lake
                that is gone.
        """
        begun = self.clock()
        apart = None if self._begun is None else begun - self._begun
        first, self._begun = self._begun is None, begun
        if not first:
            self.check_place()
        files, skipped = self._follower.look()
        notes = [(s.name, s.reason) for s in skipped]
        if first:
            self._ingest([], None)  # refuses an option or a lake that can't be used; ends what a crash left
            self._place = place_of(self.lake)
        held: list[Held] = []
        size, known = 0, None
        try:
            changed, held = self._changed(files, everything=everything or first)
            known = ledger.read(self.lake)
            ready, waiting = self._ready(changed, files, known)
            held, size = [*held, *waiting], sum(c.mark.size for c in ready)
            read, touched = self._work(ready, files, known, notes, progress, first=first, apart=apart)
            # What was committed before something failed is told by the next look that comes to its end.
            touched |= self._shown is not None and self._shown != known
            dropped, self._shown = False, None
        except _DroppedError:
            read, touched, dropped = (), True, True  # commits before it stand
        except Exception as error:
            self.check_place()
            if first or not passes(error):
                raise
            read, touched, dropped, self._shown = (), False, False, self._shown or known
            notes.append((str(self.lake), trouble(error)))
        seconds = self.clock() - begun
        # What has to be read whatever it costs is no debt: the first reading may take an hour.
        self.budget.spent(seconds, size, owed=not (everything or first))
        if not any(one.seconds is not None for one in held):
            self.budget.settle()
        return Round(len(files), read, touched, tuple(held), tuple(notes), seconds, dropped, apart)

    def _work(
        self, ready: Sequence[Changed], files: Sequence[SourceFile], known: ledger.Ledger, notes: list[Note],
        progress: Progress | None, *, first: bool, apart: float | None,
    ) -> tuple[tuple[str, ...], bool]:  # fmt: skip
        """Read what is ready, and what depends on it: the names of what gave something; whether the lake changed."""
        if first and self._options.run is None:
            self._adopted = adoptable_runs(self.lake)
        self._rewrites.look(self._states, partial(self._alike, files), apart)
        forgot = self._forget()
        read, touched = self._take(ready, known, notes, progress)
        touched |= self._forget() or forgot
        if read:
            touched |= self._adopt_anew(files, ready, progress)
        touched |= self._relabel(notes)
        return read, touched

    def check_place(self) -> None:
        """Whether the lake is the one that it was: another one would lack what was read before.

        Raises:
            InputError: it is not.
        """
        try:
            gone = self._place is not None and place_of(self.lake) != self._place
        except AwayError:  # nobody can tell now, and who reads it is told
            return
        if gone:
            raise InputError(
                f"the lake at {self.lake} is gone: it was removed, moved or its disk taken away while it was watched. "
                "Its logs are still there: start the watch again, and it reads them all into a new lake"
            )

    # -- what to read -----------------------------------------------------------------------------------------

    def _changed(self, files: Sequence[SourceFile], *, everything: bool) -> tuple[list[Changed], list[Held]]:
        """Changed files that are worth reading now, and those that are not yet."""
        now = self.clock()
        here: dict[tuple[int, int], State] = {}
        changed: list[Changed] = []
        for file in files:
            mark = mark_of(file.path)
            if mark is None:
                continue
            state = here[mark.file] = self._states.get(mark.file) or State()
            if state.read != mark:
                state.since = now if state.since is None else state.since
                changed.append(Changed(file, mark))
        self._states = here
        if everything:
            return changed, []
        waits = [Wait(c.mark.size, now - (here[c.mark.file].since or 0.0)) for c in changed]
        picked = set(self.budget.choose(waits))
        held = [
            Held(c.file.name, c.mark.size, "read again when it is worth it", self.budget.seconds_until(c.mark.size))
            for i, c in enumerate(changed)
            if i not in picked
        ]
        return [c for i, c in enumerate(changed) if i in picked], held

    def _ready(
        self, changed: Sequence[Changed], files: Sequence[SourceFile], known: ledger.Ledger
    ) -> tuple[list[Changed], list[Held]]:
        """What is left of the changed files without those that hold nothing new, or are not whole yet."""
        if not changed:
            return [], []
        for one in changed:
            self._states[one.mark.file].head = head_of(one.file)
        known_sizes, known_digests = known.sizes(), frozenset(known.by_sha256())
        alike = self._alike(files)
        ready: list[Changed] = []
        held: list[Held] = []
        for one in changed:
            longer = alike(self._states[one.mark.file].head, one.file.path)
            again = one.file.path in self._again
            # Most logs are told from all others by their first line, and are not read for that.
            if again or not (longer or one.mark.size in known_sizes or compressed(one.file)):
                ready.append(one)
                continue
            content = content_of(one.file, known_sizes)
            if content.bytes and content.sha256 in known_digests:
                # The beginning of a known source is none of its own: it was read while a copy was made.
                self._gone.update(e.source_id for e in known.grown_from(content.prefixes) if e.sha256 != content.sha256)
                self._done(one)
                self._rewrites.is_now(self._states[one.mark.file], one, known.by_sha256()[content.sha256].source_id)
            elif content.bytes and any(begins_with(f, content.bytes, content.sha256, and_goes_on=True) for f in longer):
                self._done(one)  # the whole is read, or will be
            elif content.cut and self._is_young(one):
                held.append(Held(one.file.name, one.mark.size, "compressed, and not whole yet"))
            else:
                ready.append(one)
        return ready, held

    def _alike(self, files: Sequence[SourceFile]) -> Alike:
        """A function from first bytes and the path that has them to all other files that begin with them."""
        heads = sorted(
            (self._states[mark.file].head, i)
            for i, file in enumerate(files)
            if (mark := mark_of(file.path)) is not None and mark.file in self._states
        )

        def alike(head: bytes, path: Path | None) -> list[SourceFile]:
            found = []
            for at in range(bisect_left(heads, (head, -1)), len(heads) if head else 0):
                if not heads[at][0].startswith(head):
                    break
                if files[heads[at][1]].path != path:
                    found.append(files[heads[at][1]])
            return found

        return alike

    def _forget(self) -> bool:
        """Take out of the lake what is none of its own; a full disk leaves it for the next look."""
        if self._gone:
            forget(Store(self.lake), sorted(self._gone))
        some, self._gone = bool(self._gone), set()
        return some

    def _is_young(self, one: Changed) -> bool:
        """Whether a file that is cut short may still be written: it is new, and not as it was at the last look."""
        state = self._states[one.mark.file]
        if state.cut == one.mark or time.time() - one.mark.mtime / 1e9 > _YOUNG:
            return False
        state.cut = one.mark
        return True

    def _done(self, one: Changed) -> None:
        state = self._states.get(one.mark.file)
        if state is not None:
            state.read, state.since, state.cut = one.mark, None, None

    # -- reading ----------------------------------------------------------------------------------------------

    def _take(
        self, ready: Sequence[Changed], known: ledger.Ledger, notes: list[Note], progress: Progress | None
    ) -> tuple[tuple[str, ...], bool]:
        """Read files into the lake: the names of those that gave something, and whether the lake changed at all."""
        if not ready:
            return (), False
        again = [c for c in ready if c.file.path in self._again]
        sources = 0
        for group, replace in (([c for c in ready if c not in again], False), (again, True)):
            if not group:
                continue
            self._rewrites.reads(group)
            try:
                summary = self._ingest([c.file for c in group], progress, replace=replace)
            except _DroppedError:
                raise
            except Exception as error:
                if isinstance(error, InputError) and self._labels_changed():
                    notes.append((str(self._options.labels), f"nothing is read until it is whole: {error}"))
                elif not any(c.has_moved() for c in group):
                    raise
                continue  # what was taken away under our hands is found by the next round
            finally:
                notes += self._rewrites.told(self.lake)
            sources += summary.sources
            notes += [n for n in summary.notes if not n[1].startswith(_NO_NEWS)] + list(summary.remarks)
            notes += [(name, f"a part could not be read: {what}") for name, what in summary.faults]
            for one in group:
                if not one.has_moved():
                    self._done(one)
        self._again.difference_update(c.file.path for c in again if c.file.path is not None)
        for file in self._rewrites.alone():
            self._read_again(file)
        self._look_after([c for c in ready if c.has_moved()], known, notes)
        return (tuple(c.file.name for c in ready) if sources else ()), bool(sources)

    def _ingest(self, files: Sequence[SourceFile], progress: Progress | None, *, replace: bool = False) -> Summary:
        def told(name: str, size: int) -> None:
            if self.stop.overdue():
                raise _DroppedError
            if progress is not None:
                progress(name, size)

        # Absolute: a file may be called "-".
        paths = [str(f.path.absolute()) for f in files if f.path is not None]
        return ingest(paths, self.lake, dataclasses.replace(self._options, replace=replace), told, self._rewrites.amend)

    def _look_after(self, moved: Sequence[Changed], before: ledger.Ledger, notes: list[Note]) -> None:
        """Files that were rotated or truncated while they were read.

        What was read may be the old log, or its beginning with the middle of the new one behind it. Where a copy of
        the old log is, it is read (again), and what is no beginning of it is taken out.
        """
        if not moved:
            return
        old = {e.source_id for e in before.entries}
        files, _ = self._follower.look()
        for one in moved:
            state, path = self._states.pop(one.mark.file, State()), one.file.path
            head = state.head
            copies = [f for f in files if head and head_of(f).startswith(head)]
            for entry in ledger.read(self.lake).entries:
                if entry.source_id in old or path is None or entry.name != path.name:
                    continue
                owner = next((f for f in copies if begins_with(f, entry.bytes, entry.sha256)), None)
                if owner is not None:
                    self._read_again(owner)
                elif copies:
                    self._gone.add(entry.source_id)
            now = mark_of(path)
            if now is not None and now.file == one.mark.file:
                self._states.setdefault(now.file, State(source=state.source, path=state.path, was=state.was))
                if head and not copies:
                    why = "was truncated while it was read, no copy is here: lines may be missing"
                    notes.append((one.file.name, why))

    def _read_again(self, file: SourceFile) -> None:
        mark = mark_of(file.path)
        if file.path is not None and mark is not None:
            self._again.add(file.path)
            self._states[mark.file] = State()

    @property
    def unsettled(self) -> bool:
        """Whether something that was read is to be read again, as it was rotated in the meantime."""
        return bool(self._again)

    # -- what depends on other files --------------------------------------------------------------------------

    def _adopt_anew(self, files: Sequence[SourceFile], ready: Sequence[Changed], progress: Progress | None) -> bool:
        """Read JSON logs again whose folder's text logs now tell of another run, as a fresh ingest would name it."""
        if self._options.run is not None:
            return False
        before, now = self._adopted or {}, adoptable_runs(self.lake)
        folders = {folder for folder in {*before, *now} if before.get(folder) != now.get(folder)}
        read = {c.file.path for c in ready}
        stale = [f for f in files if f.folder_key[:8] in folders and f.path not in read and self._is_read_json(f)]
        read_anew = bool(stale) and bool(self._ingest(stale, progress, replace=True).sources)
        self._adopted = now
        return read_anew

    def _is_read_json(self, file: SourceFile) -> bool:
        mark = mark_of(file.path)
        return (
            mark is not None
            and mark.file in self._states
            and self._states[mark.file].read == mark
            and is_json_log(file)
        )

    def _labels_changed(self) -> bool:
        return self._options.labels is not None and mark_of(self._options.labels) != self._labels

    def _relabel(self, notes: list[Note]) -> bool:
        """Labels that came since: they are for requests that are in the lake already, too."""
        if self._options.labels is None or not self._labels_changed():
            return False
        mark = mark_of(self._options.labels)
        from tracelens.ingest.labels import read_labels
        from tracelens.ingest.relabel import relabel

        try:
            done = relabel(self.lake, read_labels(self._options.labels), ())
        except InputError as error:
            notes.append((str(self._options.labels), f"the labels of before stand: {error}"))
            return False
        self._labels = mark
        return bool(done.files)
