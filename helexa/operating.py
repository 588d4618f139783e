"""What operators want of the service: the configuration that counts, models to load and unload, pauses, a drain.

It is kept by the supervisor, so it outlives any scheduler. An answer may come later: a load is answered when the model is ready.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from helexa import catalogue, extras, logs, reloading
from helexa import config as configuration
from helexa.child_group import ChildGroup
from helexa.config import Config, KeyDoc
from helexa.errors import ConfigError, HelexaError, StartError
from helexa.listings import Listing, listings
from helexa.run_directory import RunDirectory
from helexa.served_models import ServedModel, ServedModels
from ipc.leash_messages import Dismiss, LogLevel, OperatorAnswer, OperatorAsks, Settings, Summon

log = logging.getLogger("supervisor")

ALL = "*"


class Processes(Protocol):
    """What is asked of the supervisor."""

    scheduler: ChildGroup

    def begin(self, model: ServedModel) -> None: ...

    def introduce(self, model: ServedModel) -> None: ...

    def retire(self, model: ServedModel) -> None: ...

    def hang_up_web(self) -> None: ...


@dataclass
class _Reload:
    """A configuration that counts once its model is ready."""

    config: Config
    changed: list[KeyDoc]
    replaces: ServedModel | None
    model: ServedModel


class Operating:
    def __init__(self, config: Config, run_directory: RunDirectory, models: ServedModels, processes: Processes) -> None:
        self.config = config
        self._run_directory = run_directory
        self._models = models
        self._processes = processes
        self._file, self._flags = configuration.origin()
        self._overrides: dict[str, Any] = {}
        self._generation = 1
        self._draining = False
        self._paused: list[str] = []
        self._reload: _Reload | None = None
        self._loads: dict[int, list[int]] = {}  # by instance: who asked for it
        self._unloads: dict[int, list[int]] = {}
        self.config_path = str(run_directory.write_config(config, 1))
        self._commands: dict[str, Callable[[int, dict[str, str]], str | None]] = {
            "load": self._load,
            "unload": self._unload,
            "reload": lambda id, arguments: self._reread(id),
            "drain": lambda id, arguments: self.drain(),
            "pause": lambda id, arguments: self._pause(arguments.get("model", ALL)),
            "resume": lambda id, arguments: self._resume(arguments.get("model")),
            "log-level": self._log_level,
        }

    def settings(self) -> Settings:
        return Settings(self.config_path, self._draining, list(self._paused))

    # commands

    def obey(self, asked: OperatorAsks) -> None:
        """Answers at once, or when it is done."""
        command = self._commands.get(asked.command)
        try:
            if command is None:
                raise StartError(f"the supervisor has no command `{asked.command}`")
            note = command(asked.id, asked.arguments)
        except HelexaError as error:
            self._answer([asked.id], error=error.message)
            return
        except Exception as error:  # whatever is asked must not end the service
            log.exception("the command `%s` failed", asked.command)
            self._answer([asked.id], error=f"{asked.command} failed ({type(error).__name__}); the log says more")
            return
        if note is not None:
            self._answer([asked.id], note=note)

    def drain(self) -> str:
        self._draining = True
        self._tell_settings()
        return "no new requests are taken; `helexa ctl resume` takes them again"

    def _pause(self, name: str) -> str:
        self._check_served(name)
        if name not in self._paused:
            self._paused.append(name)
        self._tell_settings()
        return f"new requests of {'every model' if name == ALL else name} wait"

    def _resume(self, name: str | None) -> str:
        if name is not None:
            self._check_served(name)
            if name not in self._paused:
                raise StartError(f"{name} is not paused" + (" by itself: all are" if ALL in self._paused else ""))
            self._paused.remove(name)
        else:
            self._draining, self._paused = False, []
        self._tell_settings()
        return f"{name or 'every model'} takes requests"

    def _check_served(self, name: str) -> None:
        if name != ALL and self._models.named(name) is None:
            names = sorted({model.name for model in self._models if not model.retiring})
            raise StartError(f"no model `{name}` is served; served: {', '.join(names) or 'none'}")

    def _load(self, id: int, arguments: dict[str, str]) -> None:
        listed = self._models.named(arguments["model"])
        if listed is not None and listed.listed and "name" not in arguments:
            self._summon(id, listed)
            return
        source = catalogue.parse(arguments["model"], self.config)
        name = arguments.get("name") or source.served_name
        if len(name) > 256 or not name.isprintable():
            raise StartError(f"a model name of {len(name)} characters, or one that is not printable; give another --name")
        if self._models.named(name) is not None:
            raise StartError(
                f"a model `{name}` is served already; give another --name, or swap it: change model.source and reload"
            )
        model = self._models.add(source, name, self.config, self.config_path, self.config.model.context)
        model.quant = self.config.model.quant
        self._loads[model.instance] = [id]
        self._processes.begin(model)

    def _summon(self, id: int, model: ServedModel) -> None:
        if not model.parked:
            raise StartError(f"{model.name} is loaded already, or being loaded")
        self._loads.setdefault(model.instance, []).append(id)
        self._processes.scheduler.tell(Summon(model.instance))

    def _unload(self, id: int, arguments: dict[str, str]) -> None:
        self._check_served(arguments["model"])
        model = self._models.named(arguments["model"])
        assert model is not None
        if self._reload is not None and model in (self._reload.model, self._reload.replaces):
            raise StartError(f"{model.name} is being swapped; wait for it")
        if model.parked:
            raise StartError(f"{model.name} is not loaded")
        self._unloads.setdefault(model.instance, []).append(id)
        if model.listed:
            self._processes.scheduler.tell(Dismiss(model.instance))
        else:
            self._processes.retire(model)

    def _log_level(self, id: int, arguments: dict[str, str]) -> str | None:
        before = dict(self._overrides)
        self._overrides["logging.level"] = arguments["level"]
        try:
            return self._reread(id)
        except HelexaError:
            self._overrides = before
            raise

    # the configuration

    def _reread(self, id: int) -> str | None:
        """Takes over the file as it is now; the answer comes later where a model must be loaded for it."""
        if self._reload is not None:
            raise StartError("a reload is going on; wait for it")
        config = configuration.load(self._file or configuration.origin()[0], {**self._flags, **self._overrides})
        changed = reloading.changes(self.config, config)
        if not changed:
            return "nothing has changed"
        extras.check(config)
        self._check_names(config)
        if not reloading.swaps_model(changed):
            return self._take_over(config, changed)
        source = catalogue.parse(config.model.source, config)
        name = config.model.name or source.served_name
        old = self._models.named(self.config.model.name or catalogue.parse(self.config.model.source, self.config).served_name)
        other = self._models.named(name)
        if other is not None and other is not old:
            raise ConfigError(f"`model.name`: a model `{name}` is served already; unload it first. Nothing was changed")
        pending = self._run_directory.write_pending_config(config)
        model = self._models.add(source, name, config, str(pending), config.model.context)
        model.listed, model.pinned, model.quant = True, config.model.pinned, config.model.quant
        self._reload = _Reload(config, changed, old, model)
        self._loads[model.instance] = [id]
        self._processes.begin(model)
        return None

    def enlist(self, listing: Listing) -> ServedModel:
        """Has a model of the configuration served, from its first request on or at once. Requests wait for any but the first, whose
        loading is the start of the service."""
        first = not any(self._models)
        model = self._models.add(listing.source, listing.name, self.config, self.config_path, listing.context)
        model.listed, model.pinned, model.parked, model.quant = True, listing.pinned, listing.on_request, listing.quant
        model.on_request = model.parked or not first
        return model

    def _check_names(self, config: Config) -> None:
        """Raises ConfigError where a listed model has the name of one that an operator loaded."""
        for listing in listings(config)[1:]:
            other = self._models.named(listing.name)
            if other is not None and not other.listed:
                raise ConfigError(
                    f"`models.{listing.name}`: a model of that name was loaded; unload it first. Nothing was changed"
                )

    def _relist(self, before: Config) -> None:
        """Those that are listed no more, or otherwise, are retired; new ones are enlisted."""
        old = {listing.name: listing for listing in listings(before)[1:]}
        new = {listing.name: listing for listing in listings(self.config)[1:]}
        for name, listing in old.items():
            model = self._models.named(name)
            after = new.get(name)
            if model is None or not model.listed:
                continue
            if after is not None and (after.source, after.context, after.quant) == (
                listing.source,
                listing.context,
                listing.quant,
            ):
                model.pinned = after.pinned
                self._processes.scheduler.tell(model.message())
                del new[name]
            else:
                self._processes.retire(model)
        for listing in new.values():
            model = self.enlist(listing)
            (self._processes.introduce if model.parked else self._processes.begin)(model)

    def _take_over(self, config: Config, changed: list[KeyDoc]) -> str:
        self._generation += 1
        before, self.config = self.config, config
        self.config_path = str(self._run_directory.write_config(config, self._generation))
        for role in self._processes.scheduler.roles:
            role.arguments = ["--config", self.config_path]
        logs.set_level(config.logging.level)
        for model in self._models:
            model.worker.tell(LogLevel(config.logging.level))
        self._tell_settings()
        if before.models != config.models:
            self._relist(before)
        if reloading.reaches_web(changed):
            self._processes.hang_up_web()
        names = ", ".join(item.path for item in changed)
        log.info("configuration %d: %s", self._generation, names)
        return f"configuration {self._generation} counts; changed: {names}"

    def is_reloaded(self, model: ServedModel) -> bool:
        """A configuration waits for it."""
        return self._reload is not None and self._reload.model is model

    # what became of models

    def model_ready(self, model: ServedModel) -> None:
        note = f"{model.name} is ready"
        if self._reload is not None and self.is_reloaded(model):
            reload, self._reload = self._reload, None
            note = self._take_over(reload.config, reload.changed)
            if reload.replaces is not None:
                self._processes.retire(reload.replaces)
        self._answer(self._loads.pop(model.instance, []), note=note)

    def model_failed(self, model: ServedModel, error: str) -> None:
        if self.is_reloaded(model):
            self._reload = None
            error = f"{error}. Nothing was changed"
        self._answer(self._loads.pop(model.instance, []), error=error)

    def model_parked(self, model: ServedModel) -> None:
        log.info("%s is unloaded; it is loaded again on request", model.name)
        self._answer(self._unloads.pop(model.instance, []), note=f"{model.name} is unloaded; it is loaded again on request")

    def model_gone(self, model: ServedModel) -> None:
        self._paused = [name for name in self._paused if name == ALL or self._models.named(name) is not None]
        log.info("%s is unloaded", model.name)
        self._answer(self._unloads.pop(model.instance, []), note=f"{model.name} is unloaded")

    def _tell_settings(self) -> None:
        self._processes.scheduler.tell(self.settings())

    def _answer(self, ids: list[int], note: str = "", error: str = "") -> None:
        for id in ids:
            self._processes.scheduler.tell(OperatorAnswer(id, note, error))
