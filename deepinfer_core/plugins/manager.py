"""The plugin manager: decide once what is active, load exactly that, and hand it out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deepinfer_core import envs
from deepinfer_core.errors import PluginError, nearest
from deepinfer_core.interfaces.checkpoint import CheckpointFiles
from deepinfer_core.interfaces.seams import SEAMS
from deepinfer_core.plugins.backends import autodetect, require_probe
from deepinfer_core.plugins.carry import FrozenTable, freeze, thaw
from deepinfer_core.plugins.discovery import BUILTIN, PluginRecord, discover
from deepinfer_core.plugins.failure import Source, failing, note_plugin, set_rank
from deepinfer_core.plugins.hooks import Hooks, bind_hooks
from deepinfer_core.plugins.loading import check_protocol, load
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.selection import (
    Key,
    Selected,
    by_name,
    check_together,
    from_object,
    from_record,
    join_owners,
    number_objects,
    settle,
    with_disabled,
)
from deepinfer_core.plugins.settings import Configuration, Layer, PluginConfig, check_config, read_layers
from deepinfer_core.plugins.table import CheckpointRow, PluginRow, build_table, checkpoint_rows

logger = logging.getLogger(__name__)

#: Where a person would look for what a source says; a file says it itself.
_PLACE: Final[Mapping[Source, str]] = {"argument": "plugins", "environment": "DEEPINFER_PLUGINS"}


class PluginManager:
    """Selects, loads and orders plugins. Arguments come before the configuration file, that before the
    environment, and that before the defaults; for an exclusive seam the first of these that fills it wins.

    plugins: names of installed plugins, objects, or classes (called with their configuration, if any).
    backend: name of a backend component, or ``"auto"``: one that is selected, else the only one besides the
        default whose probe succeeds, else the default.
    plugin_config: configuration by ``plugin`` or ``plugin/component``, then by key.
    config_file, environ: see :func:`deepinfer_core.plugins.settings.read_layers`.
    """

    def __init__(
        self,
        plugins: Sequence[object] = (),
        *,
        backend: str = "auto",
        plugin_config: PluginConfig | None = None,
        config_file: str | Path | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        if isinstance(plugins, str):
            raise PluginError(f"plugins must be a list, got {plugins!r}; write [{plugins!r}]")
        config = check_config(plugin_config or {})
        arguments = Layer(source="argument", where="arguments", plugins=plugins, config=config)
        layers = (arguments, *read_layers(config_file, environ))
        self.hooks = Hooks()
        self.records = with_disabled(discover(), layers, backend)
        self._backend = backend
        self._environ = environ
        self._configuration = Configuration(layers)
        self._selected: list[Selected] = []
        self._overridden: dict[Key, str] = {}
        self._dropped: dict[Key, str] = {}
        self._loaded: dict[tuple[str, str], Any] = {}
        self._is_resolved = False
        self._select(layers)

    # -- what is active ---------------------------------------------------------------------------

    def resolve(self, architecture: str | None = None, *, drafts: bool = False) -> PluginManager:
        """Load what is selected and bind the hooks; any failure raises PluginError. Returns the manager.

        architecture: the checkpoint's, whose model component is loaded too.
        drafts: where no speculator is selected, select the installed one that states this architecture, if any does.
        """
        if self._is_resolved:
            return self
        envs.check(self._environ)
        self._select_backend()
        if architecture is not None:
            self.model_for(architecture)
            if drafts:
                self._select_speculator(architecture)
        self._settle()
        self._load_selected()
        return self

    @classmethod
    def confirm(cls, table: FrozenTable, *, rank: int) -> PluginManager:
        """In a worker's process: the manager of exactly what the parent froze, loaded.

        Raises PluginError with a table of both sides when a plugin is another one here than there.
        """
        set_rank(rank)
        manager = cls(environ={})
        manager._selected = thaw(table, manager.records, rank)
        manager._configuration = Configuration(table.layers)
        manager._load_selected()
        return manager

    def freeze(self) -> FrozenTable:
        """What a worker needs of this selection; after :meth:`resolve`. Raises PluginError for what only lives here."""
        return freeze(self._selected, self._configuration)

    def _select(self, layers: Sequence[Layer]) -> None:
        for layer in layers:
            for position, item in enumerate(layer.plugins):
                if not isinstance(item, str):
                    self._selected += from_object(item, position, self._configuration)
                    continue
                record = by_name(item, self.records, layer.source)
                if record.state != "disabled":
                    self._add(record, layer.source, f"named in {_PLACE.get(layer.source, layer.where)}")
        self._add(self.records[0], "builtin", "built-in default")
        number_objects(self._selected)
        names = {record.name: [c.name for c in record.components()] for record in self.records}
        for s in (s for s in self._selected if s.is_object):
            names.setdefault(s.record.name, []).append(s.name)
        self._configuration.check_names(names)
        self._settle()

    def _add(self, record: PluginRecord, source: Source, reason: str) -> None:
        if not any(s.record is record for s in self._selected):
            self._selected += from_record(record, source, reason)

    def _settle(self) -> None:
        for s in self._selected:
            s.is_tolerated = self._configuration.is_tolerated(s.record.name)
            if s.is_tolerated and s.seam != "hooks":
                raise PluginError(
                    f"on_error = 'warn' is for plugins that only observe; {s.record.name!r} also fills {s.seam!r}"
                )
        self._selected, overridden = settle(self._selected)
        self._overridden |= overridden

    def _activate(self, record: PluginRecord, reason: str) -> None:
        """Make an installed plugin active that nobody selected."""
        self._add(record, "default", reason)
        self._settle()
        if self._is_resolved:
            check_together(self._selected)

    def _load_selected(self) -> None:
        check_together(self._selected)
        for s in [s for s in self._selected if SEAMS[s.seam].is_eager]:
            self._tolerating(s, self._load)
        for s in self._active("hooks"):
            self._tolerating(s, _check_hooks)
        hooks = self._active("hooks")
        self.hooks = bind_hooks([(_label(s), s.instance) for s in hooks], [_label(s) for s in hooks if s.is_tolerated])
        loaded = {plugin: False for _, plugin, _, _ in self._dropped}
        for s in self._selected:
            loaded[s.record.name] = loaded.get(s.record.name, True) and s.is_loaded
        self._configuration.check_taken(loaded)
        self._is_resolved = True

    def _tolerating(self, selected: Selected, act: Callable[[Selected], object]) -> None:
        """Do it; what fails of an observer that is tolerated makes it inactive, with a warning."""
        try:
            act(selected)
        except PluginError as error:
            if not selected.is_tolerated:
                raise
            logger.warning("goes on without a plugin: %s", error)
            self._selected.remove(selected)
            self._dropped[selected.key] = str(error).partition("\n")[0]

    def _load(self, selected: Selected) -> Any:
        """Import and instantiate a component, once; components with one object path share the instance."""
        if not selected.is_loaded:
            key = (selected.record.name, selected.component.object)
            if key not in self._loaded:
                self._loaded[key] = load(selected, self._configuration)
            selected.instance, selected.is_loaded = self._loaded[key], True
        check_protocol(selected)
        return selected.instance

    # -- the seams that choose for themselves -----------------------------------------------------

    def _select_backend(self) -> None:
        if self._backend != "auto":
            self._add(self._named_backend(), "argument", "named as backend")
        selected = self._active("backend")
        for s in selected:
            if self._backend in ("auto", s.name):
                require_probe(s)
        if not selected:
            record, reason = autodetect(self._offers("backend"))
            self._add(record, "default", reason)

    def _named_backend(self) -> PluginRecord:
        offers, name = self._offers("backend"), self._backend
        record = _only([r for r, c in offers if c.name == name], f"backend {name!r} is claimed", "uninstall one")
        if record is not None:
            return record
        known = [c.name for _, c in offers]
        unusable = [f"; {r.owner} is {r.state}: {r.reason}" for r in self.records if r.name == name and r.reason]
        listed = ", ".join(["auto", *known])
        raise PluginError(f"unknown backend {name!r}{nearest(name, known)} (known: {listed}){''.join(unusable)}")

    def _select_speculator(self, architecture: str) -> None:
        offers = [r for r, c in self._offers("speculator") if architecture in c.capabilities.get("architectures", ())]
        if not self._active("speculator"):
            record = _only(offers, f"architecture {architecture!r} is drafted for", "name one in plugins=[...]")
            if record is not None:
                self._add(record, "default", f"drafts for {architecture}")

    def model_for(self, architecture: str) -> Any:
        """The model component that serves ``architecture``, loaded.

        A selected plugin comes before one that is only installed; the latter becomes active as a whole.
        Raises PluginError when no plugin serves it, or several do, or loading fails.
        """
        chosen = self._serving("model", architecture, "architecture")
        if chosen is not None:
            return self._load(chosen)
        known = sorted({key for _, c in self._offers("model") for key in c.keys})
        unusable = [f"{r.name} ({r.reason})" for r in self.records if r.state != "available"]
        aside = f"; not usable: {'; '.join(unusable)}" if unusable else ""
        raise PluginError(
            f"no plugin serves the architecture {architecture!r}{nearest(architecture, known)} "
            f"(known: {', '.join(known) or 'none'}){aside}"
        )

    def checkpoint_for(self, model: str) -> CheckpointFiles | None:
        """The files of the checkpoint called ``model``, or None when no plugin ships it; otherwise as
        :meth:`model_for`. What the plugin answers is checked.
        """
        chosen = self._serving("checkpoint", model, "model")
        if chosen is None:
            return None
        component = self._load(chosen)
        with failing("run", chosen.record, chosen.source):
            files = component.locate(model)
            if not isinstance(files, CheckpointFiles):
                raise PluginError(f"locate({model!r}) must return CheckpointFiles, got {type(files).__name__}")
            if not (files.path / "config.json").is_file():
                raise PluginError(
                    f"the files of {model!r} must be in {files.path}, which has no config.json; reinstall it"
                )
        return files

    def _serving(self, seam: str, key: str, what: str) -> Selected | None:
        """The one component of a registry seam that serves ``key``, which becomes active; None without any."""
        if not any(key in s.component.keys for s in self._active(seam)):
            offers = [r for r, c in self._offers(seam) if key in c.keys]
            record = _only(offers, f"{what} {key!r} is served", "name one in plugins=[...]")
            if record is None:
                return None
            self._activate(record, f"serves {key}")
        chosen = [s for s in self._active(seam) if key in s.component.keys]
        if len(chosen) > 1:
            raise PluginError(f"{what} {key!r} is served by {join_owners(chosen)}; leave out all but one")
        return chosen[0]

    # -- handing out ------------------------------------------------------------------------------------

    def component(self, seam: str, name: str | None = None) -> Any:
        """The active component of a seam, loaded: the only one, or the one called ``name``. Where none is active and
        no name is asked for, the installed one that is the seam's default; it becomes active.

        Raises PluginError when there is none, naming what is installed for the seam.
        """
        if name is None and not self._active(seam):
            defaults = [r for r, c in self._offers(seam) if c.default]
            record = _only(defaults, f"the default of seam {seam!r} is claimed", "name one in plugins=[...]")
            if record is not None:
                self._activate(record, f"the default of seam {seam}")
        chosen = [s for s in self._active(seam) if name in (None, s.name)]
        if len(chosen) == 1:
            return self._load(chosen[0])
        if chosen:
            raise PluginError(f"seam {seam!r} has several components: {join_owners(chosen)}; ask for one by name")
        offers = {c.name: r.name for r, c in self._offers(seam)}
        what = f"component {name!r} of seam {seam!r}" if name else f"component of seam {seam!r}"
        near = nearest(name, offers) if name else ""
        installed = ", ".join(f"{c} (plugin {p})" for c, p in offers.items()) or "none"
        raise PluginError(f"no {what} is active{near} (installed: {installed}); name its plugin in plugins=[...]")

    def chain(self, seam: str) -> tuple[Any, ...]:
        """Every active component of a seam, loaded, in order; empty when there is none."""
        return tuple(self._load(s) for s in self._active(seam))

    def named(self, seam: str) -> Mapping[str, Any]:
        """:meth:`chain` with the components' names."""
        return {s.name: self._load(s) for s in self._active(seam)}

    def command(self, name: str) -> Any:
        """The ``deepinfer`` subcommand of any installed plugin: typing its name selects it."""
        offers = [r for r, c in self._offers("command") if c.name == name]
        record = _only(offers, f"the command {name!r} is claimed", "disable all but one")
        if record is None:
            raise PluginError(f"no plugin provides the command {name!r}")
        self._add(record, "argument", f"the command {name!r} was called")
        return self.component("command", name)

    def commands(self) -> Mapping[str, str]:
        """Names of all subcommands that plugins provide, each with its one-line help. Imports nothing."""
        return {c.name: str(c.capabilities.get("help", "")) for _, c in self._offers("command")}

    def checkpoints(self) -> tuple[CheckpointRow, ...]:
        """Every model that a plugin ships, by name. Imports nothing."""
        given = [(s.record, s.component) for s in self._active("checkpoint") if s.is_object]
        rows = [row for record, c in [*self._offers("checkpoint"), *given] for row in checkpoint_rows(record, c)]
        return tuple(sorted(rows, key=lambda row: (row.name, row.distribution)))

    def table(self) -> tuple[PluginRow, ...]:
        """Every installed and every given plugin, one row per component, with its state and the reason."""
        return build_table(self._selected, self.records, self._overridden, self._dropped)

    def selected(self) -> tuple[Selected, ...]:
        """What is active, in order, loaded or not."""
        return tuple(self._selected)

    def blame(self, error: BaseException) -> None:
        """Note on a run-time exception which active plugin raised it, if one did."""
        note_plugin(error, [(s.record, s.instance) for s in self._selected if s.source != "builtin"])

    def _active(self, seam: str) -> list[Selected]:
        if seam not in SEAMS:
            raise PluginError(f"unknown seam {seam!r}{nearest(seam, SEAMS)} (known: {', '.join(SEAMS)})")
        return [s for s in self._selected if s.seam == seam]

    def _offers(self, seam: str) -> list[tuple[PluginRecord, Component]]:
        usable = (r for r in self.records if r.state == "available" and r.name != BUILTIN)
        return [(record, component) for record in usable for component in record.components(seam)]


def _only(records: Sequence[PluginRecord], claim: str, remedy: str) -> PluginRecord | None:
    """The record, None without any. Raises PluginError for several, naming their owners."""
    if len(records) > 1:
        raise PluginError(f"{claim} by {' and '.join(r.owner for r in records)}; {remedy}")
    return records[0] if records else None


def _label(selected: Selected) -> str:
    return selected.name if selected.is_object else f"{selected.record.name}.{selected.name}"


def _check_hooks(selected: Selected) -> None:
    with failing("bind", selected.record, selected.source):
        bind_hooks([(_label(selected), selected.instance)])
