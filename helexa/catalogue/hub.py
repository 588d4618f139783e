"""The `huggingface` source: a model of a repository on a Hugging Face Hub, or on any server that speaks its protocol."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

from helexa import config as configuration
from helexa.catalogue.cache import Staged, need_disk, tree_bytes
from helexa.catalogue.choice import Candidate, Model, choose, plain_name
from helexa.catalogue.progress import Progress, watching
from helexa.catalogue.room import room
from helexa.catalogue.source import Source
from helexa.config import Config
from helexa.errors import ModelSourceError


def fetch(source: Source, config: Config, folder: Path, progress: Progress) -> Staged:
    """Leaves the model's files, and nothing else, in `folder`. What an ended fetch left there is resumed."""
    from huggingface_hub import HfApi, errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of whichever HTTP library it uses
    from huggingface_hub.utils.logging import set_verbosity
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    set_verbosity(logging.ERROR)
    endpoint = config.hub.endpoint or None
    token: str | bool = configuration.secret(config.hub.auth_env) or False  # False: no token of another origin is used either
    try:
        info = HfApi(endpoint=endpoint, token=token).model_info(
            source.name, revision=source.revision or None, files_metadata=True
        )
        siblings = {item.rfilename: item for item in info.siblings or []}
        files = [Candidate(name, item.size or 0) for name, item in siblings.items()]
        chosen = choose(files, source.pick, str(source), room(config))
        _one_digest(source, chosen)
        folder.mkdir(parents=True, exist_ok=True)
        need_disk(folder, chosen.bytes - tree_bytes(folder))
        stated = {name: item.lfs.sha256 if item.lfs else "" for name, item in siblings.items()}
        with watching(folder, chosen.bytes, progress):
            whole = [_whole(source, file, info.sha or "", stated[file.path], config, token, folder) for file in chosen.files]
    except errors.GatedRepoError:
        raise ModelSourceError(
            f"{source}: the repository is gated; accept its terms on its page, then put your token in ${config.hub.auth_env}"
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelSourceError(
            f"{source}: the repository has no revision {source.revision}; leave out @ for its newest"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelSourceError(
            f"{source}: no such repository, or it is private; check the name, or put your token in ${config.hub.auth_env}"
        ) from None
    except errors.OfflineModeIsEnabled:
        raise ModelSourceError(f"{source}: $HF_HUB_OFFLINE forbids the network; unset it, or name a file with file:") from None
    except (HTTPError, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the Hub's
        reason = " ".join(str(error.__cause__ or error).split())
        raise ModelSourceError(
            f"{source}: {config.hub.endpoint or 'the Hub'} did not give it ({reason:.300}); check the network, then try again"
        ) from None
    return Staged(_settle(whole, chosen, folder), source.sha256 or stated[chosen.path], _licence(info), chosen.role)


def _one_digest(source: Source, chosen: Model) -> None:
    if source.sha256 and len(chosen.files) > 1:
        raise ModelSourceError(
            f"{source}: #sha256= names one file, and this model has {len(chosen.files)}; leave it out (a revision names them all)"
        )


def _whole(source: Source, file: Candidate, commit: str, stated: str, config: Config, token: str | bool, folder: Path) -> Path:
    """The file, checked against what is known of its digest, under a name of that commit's; one that is there already counts."""
    name = hashlib.blake2b(f"{commit}/{file.path}".encode(), digest_size=8).hexdigest()
    whole, part = folder / f"{name}.whole", folder / f"{name}.part"
    if whole.exists():
        return whole
    _download(source, file, commit, config, token, part)
    wanted = {stated, source.sha256} - {""}
    if wanted:
        with part.open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
        if wanted != {found}:
            shutil.rmtree(folder)
            raise ModelSourceError(
                f"{source}: the SHA-256 of {file.name} is {found}, expected {', '.join(sorted(wanted))}; fetch it again"
            )
    return part.rename(whole)


def _download(source: Source, file: Candidate, commit: str, config: Config, token: str | bool, part: Path) -> None:
    """Goes on where the same file of the same commit was left. The library's own download starts anew; its GET can go on.

    A large file is redirected to a store; the HTTP client leaves the token out there.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(source.name, file.path, revision=commit, endpoint=config.hub.endpoint or None)
    if part.exists() and part.stat().st_size > file.bytes:
        part.unlink()  # not what the listing says: nothing to go on from
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with part.open("ab") as opened:
        http_get(url, opened, resume_size=opened.tell(), headers=headers, expected_size=file.bytes or None)


def _settle(whole: list[Path], chosen: Model, folder: Path) -> tuple[Path, ...]:
    """Gives the files plain names, and removes what else lies in `folder`."""
    for other in folder.iterdir():
        if other not in whole:
            shutil.rmtree(other) if other.is_dir() else other.unlink()
    paths = [folder / plain_name(file.name) for file in chosen.files]
    for path, fetched in zip(paths, whole, strict=True):
        fetched.rename(path)
    return tuple(paths)


def _licence(info: object) -> str:
    licence = getattr(getattr(info, "card_data", None), "license", None)
    return licence if isinstance(licence, str) else ""
