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
from deepinfer_core.plugins.carry import FrozenTable, check_same, freeze, thaw
from deepinfer_core.plugins.compatibility import check_together
from deepinfer_core.plugins.configuration import Configuration
from deepinfer_core.plugins.discovery import BUILTIN, PluginRecord, discover
from deepinfer_core.plugins.failure import Source, failure, note_plugin, set_rank
from deepinfer_core.plugins.hooks import Hooks, bind_hooks
from deepinfer_core.plugins.loading import check_protocol, load
from deepinfer_core.plugins.manifest import Component
from deepinfer_core.plugins.selection import (
    Key,
    Selected,
    by_name,
    components_for,
    from_object,
    from_record,
    with_disabled,
)
from deepinfer_core.plugins.settings import Layer, PluginConfig, check_config, read_layers
from deepinfer_core.plugins.settling import join_owners, mark_tolerated, number_objects, settle
from deepinfer_core.plugins.table import CheckpointRow, PluginRow, build_table, checkpoint_row

logger = logging.getLogger(__name__)


class PluginManager:
    """Selects, loads and orders plugins. Arguments come before the configuration file, that before the
    environment, and that before the defaults; for an exclusive seam the first of these that fills it wins.

    plugins: names of installed plugins, objects, or classes (called with their configuration, if any).
    backend: name of a backend component, or ``"auto"``: one that is selected, else the only one besides the
        CPU's whose probe succeeds, else the CPU's.
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
        arguments = Layer(
            source="argument", where="arguments", plugins=plugins, config=check_config(plugin_config or {})
        )
        self._backend = backend
        self._environ = environ
        self._layers = (arguments, *read_layers(config_file, environ))
        self._configuration = Configuration(self._layers)
        self._loaded: dict[tuple[str, str], Any] = {}
        self._is_resolved = False
        self.hooks = Hooks()
        self.records = with_disabled(discover(), self._layers, backend)
        self._selected: list[Selected] = []
        self._overridden: dict[Key, str] = {}
        self._dropped: dict[Key, str] = {}
        self._select()

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
        check_same(table, manager.records, rank)
        manager._layers = table.layers
        manager._configuration = Configuration(table.layers)
        manager._selected = thaw(table, manager.records)
        manager._load_selected()
        return manager

    def freeze(self) -> FrozenTable:
        """What a worker needs of this selection; after :meth:`resolve`. Raises PluginError for what only lives here."""
        return freeze(self._selected, self._configuration.frozen())

    def _load_selected(self) -> None:
        check_together(self._selected)
        for selected in [s for s in self._selected if SEAMS[s.seam].is_eager]:
            self._tolerating(selected, self._load)
        for selected in self._active("hooks"):
            self._tolerating(selected, _check_hooks)
        hooks = self._active("hooks")
        tolerated = [_label(s) for s in hooks if s.is_tolerated]
        self.hooks = bind_hooks([(_label(s), s.instance) for s in hooks], tolerated)
        self._check_configuration()
        self._is_resolved = True

    def _select(self) -> None:
        for layer in self._layers:
            for position, item in enumerate(layer.plugins):
                if not isinstance(item, str):
                    self._selected += from_object(item, position, self._configuration)
                    continue
                record = by_name(item, self.records, layer.source)
                if record.state != "disabled":
                    self._add(record, layer.source, f"named in {_PLACE.get(layer.source, layer.where)}")
        self._add(self.records[0], "builtin", "built-in default")
        number_objects(self._selected)
        self._configuration.check_names(self._component_names())
        self._settle()

    def _add(self, record: PluginRecord, source: Source, reason: str) -> None:
        if not any(s.record is record for s in self._selected):
            self._selected += from_record(record, source, reason)

    def _settle(self) -> None:
        mark_tolerated(self._selected, self._configuration)
        self._selected, overridden = settle(self._selected)
        self._overridden |= overridden

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

    def _component_names(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for record in self.records:
            components = record.manifest.components if record.manifest else ()
            names.setdefault(record.name, []).extend(c.name for c in components)
        for s in (s for s in self._selected if s.is_object):
            names.setdefault(s.record.name, []).append(s.name)
        return names

    def _check_configuration(self) -> None:
        loaded = {plugin: False for _, plugin, _, _ in self._dropped}
        for s in self._selected:
            loaded[s.record.name] = loaded.get(s.record.name, True) and s.is_loaded
        self._configuration.check_taken(loaded)

    # -- the seams that choose for themselves -----------------------------------------------------

    def _select_backend(self) -> None:
        if self._backend != "auto":
            record = self._offering("backend", self._backend)
            require_probe(record, "argument")
            self._add(record, "argument", "named as backend")
            return
        selected = [s for s in self._selected if s.seam == "backend"]
        if selected:
            for s in selected:
                require_probe(s.record, s.source)
            return
        record, reason = autodetect(self._offers("backend"))
        self._add(record, "default", reason)

    def _select_speculator(self, architecture: str) -> None:
        if any(s.seam == "speculator" for s in self._selected):
            return
        offers = [r for r, c in self._offers("speculator") if architecture in c.capabilities.get("architectures", ())]
        if len(offers) > 1:
            owners = " and ".join(r.owner for r in offers)
            raise PluginError(f"architecture {architecture!r} is drafted for by {owners}; name one in plugins=[...]")
        if offers:
            self._add(offers[0], "default", f"drafts for {architecture}")

    def model_for(self, architecture: str) -> Any:
        """The model component that serves ``architecture``, loaded.

        A selected plugin comes before one that is only installed; the latter becomes active as a whole.
        Raises PluginError when no plugin serves it, or several do, or loading fails.
        """
        chosen = self._serving("model", architecture, "architecture")
        if chosen is None:
            raise PluginError(self._unknown_architecture(architecture))
        return self._load(chosen)

    def checkpoint_for(self, model: str) -> CheckpointFiles | None:
        """The files of the checkpoint called ``model``, or None when no plugin ships it; otherwise as
        :meth:`model_for`. What the plugin answers is checked.
        """
        chosen = self._serving("checkpoint", model, "model")
        if chosen is None:
            return None
        try:
            files = self._load(chosen).locate(model)
        except PluginError:
            raise
        except Exception as error:
            raise failure("run", error, chosen.record, chosen.source) from error
        if not isinstance(files, CheckpointFiles):
            cause = f"locate({model!r}) must return CheckpointFiles, got {type(files).__name__}"
            raise failure("run", cause, chosen.record, chosen.source)
        if not (files.path / "config.json").is_file():
            cause = f"the files of {model!r} must be in {files.path}, which has no config.json; reinstall it"
            raise failure("run", cause, chosen.record, chosen.source)
        return files

    def _serving(self, seam: str, key: str, what: str) -> Selected | None:
        """The one component of a registry seam that serves ``key``, which becomes active; None without any."""
        if not self._selected_for(seam, key):
            offers = [r for r, c in self._offers(seam) if key in c.keys]
            if not offers:
                return None
            if len(offers) > 1:
                owners = " and ".join(r.owner for r in offers)
                raise PluginError(f"{what} {key!r} is served by {owners}; name one in plugins=[...]")
            self._add(offers[0], "default", f"serves {key}")
            self._settle()
            if self._is_resolved:
                check_together(self._selected)
        chosen = self._selected_for(seam, key)
        if len(chosen) > 1:
            raise PluginError(f"{what} {key!r} is served by {join_owners(chosen)}; leave out all but one")
        return chosen[0]

    def _selected_for(self, seam: str, key: str) -> list[Selected]:
        return [s for s in self._selected if s.seam == seam and key in s.keys]

    def _unknown_architecture(self, architecture: str) -> str:
        known = sorted({key for _, c in self._offers("model") for key in c.keys})
        unusable = [f"{r.name} ({r.reason})" for r in self.records if r.state != "available"]
        listed = f" (known: {', '.join(known) or 'none'})"
        aside = f"; not usable: {'; '.join(unusable)}" if unusable else ""
        return f"no plugin serves the architecture {architecture!r}{nearest(architecture, known)}{listed}{aside}"

    # -- handing out ------------------------------------------------------------------------------------

    def component(self, seam: str, name: str | None = None) -> Any:
        """The active component of a seam, loaded: the only one, or the one called ``name``.

        Raises PluginError when there is none, naming what is installed for the seam.
        """
        active = self._active(seam)
        chosen = active if name is None else [s for s in active if s.name == name]
        if len(chosen) == 1:
            return self._load(chosen[0])
        if chosen:
            raise PluginError(f"seam {seam!r} has several components: {join_owners(chosen)}; ask for one by name")
        offers = {c.name: r.name for r, c in self._offers(seam)}
        what = f"component {name!r} of seam {seam!r}" if name else f"component of seam {seam!r}"
        near = nearest(name, offers) if name else ""
        installed = ", ".join(f"{c} (plugin {p})" for c, p in offers.items()) or "none"
        raise PluginError(f"no {what} is active{near} (installed: {installed}); name its plugin in plugins=[...]")

    def component_or_default(self, seam: str, name: str) -> tuple[str, Any] | None:
        """The active component of an exclusive seam and its name; where none is, the installed one called ``name``,
        which becomes active now; None where that is missing too. Raises PluginError as :meth:`component`.
        """
        if not self._active(seam):
            if not any(c.name == name for _, c in self._offers(seam)):
                return None
            self._add(self._offering(seam, name), "default", f"the default of seam {seam}")
            self._settle()
        chosen = self._active(seam)[0]
        return chosen.name, self._load(chosen)

    def chain(self, seam: str) -> tuple[Any, ...]:
        """Every active component of a seam, loaded, in order; empty when there is none."""
        return tuple(self._load(s) for s in self._active(seam))

    def named(self, seam: str) -> Mapping[str, Any]:
        """:meth:`chain` with the components' names."""
        return {s.name: self._load(s) for s in self._active(seam)}

    def command(self, name: str) -> Any:
        """The ``deepinfer`` subcommand of any installed plugin: typing its name selects it."""
        offers = [r for r, c in self._offers("command") if c.name == name]
        if not offers:
            raise PluginError(f"no plugin provides the command {name!r}")
        if len(offers) > 1:
            raise PluginError(f"the command {name!r} is claimed by {' and '.join(r.owner for r in offers)}")
        self._add(offers[0], "argument", f"the command {name!r} was called")
        return self.component("command", name)

    def commands(self) -> Mapping[str, str]:
        """Names of all subcommands that plugins provide, each with its one-line help. Imports nothing."""
        return {c.name: str(c.capabilities.get("help", "")) for _, c in self._offers("command")}

    def checkpoints(self) -> tuple[CheckpointRow, ...]:
        """Every model that a plugin ships, by name. Imports nothing."""
        offered = [checkpoint_row(name, r, c) for r, c in self._offers("checkpoint") for name in c.keys]
        given = [s for s in self._selected if s.is_object and s.seam == "checkpoint"]
        offered += [checkpoint_row(name, s.record) for s in given for name in s.keys]
        return tuple(sorted(offered, key=lambda row: (row.name, row.distribution)))

    def table(self) -> tuple[PluginRow, ...]:
        """Every installed and every given plugin, one row per component, with its state and the reason."""
        return build_table(self._selected, self.records, self._overridden, self._dropped)

    def selected(self) -> tuple[Selected, ...]:
        """What is active, in order, loaded or not."""
        return tuple(self._selected)

    def blame(self, error: BaseException) -> None:
        """Note on a run-time exception which active plugin raised it, if one did."""
        note_plugin(error, [(s.record, s.instance) for s in self._selected if s.source != "builtin"])

    # -- loading ----------------------------------------------------------------------------------------

    def _active(self, seam: str) -> list[Selected]:
        if seam not in SEAMS:
            raise PluginError(f"unknown seam {seam!r}{nearest(seam, SEAMS)} (known: {', '.join(SEAMS)})")
        return [s for s in self._selected if s.seam == seam]

    def _load(self, selected: Selected) -> Any:
        """Import and instantiate a component, once; components with one object path share the instance."""
        if not selected.is_loaded:
            component = selected.component
            if component is None:
                raise PluginError(f"component {selected.name!r} has nothing to load")
            key = (selected.record.name, component.object)
            if key not in self._loaded:
                self._loaded[key] = load(component, selected.record, selected.source, self._configuration)
            selected.instance, selected.is_loaded = self._loaded[key], True
        check_protocol(selected)
        return selected.instance

    def _offers(self, seam: str) -> list[tuple[PluginRecord, Component]]:
        usable = (r for r in self.records if r.state == "available" and r.name != BUILTIN)
        return [(record, component) for record in usable for component in components_for(record, seam)]

    def _offering(self, seam: str, name: str) -> PluginRecord:
        offers = self._offers(seam)
        found = [r for r, c in offers if c.name == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise PluginError(f"{seam} {name!r} is claimed by {' and '.join(r.owner for r in found)}; uninstall one")
        known = [c.name for _, c in offers]
        unusable = [f"; {r.owner} is {r.state}: {r.reason}" for r in self.records if r.name == name and r.reason]
        listed = ", ".join(["auto", *known])
        raise PluginError(f"unknown {seam} {name!r}{nearest(name, known)} (known: {listed}){''.join(unusable)}")


#: Where a person would look for what a source says; a file says it itself.
_PLACE: Final[Mapping[Source, str]] = {"argument": "plugins", "environment": "DEEPINFER_PLUGINS"}


def _label(selected: Selected) -> str:
    return selected.name if selected.is_object else f"{selected.record.name}.{selected.name}"


def _check_hooks(selected: Selected) -> None:
    try:
        bind_hooks([(_label(selected), selected.instance)])
    except PluginError as error:
        raise failure("bind", error, selected.record, selected.source) from error
