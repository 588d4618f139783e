"""The `huggingface` source: a GGUF file of a repository on a Hugging Face Hub, or on any server that speaks its protocol."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path

from helexa import config as configuration
from helexa.catalogue.cache import Staged, need_disk, tree_bytes
from helexa.catalogue.choice import Candidate, choose, plain_name
from helexa.catalogue.progress import Progress, watching
from helexa.catalogue.source import Source
from helexa.config import Config
from helexa.errors import ModelSourceError


def fetch(source: Source, config: Config, folder: Path, progress: Progress) -> Staged:
    """Leaves the model file, and nothing else, in `folder`. What an ended fetch left there is resumed."""
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
        chosen = choose([Candidate(name, item.size or 0) for name, item in siblings.items()], source.pick, str(source))
        folder.mkdir(parents=True, exist_ok=True)
        need_disk(folder, chosen.bytes - tree_bytes(folder))
        with watching(folder, chosen.bytes, progress):
            fetched = _download(source, chosen, info.sha or "", config, token, folder)
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
    stored = siblings[chosen.path].lfs
    stated = stored.sha256 if stored else ""
    path = _settle(fetched, folder, chosen, {stated, source.sha256} - {""}, source)
    return Staged(path, source.sha256 or stated, _licence(info))


def _download(source: Source, chosen: Candidate, commit: str, config: Config, token: str | bool, folder: Path) -> Path:
    """Goes on where the same file of the same commit was left. The library's own download starts anew; its GET can go on.

    A large file is redirected to a store; the HTTP client leaves the token out there.
    """
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get

    url = hf_hub_url(source.name, chosen.path, revision=commit, endpoint=config.hub.endpoint or None)
    part = folder / (hashlib.blake2b(f"{commit}/{chosen.path}".encode(), digest_size=8).hexdigest() + ".part")
    if part.exists() and part.stat().st_size > chosen.bytes:
        part.unlink()  # not what the listing says: nothing to go on from
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with part.open("ab") as file:
        http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=chosen.bytes or None)
    return part


def _settle(fetched: Path, folder: Path, chosen: Candidate, sha256: set[str], source: Source) -> Path:
    """Checks the file against what is known of its digest, and leaves it alone in `folder`."""
    if sha256:
        with fetched.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != {found}:
            shutil.rmtree(folder)
            raise ModelSourceError(
                f"{source}: the SHA-256 of {chosen.name} is {found}, expected {', '.join(sorted(sha256))}; fetch it again"
            )
    path = folder / plain_name(chosen.name)
    fetched.rename(path)
    for other in folder.iterdir():
        if other.is_dir():
            shutil.rmtree(other)
        elif other != path:
            other.unlink()
    return path


def _licence(info: object) -> str:
    licence = getattr(getattr(info, "card_data", None), "license", None)
    return licence if isinstance(licence, str) else ""
