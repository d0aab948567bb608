"""`profile --confirm`: compares the best configurations with the default, by paired sampling.

During a run, the two are measured minutes apart. Paired sampling measures them together, so that a
disturbance affects both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from dispatch_profiler.dispatches import Manifest
from dispatch_profiler.profiler.compare.live import LiveComparison, LiveOptions
from dispatch_profiler.profiler.compare.pairing import Pair
from dispatch_profiler.profiler.providers.library_calls import ManifestPair
from dispatch_profiler.profiler.records.record import Confirmation
from dispatch_profiler.profiler.records.record_file import StoredRecord
from dispatch_profiler.profiler.records.speedup import is_default, median_ms, packs_weight


def winners(records: Iterable[StoredRecord], known: Iterable[str]) -> list[tuple[StoredRecord, StoredRecord]]:
    """The default and the best record of each operation on each device, unless the default is best.

    A packed weight does not count, because its time includes less. `known` has the names of the dispatches that can be measured again, which excludes libraries.
    """
    names = set(known)
    groups: dict[tuple[str, str], list[StoredRecord]] = {}
    for record in records:
        if record.dispatch in names and median_ms(record) is not None and not packs_weight(record):
            groups.setdefault((record.operation, record.provenance.device), []).append(record)
    pairs = []
    for group in groups.values():
        default = next((record for record in reversed(group) if is_default(record)), None)
        best = min(group, key=lambda record: median_ms(record) or 0.0)
        if default is not None and not is_default(best):
            pairs.append((default, best))
    return pairs


def confirmations(
    manifest: Manifest, records: Iterable[StoredRecord], options: LiveOptions
) -> Iterator[tuple[StoredRecord, Confirmation]]:
    """The best record of each operation on each device, with the result of paired sampling.

    `options` apply to every device. Raises TargetError if a device cannot be opened.
    """
    pairs: dict[str, ManifestPair] = {pair[1].dispatch.name: pair for pair in manifest.dispatches()}
    by_device: dict[str, list[tuple[StoredRecord, StoredRecord]]] = {}
    for default, best in winners(records, pairs):
        by_device.setdefault(best.provenance.device, []).append((default, best))
    for device, winners_there in by_device.items():
        with LiveComparison(manifest, manifest, replace(options, device=device)) as live:
            matched = [(pairs[default.dispatch], pairs[best.dispatch]) for default, best in winners_there]
            for (_, best), pair in zip(winners_there, live.pairs(matched), strict=True):
                yield best, confirmation_of(pair)


def confirmation_of(pair: Pair) -> Confirmation:
    """A pair's ratio of times, new over base, as the speed of new."""
    if pair.ratio is None:
        return Confirmation(pair.outcome.value, pair.reason)
    value, low, high = pair.ratio.value, pair.ratio.low, pair.ratio.high
    # An unknown end is 0 or infinite.
    return Confirmation(
        pair.outcome.value, pair.reason, 1.0 / value, 1.0 / high, 1.0 / low if low > 0.0 else None
    )
