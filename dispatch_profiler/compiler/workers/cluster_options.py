"""The options that name a cluster, which several commands share."""

from __future__ import annotations

import argparse
import re

from dispatch_profiler.command import Parser, folder
from dispatch_profiler.compiler.workers.cluster import Cluster, TlsFiles
from dispatch_profiler.errors import UsageError


def add_tls_arguments(parser: Parser) -> None:
    """Add the files of `tls://` addresses, which `tls_files` reads."""
    parser.add_argument(
        "--tls-ca-file", type=folder, metavar="FILE", help="certificate of the authority, with tls://"
    )
    parser.add_argument(
        "--tls-cert", type=folder, metavar="FILE", help="certificate of this machine, with tls://"
    )
    parser.add_argument("--tls-key", type=folder, metavar="FILE", help="key of that certificate")


def tls_files(options: argparse.Namespace) -> TlsFiles | None:
    """The files that the options name; None without these options. Raises UsageError if a file is missing."""
    given = {
        "--tls-ca-file": options.tls_ca_file,
        "--tls-cert": options.tls_cert,
        "--tls-key": options.tls_key,
    }
    if not any(given.values()):
        return None
    for name, path in given.items():
        if path is None or not path.is_file():
            problem = "is required too" if path is None else f"is not a file: {path}"
            raise UsageError(f"{name} {problem}", hint="docs/cluster.md shows how to create the files")
    return TlsFiles(*given.values())


def cluster_at(option: str, address: str, tls: TlsFiles | None) -> Cluster:
    """The cluster with the scheduler at `address`, the value of `option`. Raises UsageError."""
    if not re.fullmatch(r"(tcp|tls)://\S+:\d+", address):
        raise UsageError(
            f"malformed scheduler address {address!r}",
            hint="write tcp://HOST:PORT or tls://HOST:PORT",
        )
    if address.startswith("tls://") != (tls is not None):
        raise UsageError(
            "tls:// addresses and --tls options go together",
            hint=f"give {option}=tls://HOST:PORT and all three files (docs/cluster.md)",
        )
    return Cluster(address, tls)
